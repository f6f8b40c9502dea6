//! An exit that does not take this client: whose word counts for good, what the host is meanwhile, and who asks again when.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use warren_session::client::Stop;
use warren_session::goodbye::Goodbye;

use super::Daemon;
use warren_config::WhenRefused;
use warren_control::RequestRefused;
use warren_control::status::{RefusedStatus, State};
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::notify;
use warren_tunnel::Forwarding;

/// How often the exits are asked again: an operator who enables a client need not tell its user.
const ASK_EVERY: Duration = Duration::from_secs(300);

/// How many unproven answers, over how long, are told to whoever waits for `up`. One of them is easily forged.
const UNPROVEN_ANSWERS: u32 = 3;
const UNPROVEN_FOR: Duration = Duration::from_secs(2);

/// The last word of the exits, each of which has proven its key. The host stays closed.
pub(super) struct Refused {
    reason: Goodbye,
    sentence: String,
    /// When the exits are asked again; never by itself where that would take the session from another host.
    ask_at: Option<Instant>,
}

/// Answers that anybody on the path can forge, since no exit had connected.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    since: Option<Instant>,
    count: u32,
}

impl Unproven {
    /// Takes one more. Returns whether there were enough of them.
    fn are_many(&mut self, now: Instant) -> bool {
        self.count = self.count.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        self.count >= UNPROVEN_ANSWERS && now.saturating_duration_since(since) >= UNPROVEN_FOR
    }
}

impl Daemon {
    /// Somebody has answered in an exit's place, or the exit is another than the profile says. It is tried again, but whoever waits
    /// for `up` is told once that has gone on for a while.
    pub(super) fn take_unproven(&mut self, sentence: String) {
        if self.unproven.are_many(Instant::now()) && self.is_waited_for() {
            self.last_word = Some(sentence);
        }
    }

    /// Whether the `up` that started this daemon still waits for it. It is told of a refusal by the daemon's end, and the host is as
    /// it was.
    pub(super) fn is_waited_for(&self) -> bool {
        self.is_first_try && self.start.directory.is_being_started()
    }

    /// The exit has no address left. That may pass, but whoever waits for `up` is told.
    pub(super) fn take_empty_pool(&mut self) {
        if self.welcome.is_none() && self.is_waited_for() {
            self.last_word = Some(self.refusal_of(Goodbye::PoolEmpty));
        }
    }

    /// Ends the daemon as one that was refused, if it is to end so.
    pub(super) fn say_last_word(&mut self) -> anyhow::Result<()> {
        match self.last_word.take() {
            Some(sentence) => Err(Failure::new(ExitCode::Refused, sentence).into()),
            None => Ok(()),
        }
    }

    /// Every exit has said a last word. Stays, with the host closed, if the profile wants that.
    pub(super) async fn stays_closed(&mut self, stop: &Stop) -> bool {
        let Stop::Goodbye(reason) = stop else { return false };
        let is_open = self.start.profile.routes.when_refused == WhenRefused::Open;
        if is_open || self.state == State::Stopping || self.is_waited_for() {
            return false;
        }
        self.abort_race().await;
        let (name, sentence) = (&self.start.name, self.refusal_of(*reason));
        let ask_at = (*reason != Goodbye::Replaced).then(|| Instant::now() + ASK_EVERY);
        let again = match ask_at {
            Some(_) => format!("; it is asked again every {} min", ASK_EVERY.as_secs() / 60),
            None => String::new(),
        };
        let is_news = self.refused.as_ref().is_none_or(|refused| refused.sentence != sentence);
        let is_told = self.state == State::Refused && !is_news;
        let news = format!(
            "{sentence}; nothing of what belongs into the tunnel leaves until `warren down {name}`{again}"
        );
        let status = format!("refused: {sentence}");
        self.is_first_try = false;
        self.last_error = None;
        self.unapplied = None;
        self.refused = Some(Refused { reason: *reason, sentence: sentence.clone(), ask_at });
        self.set_state(State::Refused);
        // Closed first, and told afterwards: whoever is told may rely on it.
        self.look_after_host().await;
        match &self.host_trouble {
            // What that is has been said, as it comes before the refusal.
            Some(_) if !is_told => tracing::error!("{sentence}{again}"),
            Some(_) => {}
            None => {
                if !is_told {
                    tracing::error!("{news}");
                }
                notify::status(&status);
            }
        }
        true
    }

    /// Closes a host on which no tunnel stands although every exit has refused.
    ///
    /// # Errors
    /// Why it is open.
    pub(super) async fn close_if_refused(&mut self) -> anyhow::Result<()> {
        if self.refused.is_some()
            && let Some(queues) = self.host.close().await.context("this host is open")?
        {
            self.watch.put_off();
            self.worker.open_device(queues, &Forwarding::Client).await;
        }
        Ok(())
    }

    /// The sentence for a refusal of the exit in use.
    pub(super) fn refusal_of(&self, reason: Goodbye) -> String {
        format!("the exit {} refused: {reason}", self.exits.exit(self.exits.current()).endpoint)
    }

    /// When the exits that refused are to be asked again.
    pub(super) fn asking_due(&self) -> Option<Instant> {
        self.refused.as_ref()?.ask_at
    }

    /// Asks the exits again, the first one first. The state stays until one of them has a session for this client.
    pub(super) async fn ask_again(&mut self) -> anyhow::Result<()> {
        let Some(refused) = &mut self.refused else { return Ok(()) };
        refused.ask_at = refused.ask_at.map(|_| Instant::now() + ASK_EVERY);
        tracing::debug!("asking the exits again");
        // What an earlier attempt has begun.
        self.session.stop(Instant::now());
        self.carry_out_all_but_connects().await?;
        self.exits.forgive();
        self.begin_session(Instant::now());
        Ok(())
    }

    /// A person wants to connect although the exits have refused: reads the profile again first, since that may have been why.
    pub(super) async fn retry(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let answer = self.read_profile().await?;
        if self.refused.is_some() {
            self.ask_again().await.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
            self.refused = None;
            self.set_state(if self.welcome.is_some() { State::Reconnecting } else { State::Connecting });
            notify::status(self.state.name());
        }
        Ok(answer)
    }

    /// What a profile that was read again changes for a client that the exits refused.
    pub(super) async fn follow_when_refused(&mut self) -> anyhow::Result<()> {
        let Some(refused) = &self.refused else { return Ok(()) };
        if self.start.profile.routes.when_refused == WhenRefused::Open {
            self.last_word = Some(refused.sentence.clone());
        } else if refused.reason != Goodbye::Replaced {
            self.ask_again().await?;
        }
        Ok(())
    }

    pub(super) fn refused_status(&self) -> Option<RefusedStatus> {
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
        let mut unproven = Unproven::default();
        // A burst, however large, is none.
        assert!(!(0..1_000).any(|_| unproven.are_many(start)));
        assert!(!unproven.are_many(start + UNPROVEN_FOR / 2));
        assert!(unproven.are_many(start + UNPROVEN_FOR));

        let mut unproven = Unproven::default();
        assert!(!unproven.are_many(start));
        assert!(!unproven.are_many(start + UNPROVEN_FOR), "two are too few");
        assert!(unproven.are_many(start + UNPROVEN_FOR));
    }
}
