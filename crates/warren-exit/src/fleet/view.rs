//! The state of the fleet, for the status, the metrics, the page, and the answers to operators.

use std::time::{Duration, Instant, SystemTime};

use warren_control::status::{FleetExitStatus, FleetStatus};
use warren_fleet_link::{ExitState, FleetExit, RemovedExit, StoreCertificate, StoreLink};
use warren_session::exit::StoreRequestId;

use super::serving::seconds_of;
use super::{Fleet, Verdict};

/// Which other exits have applied a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// How many exits have applied the revision, including this exit.
    pub(crate) heard: usize,
    /// The names of live exits that have not applied the revision.
    pub(crate) waiting: Vec<String>,
    /// The names of exits that have not applied the revision and are not alive, and of removed exits that may still serve.
    pub(crate) dead: Vec<String>,
}

impl Fleet {
    /// Begins to wait for the outcome of a request.
    pub(crate) fn watch(&mut self, id: StoreRequestId) {
        self.requests.watch(id);
    }

    /// Returns the outcome of a watched request so far.
    pub(crate) fn verdict(&self, id: StoreRequestId) -> Verdict {
        self.requests.verdict(id)
    }

    /// Stops waiting for a request.
    pub(crate) fn forget(&mut self, id: StoreRequestId) {
        self.requests.forget(id);
    }

    /// The latest revision of the store whose changes are in the registry.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns which exits have applied a revision.
    pub(crate) fn heard(&self, revision: i64) -> Heard {
        // The count begins at 1, because this exit itself has applied the revision.
        let mut heard = Heard { heard: 1, ..Heard::default() };
        for exit in self.others() {
            let name = exit.exit.to_string();
            match (exit.applied >= revision, exit.is_alive) {
                (true, _) => heard.heard += 1,
                (false, true) => heard.waiting.push(name),
                (false, false) => heard.dead.push(name),
            }
        }
        let now = self.earliest_time();
        for RemovedExit { exit, until } in self.exits.removed() {
            let until = until.map(|until| u64::try_from(until).unwrap_or_default());
            if until.is_none_or(|until| until > now) {
                let when = match until {
                    Some(until) => format!("for another {} min", until.saturating_sub(now).div_ceil(60)),
                    None => "for good".to_owned(),
                };
                heard
                    .dead
                    .push(format!("{exit} (removed from the fleet, but may still serve its clients {when})"));
            }
        }
        heard
    }

    /// The earliest time that the fleet's clocks may show, in seconds since 1970. A clock that is ahead must not say that a removed
    /// exit has stopped.
    fn earliest_time(&self) -> u64 {
        // In a fleet of two, an exit is told only half of the difference between the two clocks, so it counts twice.
        let ahead = 2 * (self.clock_offset_ms / 1_000).max(0);
        seconds_of(SystemTime::now()).saturating_sub(ahead.unsigned_abs())
    }

    /// The answer to an operator whose change does not reach the store.
    pub(crate) fn refusal(&self) -> String {
        if self.is_removed() {
            return "this exit was removed from its fleet; nothing was changed; run `warren fleet leave` here, and make the change at another \
                    exit"
                .to_owned();
        }
        let (what, until) = match &self.store {
            StoreLink::Refused { .. } => ("must not be used", "can be used again"),
            StoreLink::Reachable | StoreLink::Away { .. } => ("does not answer", "is back"),
        };
        format!(
            "the fleet's store {what} ({}); nothing was changed. You can still remove and disable clients; this reaches the other exits when the \
             store {until}",
            self.why_away()
        )
    }

    fn others(&self) -> impl Iterator<Item = &FleetExit> {
        self.exits.list().iter().filter(|exit| exit.exit.as_str() != self.settings.name)
    }

    /// The fleet's status. `stays_refused` comes from the sessions' state machine.
    pub(crate) fn status(&self, stays_refused: u64) -> FleetStatus {
        let now = Instant::now();
        let store = match &self.store {
            // The link comes first: without it, nothing else is known about the store.
            _ if self.link.is_none() => "no_link",
            StoreLink::Reachable if self.follows => "reachable",
            StoreLink::Reachable => "reading",
            StoreLink::Away { .. } => "away",
            StoreLink::Refused { .. } => "refused",
        };
        FleetStatus {
            name: self.settings.name.clone(),
            store: store.to_owned(),
            reason: (store != "reachable").then(|| self.why_away()),
            silent_seconds: self.serving.silent(now).as_secs_f64(),
            max_staleness_seconds: self.settings.max_staleness.map(|time| time.as_secs()),
            stale_in_seconds: self.serving.left(now).map(|left| left.as_secs_f64()),
            is_stale: self.serving.is_stale(),
            is_removed: self.serving.is_removed(),
            is_draining: self.serving.state() == ExitState::Draining,
            is_drained_by_operator: self.serving.is_drained(),
            revision: self.revision,
            changed: self.exits.changed(),
            clock_offset_ms: self.clock_offset_ms,
            is_clock_wrong: self.is_clock_wrong(),
            requests: [
                ("stored", self.counts.stored),
                ("conflict", self.counts.conflicts),
                ("unavailable", self.counts.unavailable),
            ]
            .map(|(outcome, count)| (outcome.to_owned(), count))
            .into(),
            requests_open: self.requests.open(),
            stays_refused,
            roster_bytes: self.around.roster_bytes,
            exits: self
                .exits
                .list()
                .iter()
                .map(|exit| exit_status(exit, self.exits.behind(&exit.exit, now)))
                .collect(),
            operations: self
                .requests
                .took()
                .map(|(operation, took)| (operation.name().to_owned(), (took.time.as_secs_f64(), took.count)))
                .collect(),
            certificate_days: self
                .around
                .certificates
                .iter()
                .map(|certificate| (certificate.name.clone(), days_left(certificate, SystemTime::now())))
                .collect(),
        }
    }
}

/// Days until a certificate expires.
fn days_left(certificate: &StoreCertificate, now: SystemTime) -> f64 {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    (certificate.expires as f64 - now) / 86_400.0
}

fn exit_status(exit: &FleetExit, behind: Duration) -> FleetExitStatus {
    FleetExitStatus {
        name: exit.exit.to_string(),
        state: match (exit.is_alive, exit.state) {
            (false, _) => "gone",
            (true, ExitState::Serving) => "serving",
            (true, ExitState::Draining) => "draining",
        }
        .to_owned(),
        sessions: exit.load.sessions,
        max_sessions: exit.load.max_sessions,
        bits_per_second: exit.load.bits_per_second,
        cores: exit.load.cores,
        revision: exit.applied,
        behind_seconds: behind.as_secs_f64(),
        clock_offset_ms: exit.clock_offset_ms,
        endpoints: exit.endpoints.clone(),
    }
}
