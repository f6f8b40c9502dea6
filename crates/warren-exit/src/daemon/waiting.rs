//! The daemon's work for a fleet: it follows the link, reports how busy the exit is, and lets operators wait for the store without
//! blocking.

use std::time::Instant;

use ipnet::IpNet;
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
        let (ipv4, ipv6) = (self.config.ipv4.map(IpNet::V4), self.config.ipv6.map(IpNet::V6));
        let max_sessions = max_sessions(ipv4.into_iter().chain(ipv6));
        let Used { cores, busy_permille } = used;
        self.clients.say_load(Load { sessions: 0, max_sessions, bits_per_second, cores, busy_permille });
    }
}

/// The maximum number of sessions: the number of client addresses in the smaller pool, but at most [`MAX_CLIENTS`].
fn max_sessions(pools: impl Iterator<Item = IpNet>) -> u32 {
    let most = u32::try_from(MAX_CLIENTS).unwrap_or(u32::MAX);
    let addresses = pools.map(|pool| 1_u128 << (pool.max_prefix_len() - pool.prefix_len()).min(64));
    // No client gets the network's first address, the exit's own, or the last one.
    let rooms = addresses.map(|all| u32::try_from(all.saturating_sub(3)).unwrap_or(u32::MAX));
    rooms.fold(most, u32::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_pool_limits_the_sessions() {
        let most = |pools: &[&str]| max_sessions(pools.iter().map(|pool| pool.parse().unwrap()));

        assert_eq!(most(&["10.0.0.0/24"]), 253);
        assert_eq!(most(&["fd00::/120"]), 253);
        assert_eq!(most(&["10.0.0.0/24", "fd00::/64"]), 253);
        assert_eq!(most(&["10.0.0.0/16", "fd00::/124"]), 13);
        assert_eq!(most(&["10.0.0.0/8", "fd00::/8"]), u32::try_from(MAX_CLIENTS).unwrap());
    }
}
