//! Owns the exits' refusals, and the messages for a waiting `up`. Refusals are reported to the `up` that started this daemon.
//! Without such an `up`, they are in the log and the status.

use std::time::{Duration, Instant};

use warren_session::client::Stop;
use warren_session::goodbye::Goodbye;

use crate::exits::ASK_AGAIN_AFTER;
use warren_config::WhenRefused;
use warren_control::status::{RefusedStatus, State};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::exit_code::{ExitCode, Failure};

/// A waiting `up` is told of unproven answers after this many of them, if they were spread over [`UNPROVEN_FOR`]. A single answer
/// is easily forged.
const UNPROVEN_ANSWERS: u32 = 3;
const UNPROVEN_FOR: Duration = Duration::from_secs(2);

/// The exits' refusals, and answers that others may have forged.
pub(in crate::daemon) struct Refusal {
    directory: DaemonDirectory,
    /// Whether an `up` has started this daemon, no traffic has flowed yet, and not every exit has refused.
    is_first_try: bool,
    refused: Option<Refused>,
    unproven: UnprovenAnswers,
    /// The error with which the daemon will end, if it is to end.
    last_word: Option<Failure>,
}

/// The state after every exit has refused. Each exit has proven its key. The tunnel's traffic stays blocked.
struct Refused {
    reason: Goodbye,
    sentence: String,
    /// When to ask the exits again. `None` if a new session would replace that of another host.
    ask_at: Option<Instant>,
}

/// Answers that anybody on the path can forge, because no exit has proven its key yet.
#[derive(Debug, Default)]
struct UnprovenAnswers {
    since: Option<Instant>,
    count: u32,
}

impl UnprovenAnswers {
    /// Counts one more answer. Returns whether there have been enough of them to tell a waiting `up`.
    fn are_many(&mut self, now: Instant) -> bool {
        self.count = self.count.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        self.count >= UNPROVEN_ANSWERS && now.saturating_duration_since(since) >= UNPROVEN_FOR
    }
}

impl Refusal {
    pub(in crate::daemon) fn new(directory: DaemonDirectory) -> Self {
        let is_first_try = directory.is_being_started();
        Self { directory, is_first_try, refused: None, unproven: UnprovenAnswers::default(), last_word: None }
    }

    /// Whether the `up` that started this daemon still waits. The daemon then reports a refusal by ending, which leaves the host as
    /// it was before.
    pub(in crate::daemon) fn is_waited_for(&self) -> bool {
        self.is_first_try && self.directory.is_being_started()
    }

    /// Whether every exit has refused.
    pub(in crate::daemon) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Handles an answer that is not proven to be the exit's: another key, or another protocol. The daemon keeps trying. But if
    /// such answers continue for a while and an `up` waits, the daemon ends with this message.
    pub(in crate::daemon) fn take_unproven(&mut self, now: Instant, sentence: String) {
        if self.unproven.are_many(now) && self.is_waited_for() {
            self.last_word = Some(Failure::new(ExitCode::Refused, sentence));
        }
    }

    /// If an `up` waits, makes the daemon end with this message about why no exit can be reached, even though the cause may be
    /// temporary.
    pub(in crate::daemon) fn give_up(&mut self, sentence: String) {
        if self.last_word.is_none() && self.is_waited_for() {
            self.last_word = Some(Failure::new(ExitCode::TimedOut, sentence));
        }
    }

    /// Whether an unproven answer has come since an exit last proved its key.
    pub(super) fn has_unproven(&self) -> bool {
        self.unproven.count > 0
    }

    /// Forgets the unproven answers, because an exit has proven its key.
    pub(in crate::daemon) fn proven(&mut self) {
        self.unproven = UnprovenAnswers::default();
    }

    /// If an `up` waits, makes the daemon end with a message that the exit has no free address, even though that may be
    /// temporary.
    pub(in crate::daemon) fn take_empty_pool(&mut self, sentence: impl FnOnce() -> String) {
        if self.is_waited_for() {
            self.last_word = Some(Failure::new(ExitCode::Refused, sentence()));
        }
    }

    /// Returns the exits' reason if the daemon must keep running with the tunnel's traffic blocked. `None` if the daemon must
    /// end.
    pub(in crate::daemon) fn stays_for(
        &self,
        stop: &Stop,
        when_refused: WhenRefused,
        state: State,
    ) -> Option<Goodbye> {
        let Stop::Goodbye(reason) = stop else { return None };
        let ends = when_refused == WhenRefused::Open || state == State::Stopping || self.is_waited_for();
        (!ends).then_some(*reason)
    }

    /// Records that every exit has refused for good.
    pub(super) fn refuse(&mut self, now: Instant, reason: Goodbye, sentence: String) {
        // After `Replaced`, asking would take the session from the host that has it now, and that host would take it back.
        let ask_at = (reason != Goodbye::Replaced).then(|| now + ASK_AGAIN_AFTER);
        self.is_first_try = false;
        self.refused = Some(Refused { reason, sentence, ask_at });
    }

    /// Whether the exits have refused with this message.
    pub(super) fn says(&self, sentence: &str) -> bool {
        self.refused.as_ref().is_some_and(|refused| refused.sentence == sentence)
    }

    /// The refusal, and the end of the message that says when the exits are asked again.
    pub(super) fn sentences(&self) -> Option<(&str, String)> {
        let Refused { sentence, ask_at, .. } = self.refused.as_ref()?;
        let again = match ask_at {
            Some(_) => format!("; the exit is asked again every {} min", ASK_AGAIN_AFTER.as_secs() / 60),
            None => String::new(),
        };
        Some((sentence, again))
    }

    /// When to ask the exits again.
    pub(in crate::daemon) fn asking_due(&self) -> Option<Instant> {
        self.refused.as_ref()?.ask_at
    }

    /// Records that the exits are asked now. The next time is after the usual interval. Returns false if no refusal is in force.
    pub(in crate::daemon) fn asking(&mut self, now: Instant) -> bool {
        let Some(refused) = &mut self.refused else { return false };
        // `None` stays `None`, because after `Replaced` the exits are asked only when a person wants that.
        refused.ask_at = refused.ask_at.map(|_| now + ASK_AGAIN_AFTER);
        true
    }

    /// Applies a profile that was read again. Returns whether to ask the exits now, because the old profile may have been the
    /// reason for the refusal.
    pub(in crate::daemon) fn follow(&mut self, when_refused: WhenRefused) -> bool {
        let Some(refused) = &self.refused else { return false };
        // With `when_refused = "open"`, a refused daemon ends, and the host's traffic is no longer blocked.
        if when_refused == WhenRefused::Open {
            self.last_word = Some(Failure::new(ExitCode::Refused, refused.sentence.clone()));
            return false;
        }
        // Asking would take the session back from the host that has it now.
        refused.reason != Goodbye::Replaced
    }

    /// Forgets the refusal, because a person wants to try again.
    pub(in crate::daemon) fn forget(&mut self) {
        self.refused = None;
    }

    /// Ends the refusal and the first try, because traffic flows.
    pub(super) fn over(&mut self) {
        self.is_first_try = false;
        self.refused = None;
    }

    /// Returns the error with which the daemon must end, if there is one.
    ///
    /// # Errors
    /// The message for `up`: [`ExitCode::Refused`] if an exit has refused, [`ExitCode::TimedOut`] if no exit can be reached.
    pub(in crate::daemon) fn say_last_word(&mut self) -> anyhow::Result<()> {
        self.last_word.take().map_or(Ok(()), |failure| Err(failure.into()))
    }

    pub(in crate::daemon) fn status(&self) -> Option<RefusedStatus> {
        let Refused { reason, sentence, ask_at } = self.refused.as_ref()?;
        let again = ask_at.map(|at| at.saturating_duration_since(Instant::now()).as_secs_f64());
        Some(RefusedStatus {
            reason: reason.name().to_owned(),
            message: sentence.clone(),
            asked_again_in_seconds: again,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unproven_answers_count_only_once_they_have_gone_on_for_a_while() {
        let start = Instant::now();
        let mut unproven = UnprovenAnswers::default();
        // A burst does not count, however large it is.
        assert!(!(0..1_000).any(|_| unproven.are_many(start)));
        assert!(!unproven.are_many(start + UNPROVEN_FOR / 2));
        assert!(unproven.are_many(start + UNPROVEN_FOR));

        let mut unproven = UnprovenAnswers::default();
        assert!(!unproven.are_many(start));
        assert!(!unproven.are_many(start + UNPROVEN_FOR), "two are too few");
        assert!(unproven.are_many(start + UNPROVEN_FOR));
    }

    #[test]
    fn daemon_that_nobody_waits_for_stays_closed_unless_the_profile_opens_the_host() {
        let refusal = refusal();
        let removed = Stop::Goodbye(Goodbye::Revoked);

        let stays = |stop, when_refused, state| refusal.stays_for(stop, when_refused, state);

        assert_eq!(stays(&removed, WhenRefused::Closed, State::Up), Some(Goodbye::Revoked));
        assert_eq!(stays(&removed, WhenRefused::Open, State::Up), None);
        assert_eq!(stays(&removed, WhenRefused::Closed, State::Stopping), None);
        assert_eq!(stays(&Stop::Requested, WhenRefused::Closed, State::Up), None);
    }

    #[test]
    fn exits_are_asked_again_unless_another_host_has_the_session() {
        let (mut refusal, now) = (refusal(), Instant::now());

        refusal.refuse(now, Goodbye::Revoked, "revoked".to_owned());
        assert_eq!(refusal.asking_due(), Some(now + ASK_AGAIN_AFTER));
        assert!(refusal.follow(WhenRefused::Closed));

        refusal.refuse(now, Goodbye::Replaced, "replaced".to_owned());
        assert_eq!(refusal.asking_due(), None);
        assert!(refusal.asking(now) && refusal.asking_due().is_none());
        assert!(!refusal.follow(WhenRefused::Closed));
        assert!(refusal.say_last_word().is_ok());
        assert!(!refusal.follow(WhenRefused::Open) && refusal.say_last_word().is_err());
    }

    /// The refusal state of a daemon without a waiting `up`.
    fn refusal() -> Refusal {
        Refusal::new(DaemonDirectory::new(std::path::Path::new("/nonexistent"), "home"))
    }
}
