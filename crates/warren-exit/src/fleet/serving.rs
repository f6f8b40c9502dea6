//! Decides whether the exit serves clients. It stops serving when the store has been silent for too long, or when an operator of
//! any exit drains it. After it has joined a fleet, it serves nobody before it has read the fleet's clients.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use warren_fleet_link::ExitState;
use warren_session::exit::ExitSessions;
use warren_session::goodbye::Goodbye;

use super::file::Kept;

/// The store counts as silent only after this time, even if no silence is allowed, because it answers only every second.
const SHORTEST: Duration = Duration::from_secs(3);

/// How long clients have to leave a stale exit. Then the exit ends their sessions, because one of the clients may have been
/// removed elsewhere.
const LEAVING: Duration = Duration::from_secs(2);

/// Two reported answers that are less than this apart count as the same answer.
const SAME: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Serving {
    /// How long the exit serves after the store's last answer. `None` means without limit.
    limit: Option<Duration>,
    /// When the store answered last, as far back as an `Instant` reaches. A new exit of the fleet begins with its start time.
    heard: Instant,
    /// How much earlier than `heard` the answer was, if an `Instant` does not reach that far.
    before: Duration,
    /// The wall-clock time of the store's last answer, in seconds since 1970. `None` if the store has never answered.
    answered: Option<u64>,
    /// Whether an operator has drained the exit. The operator may have done so at any exit of the fleet.
    is_drained: bool,
    /// Whether the store has said that this exit was removed from the fleet.
    is_removed: bool,
    /// Whether the exit must read the store before it serves anybody.
    must_hear: bool,
    /// Whether the exit sends its clients to other exits because it ends.
    is_ending: bool,
    /// Whether clients are sent to other exits now.
    is_leaving: bool,
    /// When an exit that has become stale ends the sessions of the clients that are still connected.
    cut_off: Option<Instant>,
    is_stale: bool,
}

impl Serving {
    /// The state at the start, with what an earlier run has kept. `age`: the time since the store's last answer.
    pub(super) fn new(limit: Option<Duration>, now: Instant, age: Option<Duration>, kept: &Kept) -> Self {
        Self {
            limit: limit.map(|limit| limit.max(SHORTEST)),
            heard: now,
            before: age.unwrap_or_default(),
            answered: kept.answered,
            is_drained: false,
            is_removed: kept.is_removed,
            must_hear: kept.must_hear,
            is_ending: false,
            is_leaving: false,
            cut_off: None,
            is_stale: false,
        }
    }

    /// Records that the store answered `ago` before now. Returns whether the answer is a new one.
    pub(super) fn heard(&mut self, now: Instant, ago: Duration) -> bool {
        // `ago` belongs to the same answer as before, or to an earlier one, for instance because `warren-fleet` has restarted.
        if self.answered.is_some() && ago.saturating_add(SAME) >= self.silent(now) {
            return false;
        }
        (self.heard, self.before) = (now, ago);
        self.answered = Some(seconds_of(SystemTime::now()).saturating_sub(ago.as_secs()));
        true
    }

    /// Time since the store's last answer.
    pub(super) fn silent(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard).saturating_add(self.before)
    }

    pub(super) fn answered(&self) -> Option<u64> {
        self.answered
    }

    pub(super) fn ask_to_drain(&mut self, on: bool) {
        self.is_drained = on;
    }

    /// Sends the clients to other exits for good.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Sets whether the exit was removed from the fleet. Returns whether this has changed.
    pub(super) fn set_removed(&mut self, is_removed: bool) -> bool {
        std::mem::replace(&mut self.is_removed, is_removed) != is_removed
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Makes the exit serve nobody until it has read the store.
    pub(super) fn read_first(&mut self) {
        self.must_hear = true;
    }

    pub(super) fn must_hear(&self) -> bool {
        self.must_hear
    }

    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Time left until the exit is stale, if the store stays silent.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.silent(now)))
    }

    pub(super) fn state(&self) -> ExitState {
        if self.is_leaving { ExitState::Draining } else { ExitState::Serving }
    }

    /// When [`Self::follow`] must be called even if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let stale =
            self.limit.filter(|_| !self.is_stale).map(|limit| self.heard + limit.saturating_sub(self.before));
        [stale, self.cut_off].into_iter().flatten().min()
    }

    /// Starts or ends draining. `is_back`: whether the registry follows the store again. Returns whether the exit has started
    /// or stopped draining.
    pub(super) fn follow(&mut self, now: Instant, is_back: bool, sessions: &mut ExitSessions) -> bool {
        self.must_hear &= !is_back;
        let is_silent = self.limit.is_some_and(|limit| self.silent(now) >= limit);
        let must_stop = is_silent || self.is_removed || self.must_hear;
        if must_stop && !self.is_stale {
            self.is_stale = true;
            self.cut_off = Some(now + LEAVING);
            if self.is_removed {
                tracing::error!("this exit was removed from its fleet: clients are sent away");
            } else if self.must_hear {
                tracing::warn!(
                    "this exit's copy may have clients that were removed elsewhere: clients are sent away until it has read the fleet's store"
                );
            } else {
                tracing::error!(
                    "the fleet's store has not answered for {} s: clients are sent away until it does (max_staleness in [fleet])",
                    self.silent(now).as_secs()
                );
            }
        } else if self.is_stale && is_back && !must_stop {
            (self.is_stale, self.cut_off) = (false, None);
            tracing::info!("the fleet's store answers again: clients are accepted again");
        }
        let is_leaving = self.is_stale || self.is_drained || self.is_ending;
        let has_changed = self.is_leaving != is_leaving;
        if has_changed && is_leaving {
            tracing::info!("draining: clients are told to move to another exit");
            sessions.drain(now);
        } else if has_changed {
            sessions.serve_again();
        }
        self.is_leaving = is_leaving;
        // The sessions of the remaining clients end with the same reason that was given to clients that left, so these clients
        // also go to another exit.
        if self.cut_off.is_some_and(|at| at <= now) {
            self.cut_off = None;
            sessions.shutdown(now, Goodbye::Draining);
        }
        has_changed
    }
}

/// Seconds since 1970.
pub(super) fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
