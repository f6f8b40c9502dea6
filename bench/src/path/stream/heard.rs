//! Computes loss, delay, jitter, gaps and reordering from the numbered packets that arrived.

use std::{collections::HashSet, ops::Range, time::Duration};

use crate::stats::{Sample, share};

/// The first bytes of each packet of the test. Packets without these bytes are ignored.
pub(super) const MAGIC: [u8; 4] = *b"wbpt";
/// Bytes of `MAGIC`, the packet's number and the time at which it was sent.
pub(super) const MARK: usize = 4 + 4 + 8;

/// A packet that arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Heard {
    number: u32,
    /// The time of receipt since the epoch, by CLOCK_REALTIME.
    came: Duration,
    delay: Duration,
}

/// The quality of streams, over all packets of all streams. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::path) struct Quality {
    /// Number of packets that arrived. Duplicates do not count.
    pub(in crate::path) received: u64,
    pub(in crate::path) lost_percent: f64,
    pub(in crate::path) delay_median_ms: f64,
    pub(in crate::path) delay_p99_ms: f64,
    /// Mean difference between the delays of consecutive packets.
    pub(in crate::path) jitter_ms: f64,
    /// Longest time between two consecutive packets of a stream.
    pub(in crate::path) longest_gap_ms: f64,
    /// Packets that arrived after a packet with a higher number, in per cent.
    pub(in crate::path) late_percent: f64,
}

impl Heard {
    /// Parses a packet. None if it does not belong to the test.
    pub(super) fn parse(packet: &[u8], came: Duration) -> Option<Self> {
        let mark: &[u8; MARK] = packet.first_chunk()?;
        let [m0, m1, m2, m3, n0, n1, n2, n3, time @ ..] = *mark;
        if [m0, m1, m2, m3] != MAGIC {
            return None;
        }
        let sent = Duration::from_nanos(u64::from_be_bytes(time));
        let number = u32::from_be_bytes([n0, n1, n2, n3]);
        // Both times are from the same clock. The delay can be negative only if the clock is set back in between, and then
        // becomes 0.
        Some(Self { number, came, delay: came.saturating_sub(sent) })
    }
}

impl Quality {
    /// Computes the quality of the packets whose numbers are in `range`. The packets in `refused` do not count as sent. None if
    /// no packet arrived.
    pub(super) fn of(streams: &[Vec<Heard>], refused: &[Vec<u32>], range: Range<u32>) -> Option<Self> {
        let (mut sent, mut received, mut late, mut gap) = (0_u64, 0_u64, 0_u64, Duration::ZERO);
        let (mut delays, mut changes) = (Vec::new(), Vec::new());
        for (index, heard) in streams.iter().enumerate() {
            let refused = refused.get(index).map_or(&[][..], Vec::as_slice);
            let unsent = refused.iter().filter(|number| range.contains(number)).count();
            sent += u64::try_from(range.len().saturating_sub(unsent)).ok()?;
            let mut seen = HashSet::new();
            let mut last: Option<Heard> = None;
            let mut highest = 0;
            for &one in heard.iter().filter(|one| range.contains(&one.number)) {
                // A path may deliver a packet twice. Only the first copy counts.
                if !seen.insert(one.number) {
                    continue;
                }
                received += 1;
                late += u64::from(one.number < highest);
                highest = highest.max(one.number);
                delays.push(milliseconds(one.delay));
                if let Some(last) = last {
                    gap = gap.max(one.came.saturating_sub(last.came));
                    changes.push(milliseconds(one.delay.abs_diff(last.delay)));
                }
                last = Some(one);
            }
        }
        let delays = Sample::new(delays)?;
        Some(Self {
            received,
            lost_percent: share(sent.saturating_sub(received), sent) * 100.0,
            delay_median_ms: delays.median(),
            delay_p99_ms: delays.quantile(0.99),
            jitter_ms: Sample::new(changes).map_or(0.0, |changes| changes.mean()),
            longest_gap_ms: milliseconds(gap),
            late_percent: share(late, received) * 100.0,
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn heard(number: u32, came_ms: u64, delay_ms: u64) -> Heard {
        Heard { number, came: Duration::from_millis(came_ms), delay: Duration::from_millis(delay_ms) }
    }

    #[test]
    fn packet_is_parsed_with_its_delay() {
        let sent = Duration::from_secs(1_000);
        let mut packet = MAGIC.to_vec();
        packet.extend(7_u32.to_be_bytes());
        packet.extend(u64::try_from(sent.as_nanos()).unwrap().to_be_bytes());
        packet.extend([0xa5; 30]);
        let came = sent + Duration::from_millis(15);
        let expected = Heard { number: 7, came, delay: Duration::from_millis(15) };
        assert_eq!(Heard::parse(&packet, came), Some(expected));
        assert_eq!(Heard::parse(b"hello", came), None);
        packet[0] = 0;
        assert_eq!(Heard::parse(&packet, came), None);
    }

    #[test]
    fn loss_gap_and_order_are_those_of_the_counted_numbers() {
        // Packet 9 is before the range, 10 arrives twice, 11 is late, 12 is lost, and the sender's kernel
        // refused 13.
        let stream = vec![
            heard(9, 0, 15),
            heard(10, 100, 15),
            heard(10, 101, 16),
            heard(14, 150, 25),
            heard(11, 155, 45),
        ];
        let quality = Quality::of(&[stream], &[vec![13]], 10..15).unwrap();
        assert_eq!(quality.received, 3);
        assert!((quality.lost_percent - 25.0).abs() < 1e-9);
        assert_eq!((quality.longest_gap_ms, quality.delay_median_ms), (50.0, 25.0));
        assert!((quality.jitter_ms - 15.0).abs() < 1e-9);
        assert!((quality.late_percent - 100.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_heard_has_no_quality() {
        assert_eq!(Quality::of(&[vec![]], &[vec![]], 0..10), None);
        assert_eq!(Quality::of(&[vec![heard(11, 0, 1)]], &[], 0..10), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Heard::parse(&bytes, Duration::from_secs(1));
        }

        #[test]
        fn shares_are_shares(numbers in prop::collection::vec(0_u32..100, 1..200)) {
            let stream: Vec<_> = numbers.iter().map(|&number| heard(number, number.into(), 1)).collect();
            let quality = Quality::of(&[stream], &[], 0..100).unwrap();
            prop_assert!((0.0..100.0).contains(&quality.lost_percent));
            prop_assert!((0.0..100.0).contains(&quality.late_percent));
        }
    }
}
