//! The daemon's work for a fleet: it follows the link, reports how busy the exit is, and lets operators wait for the store without
//! blocking.

use std::time::Instant;

use serde_json::Value;
use warren_fleet_link::Load;
use warren_session::clients::MAX_CLIENTS;

use super::link::Used;
use super::{Daemon, Propose, Then, Waiting};
use crate::fleet::LinkEvent;
use warren_tunnel::Snapshot;

impl Daemon<'_> {
    /// Makes a change of clients, and answers once the change has its outcome. Without a fleet, the outcome is known at once.
    /// `follows_host` says whether rules and routes of the host may depend on the change.
    pub(super) async fn change(&mut self, propose: Propose, follows_host: bool, then: Then) {
        let proposed = match propose(&mut self.clients) {
            Ok(proposed) => proposed,
            Err(refusal) => return then(self, Err(refusal)),
        };
        if let Some(link) = &mut self.fleet {
            let awaited = self.clients.await_store(proposed);
            link.waiting.push(Waiting { awaited, then, follows_host });
            self.clients.carry_out_all(&self.worker).await;
            return self.answer_waiting().await;
        }
        let settled = self.clients.settle(proposed, &self.worker).await;
        // The host follows in any case: a change that shuts a client out is in force even if it could not be stored.
        let followed = if follows_host { self.follow_clients().await } else { Ok(()) };
        let outcome = followed.and_then(|()| settled.map(|()| Value::Null));
        then(self, outcome);
    }

    /// Answers the changes that have an outcome now.
    pub(super) async fn answer_waiting(&mut self) {
        let Some(waiting) = self.fleet.as_mut().map(|link| std::mem::take(&mut link.waiting)) else { return };
        let mut open = Vec::new();
        for mut waiting in waiting {
            let Some(outcome) = self.clients.outcome(&mut waiting.awaited) else {
                open.push(waiting);
                continue;
            };
            let followed = if waiting.follows_host { self.follow_clients().await } else { Ok(()) };
            (waiting.then)(self, followed.and(outcome));
        }
        self.fleet.iter_mut().for_each(|link| link.waiting.append(&mut open));
    }

    /// Handles an event of the link to the fleet.
    pub(super) fn take_link_event(&mut self, event: (u64, LinkEvent)) {
        if let (LinkEvent::Connected(_), Some(link)) = (&event.1, &mut self.fleet) {
            // A new `warren-fleet` process does not know the load yet.
            link.hurry();
        }
        self.clients.take_link_event(event, &self.config);
    }

    /// Makes the exit serve its clients, or send them to other exits, as the fleet requires.
    pub(super) fn follow_fleet(&mut self) {
        if self.clients.serve_as_fleet()
            && let Some(link) = &mut self.fleet
        {
            // The load report that follows tells the fleet the new state at once.
            link.hurry();
        }
    }

    /// Reports how busy the exit is, if a report is due.
    pub(super) fn say_load(&mut self, now: Instant, snapshot: &Snapshot) {
        let Some(used) = self.fleet.as_mut().and_then(|link| link.processor_if_due(now)) else { return };
        let bits_per_second = self.reporting.bits_per_second(now, snapshot);
        let max_sessions = max_sessions(&self.config);
        let Used { cores, busy_permille } = used;
        self.clients.say_load(Load { sessions: 0, max_sessions, bits_per_second, cores, busy_permille });
    }
}

/// The maximum number of sessions: the number of client addresses in the IPv4 pool, but at most [`MAX_CLIENTS`].
fn max_sessions(config: &warren_config::ExitSettings) -> u32 {
    let most = u32::try_from(MAX_CLIENTS).unwrap_or(u32::MAX);
    // No client gets the network address, the exit's own, or the broadcast address.
    let of_ipv4 = config.ipv4.map(|pool| 2_u64.pow(u32::from(32 - pool.prefix_len())).saturating_sub(3));
    of_ipv4.and_then(|room| u32::try_from(room).ok()).unwrap_or(most).min(most)
}
