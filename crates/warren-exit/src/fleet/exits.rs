//! The exits of the fleet, as the link describes them, and how long each has been behind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_fleet_link::{ExitId, FleetExit, RemovedExit};

#[derive(Debug, Default)]
pub(super) struct Exits {
    list: Vec<FleetExit>,
    /// The removed exits that may still serve.
    removed: Vec<RemovedExit>,
    /// The revision of the latest change of a client, invitation or removed key.
    changed: i64,
    /// The live exits that are behind. Each has the revision of the earliest change that it has not applied, and the time since
    /// when it has been behind.
    waiting: BTreeMap<ExitId, (i64, Instant)>,
}

impl Exits {
    pub(super) fn take(&mut self, now: Instant, changed: i64, list: Vec<FleetExit>) {
        let mut before = std::mem::take(&mut self.waiting);
        for exit in list.iter().filter(|exit| exit.is_alive && exit.applied < changed) {
            // While an exit has not applied an earlier change, later ones do not matter. After a restore, revisions are lower
            // again.
            let still = before
                .remove(&exit.exit)
                .filter(|(revision, _)| exit.applied < *revision && *revision <= changed);
            self.waiting.insert(exit.exit.clone(), still.unwrap_or((changed, now)));
        }
        (self.list, self.changed) = (list, changed);
    }

    /// Records that the store currently reports nothing about the exits, so nobody knows what they have applied.
    pub(super) fn lose(&mut self) {
        self.waiting.clear();
    }

    pub(super) fn set_removed(&mut self, removed: Vec<RemovedExit>) {
        self.removed = removed;
    }

    pub(super) fn removed(&self) -> &[RemovedExit] {
        &self.removed
    }

    pub(super) fn list(&self) -> &[FleetExit] {
        &self.list
    }

    pub(super) fn changed(&self) -> i64 {
        self.changed
    }

    /// Returns how long an exit has been behind. Zero if it has applied all changes or is not alive.
    pub(super) fn behind(&self, exit: &ExitId, now: Instant) -> Duration {
        self.waiting.get(exit).map(|(_, since)| now.saturating_duration_since(*since)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use warren_fleet_link::{ExitState, Load};
    use warren_session::PublicKey;

    use super::*;

    fn exit(name: &str, applied: i64, is_alive: bool) -> FleetExit {
        FleetExit {
            exit: id(name),
            key: PublicKey([7; 32]),
            endpoints: Vec::new(),
            load: Load::default(),
            state: ExitState::Serving,
            applied,
            is_alive,
            clock_offset_ms: 0,
        }
    }

    fn id(name: &str) -> ExitId {
        ExitId::try_from(name.to_owned()).unwrap()
    }

    #[test]
    fn only_an_exit_that_stands_still_is_behind_for_long() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let behind = |exits: &Exits, name: &str, seconds| exits.behind(&id(name), at(seconds)).as_secs();
        let mut exits = Exits::default();
        // There is a change every two seconds. One exit is always two seconds late, one applies nothing, and one is gone.
        for turn in 0..50 {
            let changed = 100 + i64::try_from(turn).unwrap();
            let list = vec![exit("late", changed - 1, true), exit("still", 99, true), exit("gone", 0, false)];
            exits.take(at(2 * turn), changed, list);
            assert!(behind(&exits, "late", 2 * turn) <= 2, "turn {turn}");
        }
        assert_eq!((behind(&exits, "still", 98), behind(&exits, "gone", 98)), (98, 0));
        // The exit that applied nothing catches up. Heartbeats alone put no exit behind.
        for turn in 0..50_i64 {
            exits.take(at(100), 149, vec![exit("late", 149 + turn, true), exit("still", 149, true)]);
            assert_eq!((behind(&exits, "late", 200), behind(&exits, "still", 200)), (0, 0));
        }
        // After a restore, revisions are lower.
        exits.take(at(100), 149, vec![exit("still", 148, true)]);
        exits.take(at(110), 10, vec![exit("still", 9, true)]);
        assert_eq!(behind(&exits, "still", 111), 1);
        exits.lose();
        assert_eq!(behind(&exits, "still", 200), 0);
    }
}
