//! Finds bulk flows: flows that send so much into the TUN that they get a separate lane, so that a ping need not wait behind
//! them.

use std::time::{Duration, Instant};

/// A flow that sends this much within a window, which is 10 Mbit/s, is bulk.
// A lane for bulk flows halves the median round trip under load. The lane costs eight flows 7 % of their throughput, and small
// packets a tenth (bench/LOG.md, "Two lanes in the TUN, kept").
const BULK_BYTES: u32 = 128 * 1024;
const WINDOW: Duration = Duration::from_millis(100);
/// A flow stays bulk for this many windows after it has slowed down, so that flows seldom change lanes.
// Each change may reorder the flow: packets on the new lane overtake packets that still wait in the old one.
const STAYS: u8 = 10;
/// Number of buckets. A flow's bytes are counted in the bucket that its hash selects. With a thousand bulk flows, one ping in five
/// shares a bucket with one of them.
const PLACES: usize = 4_096;

/// Bytes that the flows of each bucket sent in this window.
pub(super) struct BulkFlows {
    places: Box<[Sent]>,
    window_end: Instant,
    /// Whether any bucket is bulk. If none is, packets need no look-up.
    has_bulk: bool,
}

#[derive(Clone, Copy, Default)]
struct Sent {
    bytes: u32,
    windows_left: u8,
}

impl BulkFlows {
    pub(super) fn new(now: Instant) -> Self {
        Self { places: vec![Sent::default(); PLACES].into(), window_end: now + WINDOW, has_bulk: false }
    }

    /// Counts the bytes that a flow sent.
    pub(super) fn count(&mut self, flow_hash: u32, bytes: usize, now: Instant) {
        if now >= self.window_end {
            self.end_window(now);
        }
        if let Some(sent) = self.places.get_mut(place(flow_hash)) {
            sent.bytes = sent.bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
            if sent.bytes >= BULK_BYTES {
                sent.windows_left = STAYS;
                self.has_bulk = true;
            }
        }
    }

    /// Whether a flow is bulk, as of the last packet of any flow.
    pub(super) fn is_bulk(&self, flow_hash: u32) -> bool {
        self.has_bulk && self.places.get(place(flow_hash)).is_some_and(|sent| sent.windows_left > 0)
    }

    /// Ends the window, and all windows that have passed since.
    fn end_window(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.window_end);
        // If more windows have passed than a `u8` holds, no flow is bulk any more, so `STAYS` has the same effect.
        let windows = u8::try_from(1 + late.as_millis() / WINDOW.as_millis()).unwrap_or(STAYS);
        self.window_end = now + WINDOW;
        self.has_bulk = false;
        for sent in &mut self.places {
            sent.bytes = 0;
            sent.windows_left = sent.windows_left.saturating_sub(windows);
            self.has_bulk |= sent.windows_left > 0;
        }
    }
}

/// Uses the hash's low bits, because the high ones choose the connection.
fn place(flow_hash: u32) -> usize {
    flow_hash as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_bulk_while_it_sends_much_and_for_a_second_after() {
        let start = Instant::now();
        let mut flows = BulkFlows::new(start);
        for window in 0..5 {
            let now = start + WINDOW * window;
            flows.count(7, BULK_BYTES as usize - 1, now);
            assert!(!flows.is_bulk(7), "a byte less each window");
        }
        let now = start + WINDOW * 5;
        flows.count(7, 65_536, now);
        flows.count(7, 65_536, now);
        assert!(flows.is_bulk(7));
        assert!(!flows.is_bulk(8));
        for window in 6..16 {
            assert!(flows.is_bulk(7));
            flows.count(8, 100, start + WINDOW * window);
        }
        assert!(!flows.is_bulk(7));
    }

    #[test]
    fn a_pause_counts_although_nobody_sends() {
        let start = Instant::now();
        let mut flows = BulkFlows::new(start);
        flows.count(7, BULK_BYTES as usize, start);
        flows.count(8, 100, start + WINDOW * 5);
        assert!(flows.is_bulk(7));
        flows.count(8, 100, start + WINDOW * 20);
        assert!(!flows.is_bulk(7));
    }
}
