//! Measures the round-trip times to the exits of the roster, by handshakes that open no session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_quic::driver::ConnectionId;

use super::{Connections, Ordered, close_quietly};
use crate::exits::Way;
use crate::kill_switch::Lockdown;
use warren_tunnel::WorkerHandle;

/// How long exits may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

impl Connections {
    /// Schedules the next measurement of the exits, unless one is under way.
    pub(in crate::daemon) fn measure_at(&mut self, due: Instant) {
        if self.measuring.asked.is_none() {
            self.measuring.due = Some(due);
        }
    }

    /// When to begin or to end a measurement.
    pub(in crate::daemon) fn measuring_due(&self) -> Option<Instant> {
        self.measuring.due
    }

    /// Whether exits are being measured.
    pub(in crate::daemon) fn is_measuring(&self) -> bool {
        self.measuring.asked.is_some()
    }

    /// Starts to measure all exits of the roster whose addresses are known. Starts look-ups for the others, so that the next
    /// measurement can include them.
    ///
    /// # Errors
    /// When this process may not mark its sockets.
    pub(in crate::daemon) async fn start_measuring(
        &mut self,
        worker: &WorkerHandle,
        lockdown: &mut Lockdown,
        now: Instant,
    ) -> anyhow::Result<()> {
        let mut asked = BTreeMap::new();
        for way in self.exits.ways_of_members() {
            if let Some(member) = self.exits.member(way.exit) {
                asked.insert(member.to_owned(), None);
            }
            self.open(worker, lockdown, 0, Ordered::for_measurement(way)).await?;
        }
        for place in self.exits.members_without_address() {
            self.lookups.start(place, &self.exits.exit(place).endpoint, lockdown);
        }
        self.measuring.asked = Some(asked);
        self.measuring.due = Some(now + PATIENCE);
        Ok(())
    }

    /// If a connection with a complete handshake was opened for a measurement, removes it from the measurement and returns its
    /// exit and address.
    pub(in crate::daemon) fn take_measured(&mut self, connection: ConnectionId) -> Option<Way> {
        self.measuring.running.remove(&connection)
    }

    /// Records the round-trip time to an exit. If the exit has several endpoints, the nearest counts.
    pub(in crate::daemon) fn measured(&mut self, way: Way, round_trip: Duration) {
        let Some(member) = self.exits.member(way.exit) else { return };
        if let Some(known) = self.measuring.asked.as_mut().and_then(|asked| asked.get_mut(member)) {
            *known = Some(known.map_or(round_trip, |known| known.min(round_trip)));
        }
    }

    /// Ends the measurement. Returns the exits that were asked, by name, with their round-trip times.
    pub(in crate::daemon) async fn end_measuring(
        &mut self,
        worker: &WorkerHandle,
    ) -> Vec<(String, Option<Duration>)> {
        let measuring = std::mem::take(&mut self.measuring);
        for connection in measuring.running.into_keys() {
            close_quietly(worker, connection).await;
        }
        measuring.asked.unwrap_or_default().into_iter().collect()
    }
}
