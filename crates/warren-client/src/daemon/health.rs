//! Owns the tunnel's state as users see it: whether it is up, its problems, and which messages were already logged.

mod diagnosis;
mod refusal;
mod repeated_warnings;

use std::time::{Duration, Instant};

use warren_session::goodbye::Goodbye;

pub(super) use self::diagnosis::Diagnosis;
pub(super) use self::refusal::Refusal;
use self::repeated_warnings::RepeatedWarnings;
use super::connections::Connections;
use crate::diagnose::{Cause, Certainty};
use warren_config::Endpoint;
use warren_control::status::State;
use warren_daemon::notify;

/// The tunnel's state, for the status, the log and the service manager.
pub(super) struct Health {
    state: State,
    since: Instant,
    /// A problem on the host that could not be repaired.
    host_trouble: Option<Trouble>,
    pub(super) reconnects: u64,
    pub(super) last_error: Option<String>,
    /// Why the latest reload changed nothing.
    pub(super) reload_error: Option<String>,
    warnings: RepeatedWarnings,
    pub(super) diagnosis: Diagnosis,
    pub(super) refusal: Refusal,
    /// Whether an attempt to connect has failed since traffic last flowed.
    has_failed: bool,
    /// Why no exit's name could be resolved. A diagnosis may find that this host has no network.
    unresolved: Option<String>,
}

/// A problem on the host.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) sentence: String,
    pub(super) since: Instant,
}

impl Health {
    pub(super) fn new(refusal: Refusal) -> Self {
        Self {
            state: State::Connecting,
            since: Instant::now(),
            host_trouble: None,
            reconnects: 0,
            last_error: None,
            reload_error: None,
            warnings: RepeatedWarnings::default(),
            diagnosis: Diagnosis::default(),
            refusal,
            has_failed: false,
            unresolved: None,
        }
    }

    /// Whether the session in use carries packets. Problems on the host are not considered.
    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// The state of the session. Problems on the host are not considered.
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// The state that users see, and since when. Trouble on the host takes precedence over the session's state.
    pub(super) fn shown_state(&self) -> (State, Instant) {
        match &self.host_trouble {
            Some(trouble) if self.state != State::Stopping => (State::Error, trouble.since),
            _ => (self.state, self.since),
        }
    }

    /// The problem on the host, if there is one.
    pub(super) fn host_trouble(&self) -> Option<&str> {
        self.host_trouble.as_ref().map(|trouble| trouble.sentence.as_str())
    }

    pub(super) fn set_state(&mut self, state: State) {
        // `since` is the start of the state. A failed attempt sets the same state again, which must not change its start.
        if self.state != state {
            self.state = state;
            self.since = Instant::now();
        }
    }

    /// Records that traffic flows.
    pub(super) fn up(&mut self, endpoint: &Endpoint) {
        tracing::info!("connected to {endpoint}");
        self.set_state(State::Up);
        self.has_failed = false;
        self.unresolved = None;
        self.refusal.over();
        self.last_error = None;
        self.diagnosis.forget_cause();
        self.warnings.forget();
        // Tells a waiting `up` or systemd. Later calls change only the status.
        notify::ready("connected");
    }

    /// Records that the session in use has no connection left, or that another attempt to open one has failed. `had_session`
    /// says whether an exit has granted a session. If another attempt would hardly succeed, tells a waiting `up`.
    pub(super) fn lost(
        &mut self,
        reason: String,
        goodbye: Option<Goodbye>,
        connections: &Connections,
        had_session: bool,
    ) {
        let is_only_exit = connections.exits.count() == 1;
        match goodbye {
            Some(Goodbye::PoolEmpty) if !had_session => {
                self.refusal.take_empty_pool(|| connections.refusal_of(Goodbye::PoolEmpty));
            }
            None if !connections.exits.have_addresses() => self.unresolved = Some(reason.clone()),
            // The exit has proven its key, so this is the exit's own answer. This client cannot use the exit.
            Some(Goodbye::Protocol(_)) => self.refusal.give_up(reason.clone()),
            Some(Goodbye::Draining) if is_only_exit => {
                self.refusal.give_up(connections.refusal_of(Goodbye::Draining));
            }
            _ => {}
        }
        self.down(reason, goodbye);
    }

    /// Sets the state to down, because no connection carries traffic or another attempt to open one has failed.
    fn down(&mut self, reason: String, goodbye: Option<Goodbye>) {
        if self.state == State::Up {
            // Counts only the loss of a tunnel that was up, not each attempt to restore it.
            self.reconnects += 1;
            tracing::info!("connection to the exit lost: {reason}");
            self.set_state(State::Reconnecting);
        } else {
            self.warn(&reason);
        }
        self.has_failed = true;
        // A Goodbye contains the exit's own reason. Without a Goodbye, the result of a recent diagnosis is more precise than
        // `reason`.
        let cause = self.diagnosis.recent_cause().filter(|_| goodbye.is_none());
        self.unreachable(cause.map_or(reason, |cause| cause.sentence.clone()));
    }

    /// Records the result of a diagnosis: why the exit does not answer.
    pub(super) fn diagnosed(&mut self, cause: Option<Cause>) {
        let Some(cause) = cause.filter(|_| self.state != State::Up) else { return };
        self.warn(&cause.sentence);
        self.diagnosis.set_cause(cause.clone());
        self.unreachable(cause.sentence);
    }

    /// If the reason is known, tells it to a waiting `up`, so that its user need not wait for the timeout. `exits` is the
    /// number of exits in the profile.
    pub(super) fn tell_known_cause(&mut self, exits: usize) {
        let known = match self.diagnosis.recent_cause() {
            Some(cause) => self.is_known(cause, exits).then(|| cause.sentence.clone()),
            None if self.diagnosis.is_running() => None,
            None => self.unresolved.clone(),
        };
        if let Some(sentence) = known.filter(|_| self.state != State::Up) {
            self.refusal.give_up(sentence);
        }
    }

    fn is_known(&self, cause: &Cause, exits: usize) -> bool {
        // Anybody on the path can forge an answer from the exit's address, so a single packet must not end an attempt. If something
        // answers with another key than the exit's, `Refusal::take_unproven` reports that.
        let is_too_early = self.since.elapsed() < SLOW_AFTER || self.refusal.has_unproven();
        match cause.certainty {
            Certainty::Here => true,
            Certainty::AtAddress if is_too_early => false,
            // Until an attempt has failed, not all exits were tried, and another one may still answer.
            Certainty::AtAddress => exits == 1 || self.has_failed,
            // The exit may be reachable over a path that merely loses many packets, so the next attempt may succeed.
            Certainty::Likely | Certainty::Unknown => false,
        }
    }

    fn unreachable(&mut self, cause: String) {
        // While the exits refuse, the status shows the refusal rather than a failed attempt.
        if !self.refusal.is_refused() {
            notify::status(&format!("cannot reach the exit: {cause}"));
        }
        self.last_error = Some(cause);
    }

    /// Records that every connection is silent. The exit may still answer on them later.
    pub(super) fn silent(&mut self, endpoint: &Endpoint) {
        if self.state != State::Up {
            return;
        }
        let sentence = format!("{endpoint} no longer answers; looking for another way to it");
        tracing::info!("{sentence}");
        notify::status(&sentence);
        self.last_error = Some(sentence);
        self.set_state(State::Reconnecting);
    }

    /// Records that the client leaves the exit in use for another.
    pub(super) fn moves(&mut self) {
        if self.state == State::Up {
            self.reconnects += 1;
            self.set_state(State::Reconnecting);
        }
    }

    /// Records that every exit has refused for good. Returns whether that was reported before.
    pub(super) fn refused(&mut self, now: Instant, reason: Goodbye, sentence: String) -> bool {
        let is_told = self.state == State::Refused && self.refusal.says(&sentence);
        self.refusal.refuse(now, reason, sentence);
        self.last_error = None;
        self.set_state(State::Refused);
        is_told
    }

    /// Reports that the exits have refused. Call this only once the host's traffic is blocked, because users rely on the
    /// message.
    pub(super) fn say_refusal(&self, profile: &str, is_told: bool) {
        let Some((sentence, again)) = self.refusal.sentences() else { return };
        if self.host_trouble.is_none() {
            if !is_told {
                tracing::error!(
                    "{sentence}; the tunnel's traffic is blocked until `warren down {profile}`{again}"
                );
            }
            notify::status(&format!("refused: {sentence}"));
        } else if !is_told {
            // The refusal is only logged. The status shows the problem on the host, which takes precedence.
            tracing::error!("{sentence}{again}");
        }
    }

    /// Records that the tunnel rests on a trusted network. For a waiting `up`, this is a success.
    pub(super) fn rests(&mut self, network: &str) {
        self.set_state(State::Resting);
        self.refusal.over();
        self.has_failed = false;
        self.last_error = None;
        self.diagnosis.forget_cause();
        notify::ready(&format!("resting on the trusted network {network}"));
    }

    /// Records that the tunnel no longer rests.
    pub(super) fn goes_on(&mut self) {
        self.set_state(State::Connecting);
        notify::status(self.state.name());
    }

    /// Records that the client has given the session up.
    pub(super) fn session_given_up(&mut self, why: &str) {
        if !self.refusal.is_refused() {
            self.set_state(State::Reconnecting);
            self.last_error = Some(why.to_owned());
            notify::status(why);
        }
    }

    /// Whether the tunnel has been down for so long that a diagnosis should start while the attempt to connect is still under
    /// way.
    pub(super) fn is_slow(&self, had_session: bool) -> bool {
        let is_waited_for = match self.state {
            State::Connecting => !had_session,
            State::Reconnecting => true,
            State::Up | State::Resting | State::Refused | State::Error | State::Stopping => false,
        };
        is_waited_for && self.since.elapsed() >= SLOW_AFTER
    }

    /// Logs why the exit cannot be reached. The same reason is logged less and less often.
    fn warn(&mut self, sentence: &str) {
        if self.warnings.is_due(Instant::now(), sentence) {
            tracing::info!("cannot reach the exit: {sentence}");
        }
    }

    /// Records a problem on the host, and reports changes. Returns whether to check the host again soon.
    pub(super) fn note_host_trouble(&mut self, trouble: Option<String>) -> bool {
        if self.host_trouble() != trouble.as_deref() {
            match &trouble {
                Some(sentence) => {
                    tracing::error!("{sentence}");
                    notify::status(sentence);
                }
                None => {
                    tracing::info!("the host is in order again");
                    // Users see the session's state again from now on.
                    self.since = Instant::now();
                    notify::status(self.state.name());
                }
            }
        }
        // If only the message changes, for instance because a second problem appears, the time of the first problem stays.
        let since = self.host_trouble.as_ref().map_or_else(Instant::now, |known| known.since);
        self.host_trouble = trouble.map(|sentence| Trouble { sentence, since });
        self.host_trouble.is_some() && self.state != State::Stopping
    }
}

/// An attempt to connect that takes longer than this is diagnosed before it ends. An attempt that succeeds takes a fraction of
/// this.
const SLOW_AFTER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use warren_daemon::daemon_directory::DaemonDirectory;

    use super::*;

    #[test]
    fn trouble_on_the_host_hides_the_state_of_the_session_until_it_stops() {
        let mut health = health();
        health.up(&"192.0.2.1:443".parse().unwrap());

        assert!(health.note_host_trouble(Some("no device".to_owned())), "the host is checked again");
        assert_eq!((health.shown_state().0, health.state()), (State::Error, State::Up));
        health.set_state(State::Stopping);
        assert_eq!(health.shown_state().0, State::Stopping);
        assert!(!health.note_host_trouble(None));
    }

    #[test]
    fn lost_tunnel_counts_as_one_reconnect_however_many_attempts_fail() {
        let mut health = health();
        health.up(&"192.0.2.1:443".parse().unwrap());

        (0..3).for_each(|_| health.down("no answer".to_owned(), None));

        assert_eq!((health.reconnects, health.state()), (1, State::Reconnecting));
        assert_eq!(health.last_error.as_deref(), Some("no answer"));
    }

    #[test]
    fn a_cause_is_known_once_no_exit_of_the_profile_can_answer_any_more() {
        let cause = |certainty| Cause { sentence: String::new(), certainty };
        let mut health = health();
        let known = |health: &Health, exits| {
            use Certainty::{AtAddress, Here, Likely, Unknown};
            [Here, AtAddress, Likely, Unknown].map(|certainty| health.is_known(&cause(certainty), exits))
        };
        assert_eq!(known(&health, 1), [true, false, false, false], "all other answers can be forged");
        let two_seconds_ago = Instant::now().checked_sub(SLOW_AFTER).unwrap();
        health.since = two_seconds_ago;
        assert_eq!(known(&health, 1), [true, true, false, false]);
        assert_eq!(known(&health, 2), [true, false, false, false]);

        health.down("no answer".to_owned(), None);

        assert_eq!(known(&health, 2), [true, true, false, false], "all of them were tried");
        health.refusal.take_unproven(Instant::now(), String::new());
        assert_eq!(known(&health, 2), [true, false, false, false], "somebody answers");
        health.refusal.proven();
        health.up(&"192.0.2.1:443".parse().unwrap());
        health.since = two_seconds_ago;
        assert_eq!(known(&health, 2), [true, false, false, false]);
    }

    #[test]
    fn same_refusal_is_news_once() {
        let mut health = health();
        let mut refuse =
            |sentence: &str| health.refused(Instant::now(), Goodbye::Revoked, sentence.to_owned());

        assert!(!refuse("revoked"));
        assert!(refuse("revoked"));
        assert!(!refuse("disabled"));
    }

    fn health() -> Health {
        Health::new(Refusal::new(DaemonDirectory::new(std::path::Path::new("/nonexistent"), "home")))
    }
}
