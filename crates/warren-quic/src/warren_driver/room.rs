//! Limits the unsent datagrams of a connection. Once a connection has a datagram, the packet path can neither drop nor overtake
//! it. So a connection accepts only as many datagrams as it can send soon.

use std::time::Duration;

/// The time in which a connection sends its held datagrams. It is longer than the pacer's wait (2 ms), so that the connection
/// never runs dry.
const HELD: Duration = Duration::from_millis(4);
/// Number of datagrams that even the slowest connection accepts.
const FEWEST: usize = 4;

/// The room for datagrams in a connection.
#[derive(Debug)]
pub(super) struct Room {
    /// Capacity of QUIC's datagram buffer in bytes.
    capacity: usize,
    /// Bytes that the connection may hold at its present speed.
    allowance: usize,
    /// Whether a datagram was refused, and there has been no room since.
    is_full: bool,
}

impl Room {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, allowance: capacity, is_full: false }
    }

    /// Whether a datagram of `length` bytes may be accepted while the buffer has `free` bytes left. An empty buffer accepts any.
    pub(super) fn takes(&mut self, length: usize, free: usize) -> bool {
        let held = self.held(free);
        let takes = held == 0 || held + length <= self.allowance;
        self.is_full |= !takes;
        takes
    }

    /// Adapts to the path's speed. Returns whether a full connection accepts datagrams again, which it does once half of its
    /// allowance is sent.
    pub(super) fn follow(&mut self, window: u64, rtt: Duration, datagram: usize, free: usize) -> bool {
        self.allowance = allowance(window, rtt, datagram, self.capacity);
        let has_room_again = self.is_full && self.held(free) <= self.allowance / 2;
        self.is_full &= !has_room_again;
        has_room_again
    }

    /// Records that the buffer was emptied.
    pub(super) fn empty(&mut self) {
        self.is_full = false;
    }

    fn held(&self, free: usize) -> usize {
        self.capacity.saturating_sub(free)
    }
}

/// Returns the bytes that a connection may hold if it sends `window` bytes per `rtt`, in datagrams of up to `datagram` bytes.
/// Never more than `most`, the size of its next drive.
fn allowance(window: u64, rtt: Duration, datagram: usize, most: usize) -> usize {
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
