//! A client's moves to other exits of its fleet, without I/O: when the new session takes over, and which of the two sessions ends.
//!
//! The caller owns the sessions. It reports its observations ([`Watched`]), and asks for the next [`Step`] after each event and
//! at the time [`Moves::due`]. The answer to an echo through a session proves that the session carries packets.

use std::time::{Duration, Instant};

use crate::planted_moves::{Bug, is_planted};

/// If the new exit's session does not carry packets within this time, the move is given up.
const BUILD_WITHIN: Duration = Duration::from_secs(10);
/// How long the switch waits for the new session's other connections once one of them carries packets.
const ATTACH_WITHIN: Duration = Duration::from_secs(1);
/// Delay before another attempt to send an echo that could not be sent.
const PROBE_AGAIN: Duration = Duration::from_millis(500);
/// A session that could not be proven before the switch must carry packets within this time after the switch.
const TRY_FOR: Duration = Duration::from_secs(3);
/// How often to check whether the old session still has flows.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The old session is kept for this long even if no flow uses it: a program may be silent for a while.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// The old session is kept no longer than this. The old exit may end the session earlier.
const LONGEST: Duration = Duration::from_secs(600);
/// The old session is lost if none of its connections is answered for this long, while the other session is answered.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// Delay before another attempt to leave an exit.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// After a move, no move to a better exit begins within this time. After a failed move, no move to the same exit begins within
/// this time.
const PAUSE: Duration = Duration::from_secs(600);

/// One of the client's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The session in use.
    InUse,
    /// The other session while the client moves: the new session until it carries packets, and then the old one.
    Beside,
}

/// The caller's observations of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watched {
    /// Whether a connection is attached.
    pub is_up: bool,
    /// Whether all connections that the exit has granted are attached.
    pub has_all: bool,
    /// Since when all attached connections have been unanswered. `None` if any is answered.
    pub silent_since: Option<Instant>,
}

/// The caller's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The exit in use asks the client to leave: look for another exit.
    Race,
    /// Send an echo through a session, and report the result with [`Moves::answered`] or [`Moves::unanswered`].
    Probe(Which),
    /// Let the sessions change places, and call [`Moves::switched`].
    Switch,
    /// Let the sessions change places again, then end the new one. The old one continues. Call [`Moves::give_up`] before that.
    SwitchBack(&'static str),
    /// End the new session. The one in use continues. Call [`Moves::give_up`] before that.
    GiveUp(&'static str),
    /// End the old session, and call [`Moves::end`].
    End(&'static str),
}

/// The consequence of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// Flows that began before the switch finish at the old exit.
    Leaving,
    /// The new session has other addresses, so it could not be proven before the switch. It is on trial.
    Trying,
}

/// The client's moves.
#[derive(Debug, Default)]
pub struct Moves {
    under_way: Option<Move>,
    /// When to look for another exit, because the exit in use sends its clients to other exits.
    leave_at: Option<Instant>,
    /// Until this time, no move to a better exit begins.
    rests_until: Option<Instant>,
    /// An exit that did not grant a session, and a time. Until that time, the client moves there only if the exit in use asks for a
    /// move.
    failed: Option<(usize, Instant)>,
    in_use: Proof,
    beside: Proof,
}

#[derive(Debug)]
struct Move {
    stage: Stage,
    /// The new exit's place in the caller's list of exits.
    place: usize,
    /// Whether the exit in use has asked for the move.
    is_asked: bool,
    /// Whether the new exit gives this client the same addresses. If not, no flow can finish at the old exit. `None` before the new
    /// exit's Welcome.
    keeps_addresses: Option<bool>,
    /// When the new session was first seen with a connection.
    attached: Option<Instant>,
    /// When an echo may be sent next.
    probe_at: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The new session is beside the one in use.
    Building { until: Instant },
    /// The session in use is new and has not carried a packet yet. The old session is beside it.
    Trying { until: Instant },
    /// The session in use is new and carries packets. The old session is beside it.
    Leaving { since: Instant, look_at: Instant },
}

/// Whether a session is known to carry packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Proof {
    #[default]
    Missing,
    /// An echo is under way.
    Asked,
    Given(Instant),
}

impl Moves {
    /// Records that the exit in use sends its clients to other exits of the fleet. The client looks for another exit after a
    /// `pause`, because many clients leave at once and should not all reach the other exits at the same moment. Returns whether
    /// the request is new.
    pub fn asked_to_leave(&mut self, now: Instant, pause: Duration) -> bool {
        if let Some(moved) = self.under_way.as_mut().filter(|moved| moved.is_building()) {
            // The client is leaving already. If the move fails, it tries again.
            return !std::mem::replace(&mut moved.is_asked, true);
        }
        let is_news = self.leave_at.is_none();
        self.leave_at.get_or_insert(now + pause);
        is_news
    }

    /// Forgets that an exit has asked its clients to leave, because another session has begun.
    pub fn stay(&mut self) {
        self.leave_at = None;
    }

    /// Whether a move to a better exit may begin.
    pub fn may_improve(&self, now: Instant) -> bool {
        self.under_way.is_none() && self.rests_until.is_none_or(|until| now >= until)
    }

    /// Whether a move to the exit at a place may begin now. `is_asked`: whether the exit in use has asked for a move.
    pub fn may_go(&self, now: Instant, is_asked: bool, place: usize) -> bool {
        is_asked || !self.failed.is_some_and(|(failed, until)| failed == place && now < until)
    }

    /// Begins a move to the exit at a place. There must be no other move.
    pub fn begin(&mut self, now: Instant, place: usize) {
        let is_asked = self.leave_at.take().is_some();
        let stage = Stage::Building { until: now + BUILD_WITHIN };
        self.beside = Proof::Missing;
        self.under_way =
            Some(Move { stage, place, is_asked, keeps_addresses: None, attached: None, probe_at: now });
    }

    /// Records that the new exit has granted a session, with the same addresses or with different ones.
    pub fn granted(&mut self, keeps_addresses: bool) {
        if let Some(moved) = &mut self.under_way {
            moved.keeps_addresses = Some(keeps_addresses);
        }
    }

    /// Records that an echo through a session is under way.
    pub fn asks(&mut self, which: Which) {
        *self.proof(which) = Proof::Asked;
    }

    /// Whether an echo through a session is under way.
    pub fn is_asking(&self, which: Which) -> bool {
        match which {
            Which::InUse => self.in_use == Proof::Asked,
            Which::Beside => self.beside == Proof::Asked,
        }
    }

    /// Records that an echo through a session was answered.
    pub fn answered(&mut self, now: Instant, which: Which) {
        *self.proof(which) = Proof::Given(now);
    }

    /// Whether a session is known to carry packets.
    pub fn is_proven(&self, which: Which) -> bool {
        match which {
            Which::InUse => matches!(self.in_use, Proof::Given(_)),
            Which::Beside => matches!(self.beside, Proof::Given(_)),
        }
    }

    /// Records that an echo through a session could not be sent. Such a failure says nothing about the session.
    pub fn unanswered(&mut self, now: Instant, which: Which) {
        *self.proof(which) = Proof::Missing;
        if let Some(moved) = &mut self.under_way {
            moved.probe_at = now + PROBE_AGAIN;
        }
    }

    /// Records that a session has lost its last connection. Everything observed about the session so far no longer counts.
    pub fn lost(&mut self, which: Which) {
        *self.proof(which) = Proof::Missing;
    }

    /// Whether the new session is being built.
    pub fn is_building(&self) -> bool {
        self.under_way.as_ref().is_some_and(Move::is_building)
    }

    /// Whether the session in use is on trial, because it could not be proven before the switch.
    pub fn is_trying(&self) -> bool {
        self.under_way.as_ref().is_some_and(|moved| matches!(moved.stage, Stage::Trying { .. }))
    }

    /// Whether there are two sessions.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Records that the sessions have changed places.
    pub fn switched(&mut self, now: Instant) -> Switched {
        self.rests_until = Some(now + PAUSE);
        std::mem::swap(&mut self.in_use, &mut self.beside);
        let Some(moved) = &mut self.under_way else { return Switched::Leaving };
        if moved.keeps_addresses != Some(false) {
            moved.stage = Stage::Leaving { since: now, look_at: now + LOOK_EVERY };
            return Switched::Leaving;
        }
        moved.stage = Stage::Trying { until: now + TRY_FOR };
        moved.probe_at = now;
        Switched::Trying
    }

    /// Ends a move, no matter which session is over. Returns whether the client stays at its earlier exit. If so, the caller must
    /// tell that exit.
    pub fn end(&mut self) -> bool {
        self.beside = Proof::Missing;
        self.under_way.take().is_some_and(|moved| moved.is_building())
    }

    /// Records that the new session carries nothing, so that no move to its exit begins for a while. Returns that exit's place.
    /// Call [`Self::end`] afterwards.
    pub fn give_up(&mut self, now: Instant) -> Option<usize> {
        let moved = self.under_way.as_ref()?;
        self.failed = Some((moved.place, now + PAUSE));
        self.leave_at = moved.is_asked.then(|| now + RETRY_AFTER);
        Some(moved.place)
    }

    /// Records that the sessions have changed places again, because the new one carries nothing.
    pub fn switched_back(&mut self, now: Instant) {
        std::mem::swap(&mut self.in_use, &mut self.beside);
        // Only the exit that failed must wait, which `failed` ensures. Moves to other exits need not wait.
        self.rests_until = None;
        if let Some(moved) = &mut self.under_way {
            moved.stage = Stage::Building { until: now };
        }
    }

    /// Returns the next step. `flows_at_old` counts the flows that still use the old exit.
    pub fn next(
        &mut self,
        now: Instant,
        in_use: Watched,
        beside: Watched,
        flows_at_old: impl FnOnce() -> usize,
    ) -> Option<Step> {
        let (proof_in_use, proof_beside) = (self.in_use, self.beside);
        let leaves = self.leave_at.is_some_and(|at| at <= now);
        let Some(moved) = self.under_way.as_mut().filter(|moved| moved.has_step(leaves)) else {
            self.leave_at = if leaves { Some(now + RETRY_AFTER) } else { self.leave_at };
            return leaves.then_some(Step::Race);
        };
        match moved.stage {
            Stage::Building { until } => moved.build(now, until, (in_use, beside), proof_beside),
            Stage::Trying { until } => moved.try_out(now, until, (in_use, beside), proof_in_use),
            Stage::Leaving { since, look_at } => {
                if !beside.is_up {
                    return Some(Step::End("it is lost"));
                }
                if look_at > now {
                    return None;
                }
                moved.stage = Stage::Leaving { since, look_at: now + LOOK_EVERY };
                leave(now, since, (in_use, beside), flows_at_old)
            }
        }
    }

    /// When [`Self::next`] must be called again, unless an event happens first.
    pub fn due(&self) -> Option<Instant> {
        let Some(moved) = &self.under_way else { return self.leave_at };
        let other_connections = || moved.attached.map(|attached| attached + ATTACH_WITHIN);
        let (until, other) = match (moved.stage, self.beside, self.in_use) {
            (Stage::Building { until }, _, _) if moved.keeps_addresses == Some(false) => {
                (until, other_connections())
            }
            (Stage::Building { until }, Proof::Given(at), _) => (until, Some(at + ATTACH_WITHIN)),
            (Stage::Building { until }, Proof::Missing, _) => (until, moved.attached.map(|_| moved.probe_at)),
            (Stage::Trying { until }, _, Proof::Missing) => (until, Some(moved.probe_at)),
            (Stage::Building { until } | Stage::Trying { until }, _, _) => (until, None),
            (Stage::Leaving { look_at, .. }, _, _) => (look_at, self.leave_at),
        };
        Some(other.map_or(until, |other| other.min(until)))
    }

    fn proof(&mut self, which: Which) -> &mut Proof {
        match which {
            Which::InUse => &mut self.in_use,
            Which::Beside => &mut self.beside,
        }
    }
}

impl Move {
    fn is_building(&self) -> bool {
        matches!(self.stage, Stage::Building { .. })
    }

    /// Whether the next step belongs to this move. If `leaves` is true, it is time to look for another exit, because the exit in
    /// use asked for that. In that case, a move that only waits for old flows to finish has no step. A move that still has to
    /// prove its session keeps its step.
    fn has_step(&self, leaves: bool) -> bool {
        !leaves || !matches!(self.stage, Stage::Leaving { .. })
    }

    /// The next step before the switch.
    fn build(
        &mut self,
        now: Instant,
        until: Instant,
        (in_use, beside): (Watched, Watched),
        proof: Proof,
    ) -> Option<Step> {
        let late = (now >= until).then_some(Step::GiveUp("nothing came back through it"));
        let (true, Some(keeps_addresses)) = (beside.is_up, self.keeps_addresses) else { return late };
        let attached = *self.attached.get_or_insert(now);
        // If the session in use is lost, the new session needs no proof. A session in use that was lost does not count as lost if
        // it comes back before the new session is up.
        let is_lost = !in_use.is_up && !is_planted(Bug::LostWithoutSuccessor);
        if is_lost || is_planted(Bug::UnprovenSwitch) {
            return Some(Step::Switch);
        }
        match proof {
            // This host has the old addresses until the switch, so it can prove the new session only afterwards. The switch also
            // breaks flows, so it takes place only if the exit in use asked for it.
            _ if !keeps_addresses && !self.is_asked => {
                Some(Step::GiveUp("it gives this client other addresses, which would end every flow"))
            }
            _ if !keeps_addresses => {
                (beside.has_all || now >= attached + ATTACH_WITHIN).then_some(Step::Switch).or(late)
            }
            Proof::Given(at) if beside.has_all || now >= at + ATTACH_WITHIN => Some(Step::Switch),
            Proof::Missing if now >= self.probe_at && late.is_none() => self.probe(now, Which::Beside),
            Proof::Given(_) | Proof::Asked | Proof::Missing => late,
        }
    }

    /// The next step while the new session, which is in use, has not carried anything yet.
    fn try_out(
        &mut self,
        now: Instant,
        until: Instant,
        (in_use, beside): (Watched, Watched),
        proof: Proof,
    ) -> Option<Step> {
        if matches!(proof, Proof::Given(_)) {
            return Some(Step::End("no flow can go on there"));
        }
        if !beside.is_up {
            return Some(Step::End("it is lost"));
        }
        if (!in_use.is_up || now >= until) && !is_planted(Bug::NoWayBack) {
            return Some(Step::SwitchBack("nothing came back through it"));
        }
        (proof == Proof::Missing && now >= self.probe_at).then(|| self.probe(now, Which::InUse)).flatten()
    }

    /// Asks the caller for an echo. A caller that cannot send one reports nothing, and is asked again after `PROBE_AGAIN`.
    fn probe(&mut self, now: Instant, which: Which) -> Option<Step> {
        self.probe_at = now + PROBE_AGAIN;
        Some(Step::Probe(which))
    }
}

/// The next step while flows that began before the switch finish at the old exit.
fn leave(
    now: Instant,
    since: Instant,
    (in_use, beside): (Watched, Watched),
    flows_at_old: impl FnOnce() -> usize,
) -> Option<Step> {
    let age = now.saturating_duration_since(since);
    // If the session in use is not answered either, the network may be at fault, and ending the old session would not help.
    let is_other_answered = in_use.is_up && in_use.silent_since.is_none();
    let is_dead = |silent: Instant| now.saturating_duration_since(silent) >= LOST_AFTER;
    if is_other_answered && beside.silent_since.is_some_and(is_dead) && !is_planted(Bug::DeadPathKept) {
        // If the old session ends now, its flows go to the new exit, which resets them. Otherwise the flows would wait for
        // packets that never come.
        return Some(Step::End("it no longer answers"));
    }
    if is_planted(Bug::LeftSessionKept) {
        return None;
    }
    if age >= LONGEST {
        return Some(Step::End("its time is over"));
    }
    (age >= KEPT_FOR && flows_at_old() == 0).then_some(Step::End("no flow is left there"))
}

#[cfg(test)]
mod tests;
