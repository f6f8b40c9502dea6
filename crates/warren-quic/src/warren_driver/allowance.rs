//! How many bytes of datagrams a connection takes before they are sent: what waits in it can be neither dropped nor overtaken
//! by the packet path any more.

use std::time::Duration;

/// The time in which a connection sends what it holds: longer than the pacer waits (2 ms), so that it never runs dry.
const HELD: Duration = Duration::from_millis(4);
/// Datagrams that it takes however slow it is.
const FEWEST: usize = 4;

/// Returns the bytes that a connection may hold which sends `window` bytes in each `rtt`, in datagrams of up to `datagram`
/// bytes; never more than `most`, which is what its next drive takes.
pub(super) fn allowance(window: u64, rtt: Duration, datagram: usize, most: usize) -> usize {
    let held = u128::from(window) * HELD.as_nanos() / rtt.as_nanos().max(1);
    usize::try_from(held).unwrap_or(usize::MAX).max(FEWEST * datagram).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: usize = 1_400;
    const DRIVE: usize = 128 * 1024;

    #[test]
    fn a_path_holds_what_it_sends_in_four_milliseconds() {
        // 50 Mbit/s over 30 ms.
        assert_eq!(allowance(187_500, Duration::from_millis(30), DATAGRAM, DRIVE), 25_000);
        assert_eq!(allowance(20_000, Duration::from_millis(100), DATAGRAM, DRIVE), FEWEST * DATAGRAM);
    }

    #[test]
    fn a_fast_path_or_one_without_a_window_holds_a_drive() {
        assert_eq!(allowance(256 * 1024, Duration::from_millis(1), DATAGRAM, DRIVE), DRIVE);
        assert_eq!(allowance(u64::MAX, Duration::from_secs(1), DATAGRAM, DRIVE), DRIVE);
        assert_eq!(allowance(12_000, Duration::ZERO, DATAGRAM, DRIVE), DRIVE);
    }
}
