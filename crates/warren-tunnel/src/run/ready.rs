//! The pumps that have something to send and may send it.

use std::time::Instant;

use super::Worker;

impl Worker {
    /// Adds a pump to the list for `fill_connections`, if it has something to send and may send.
    pub(super) fn list(&mut self, slot: usize, now: Instant) {
        let Some(pump) = self.pumps.get_mut(slot) else { return };
        if !pump.listed && !pump.blocked && pump.has_work(now) {
            pump.listed = true;
            self.ready.push_back(slot);
        }
    }

    /// Moves packets of every listed pump into its connection.
    pub(super) fn fill_connections(&mut self, now: Instant) {
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else { return };
            // The connection may have ended since it was listed. Its slot may have a new pump, which may be drained as
            // well.
            let Some(pump) = self.pumps.get_mut(slot) else { continue };
            pump.listed = false;
            pump.drain(&mut self.endpoint, &mut self.arena, now, &mut self.totals, &mut self.drops);
        }
    }
}
