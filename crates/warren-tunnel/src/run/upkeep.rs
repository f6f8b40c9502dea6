//! Looks after the connections of a worker.

use std::time::Instant;

use warren_packet::reason::DropReason;

use super::Worker;
use crate::upkeep::CONNECTIONS_PER_TURN;

impl Worker {
    /// Does the upkeep of this turn's connections: drops their old assemblies, releases the memory of idle queues, and reads
    /// sizes and losses.
    pub(super) fn look_after_connections(&mut self, now: Instant) {
        let Some(first) = self.upkeep.first(now) else { return };
        let next = first + CONNECTIONS_PER_TURN;
        let mut expired = 0;
        for slot in first..next.min(self.pumps.capacity()) {
            let Some(pump) = self.pumps.get_mut(slot) else { continue };
            let given_up = pump.assembler.expire(now);
            if let Some(client) = pump.client.as_ref().filter(|_| given_up > 0) {
                client.count_drops(DropReason::FragmentTimeout, given_up);
            }
            expired += given_up;
            pump.note_datagram_size(&self.endpoint, now);
            pump.note_losses(&self.endpoint, now);
            pump.spare_memory(now);
            if pump.assembler.pending() > 0 {
                self.upkeep.note_assembly();
            }
        }
        self.count_expired(expired);
        self.upkeep.go_on(next, self.pumps.capacity());
    }
}
