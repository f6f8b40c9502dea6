//! Decides what to do about silent connections. One silent connection among several gets another UDP port. If all are
//! silent, other paths are probed as well.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long one connection may be silent before it gets another port, if others are answered, and the least time until its port
/// changes again.
const REBIND_AFTER: Duration = Duration::from_millis(500);
const REBIND_EVERY: Duration = Duration::from_secs(4);

/// How long all connections may be silent before the client probes other paths as well, and the interval of further probes.
const SCOUT_AFTER: Duration = Duration::from_millis(200);
const SCOUT_EVERY: Duration = Duration::from_secs(3);

/// How long all connections may be silent before they get other ports. After a short interruption the old ports work faster,
/// because the exit need not learn new ones.
const REBIND_ALL_AFTER: Duration = Duration::from_secs(5);

/// An action for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VigilAction {
    /// Give the connection another port.
    Rebind {
        /// The connection's number in the session.
        index: u32,
    },
    /// Probe other addresses and exits. Keep the connections as they are until one of the probes is answered.
    Scout,
}

/// The connections of a session that carry traffic, and which of them are silent.
#[derive(Debug, Default)]
pub struct Vigil {
    connections: BTreeMap<u32, Option<Silent>>,
    /// When the next probe of other paths is due. Set while all are silent.
    scout_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Silent {
    since: Instant,
    rebound: Option<Instant>,
}

impl Vigil {
    /// Records that a connection carries traffic.
    pub fn attached(&mut self, index: u32) {
        // The exit has just answered on this connection, so not all connections are silent.
        self.connections.insert(index, None);
        self.scout_at = None;
    }

    /// Records that a connection is gone.
    pub fn detached(&mut self, now: Instant, index: u32) {
        self.connections.remove(&index);
        self.plan(now);
    }

    /// Records that a connection became silent, or that the exit answers on it again.
    pub fn answers(&mut self, now: Instant, index: u32, answers: bool) {
        let Some(connection) = self.connections.get_mut(&index) else { return };
        match answers {
            true => *connection = None,
            false => {
                // A repeated report does not restart the measured silence.
                connection.get_or_insert(Silent { since: now, rebound: None });
            }
        }
        self.plan(now);
    }

    /// Whether at least one connection is silent.
    pub fn has_silent(&self) -> bool {
        self.connections.values().any(Option::is_some)
    }

    /// Whether there are connections and all of them are silent.
    pub fn is_silent(&self) -> bool {
        !self.connections.is_empty() && self.connections.values().all(Option::is_some)
    }

    /// Since when all connections are silent.
    pub fn silent_since(&self) -> Option<Instant> {
        let since: Option<Vec<Instant>> =
            self.connections.values().map(|silent| silent.map(|silent| silent.since)).collect();
        since?.into_iter().max()
    }

    /// When [`Self::handle_timeout`] must be called next.
    pub fn timeout(&self) -> Option<Instant> {
        let after = self.patience();
        let rebinds = self.connections.values().flatten().map(|silent| silent.rebind_at(after));
        rebinds.chain(self.scout_at).min()
    }

    /// Returns every action that is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<VigilAction> {
        let after = self.patience();
        let mut actions = Vec::new();
        for (index, connection) in &mut self.connections {
            if let Some(silent) = connection.as_mut().filter(|silent| silent.rebind_at(after) <= now) {
                silent.rebound = Some(now);
                actions.push(VigilAction::Rebind { index: *index });
            }
        }
        if self.scout_at.is_some_and(|at| at <= now) {
            self.scout_at = Some(now + SCOUT_EVERY);
            actions.push(VigilAction::Scout);
        }
        actions
    }

    fn patience(&self) -> Duration {
        if self.is_silent() { REBIND_ALL_AFTER } else { REBIND_AFTER }
    }

    fn plan(&mut self, now: Instant) {
        if !self.is_silent() {
            self.scout_at = None;
        } else if self.scout_at.is_none() {
            self.scout_at = Some(now + SCOUT_AFTER);
        }
    }
}

impl Silent {
    fn rebind_at(&self, after: Duration) -> Instant {
        // While all connections are silent, `after` is longer than `REBIND_EVERY` and also limits how often the ports change.
        self.rebound.map_or(self.since + after, |rebound| rebound + REBIND_EVERY.max(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_silent_connection_gets_another_port_again_and_again() {
        let start = Instant::now();
        let mut vigil = Vigil::default();
        (0..4).for_each(|index| vigil.attached(index));
        vigil.answers(start, 2, false);
        assert_eq!(vigil.timeout(), Some(start + REBIND_AFTER));
        assert_eq!(vigil.handle_timeout(start + REBIND_AFTER), [VigilAction::Rebind { index: 2 }]);
        assert_eq!(vigil.timeout(), Some(start + REBIND_AFTER + REBIND_EVERY));
        vigil.answers(start, 2, true);
        assert_eq!(vigil.timeout(), None);
    }

    #[test]
    fn when_all_are_silent_other_ways_come_before_other_ports() {
        let start = Instant::now();
        let mut vigil = Vigil::default();
        (0..2).for_each(|index| vigil.attached(index));
        vigil.answers(start, 0, false);
        vigil.answers(start, 1, false);
        assert!(vigil.is_silent());
        assert_eq!(vigil.silent_since(), Some(start));
        assert_eq!(vigil.handle_timeout(start + SCOUT_AFTER), [VigilAction::Scout]);
        assert_eq!(vigil.handle_timeout(start + SCOUT_AFTER + SCOUT_EVERY), [VigilAction::Scout]);
        let both = [VigilAction::Rebind { index: 0 }, VigilAction::Rebind { index: 1 }];
        assert_eq!(vigil.handle_timeout(start + REBIND_ALL_AFTER), both);
        vigil.answers(start + REBIND_ALL_AFTER, 1, true);
        assert!(!vigil.is_silent() && vigil.silent_since().is_none());
        assert!(vigil.handle_timeout(start + Duration::from_secs(7)).is_empty());
    }

    proptest! {
        #[test]
        fn answered_connections_are_left_alone(
            steps in proptest::collection::vec((0..4_u32, any::<bool>(), 0..3_000_u64), 0..60),
        ) {
            let mut now = Instant::now();
            let mut vigil = Vigil::default();
            (0..4).for_each(|index| vigil.attached(index));
            let mut silent = [false; 4];
            for (index, answers, wait) in steps {
                vigil.answers(now, index, answers);
                silent[index as usize] = !answers;
                now += Duration::from_millis(wait);
                for action in vigil.handle_timeout(now) {
                    match action {
                        VigilAction::Rebind { index } => prop_assert!(silent[index as usize]),
                        VigilAction::Scout => prop_assert!(silent.iter().all(|silent| *silent)),
                    }
                }
                prop_assert_eq!(vigil.timeout().is_some(), silent.iter().any(|silent| *silent));
                prop_assert!(vigil.timeout().is_none_or(|timeout| timeout > now));
            }
        }
    }
}
