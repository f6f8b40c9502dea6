//! What the daemon knows of its moves to other exits of the fleet. `moving.rs` makes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warren_session::client::ClientAction;

use super::connections::Purpose;
use warren_control::status::MoveStatus;
use warren_tunnel::Moving;

/// How long the switch waits for the new session's other connections once one of them carries packets.
pub(super) const ATTACH_WITHIN: Duration = Duration::from_secs(1);

/// The client's moves.
#[derive(Default)]
pub(super) struct Moves {
    pub(super) under_way: Option<Move>,
    /// When to look for another exit, because the one in use sends its clients away.
    pub(super) leave_at: Option<Instant>,
    /// Until when no move for a better exit begins.
    pub(super) rests_until: Option<Instant>,
    /// The place of an exit that gave no session. Until this time, no move goes there unless the exit in use asks for one.
    pub(super) failed: Option<(usize, Instant)>,
    /// What the new exit has said before the switch and that has not been taken yet. Its session is the one in use now.
    pub(super) news: VecDeque<ClientAction>,
}

/// A move that is under way.
pub(super) struct Move {
    pub(super) rules: Arc<Moving>,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) stage: Stage,
    /// Whether the exit in use has asked for the move.
    pub(super) is_asked: bool,
    /// Whether the new exit gives this client the same addresses. If not, no flow can finish at the old one.
    pub(super) keeps_addresses: bool,
    /// What the new exit has said before the switch.
    pub(super) news: VecDeque<ClientAction>,
}

impl Move {
    pub(super) fn is_building(&self) -> bool {
        matches!(self.stage, Stage::Building { .. })
    }

    /// Keeps what the new exit says until the switch. Newer news of a kind replaces older, so an exit that talks without end fills
    /// nothing.
    pub(super) fn take_news(&mut self, action: ClientAction) {
        self.news.retain(|earlier| match (earlier, &action) {
            (ClientAction::ExitKeys { index: one, .. }, ClientAction::ExitKeys { index: other, .. }) => {
                one != other
            }
            (earlier, later) => std::mem::discriminant(earlier) != std::mem::discriminant(later),
        });
        self.news.push_back(action);
    }
}

/// How far a move is.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// The new session is beside the one in use. `proven` is when it has carried a packet.
    Building { until: Instant, proven: Option<Instant> },
    /// The old session is beside the one in use.
    Leaving { since: Instant, look_at: Instant },
}

impl Moves {
    /// When a move has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.under_way.as_ref().map(|moved| moved.stage) {
            None => self.leave_at,
            Some(Stage::Building { proven: Some(proven), .. }) => Some(proven + ATTACH_WITHIN),
            Some(Stage::Building { until, .. }) => Some(until),
            Some(Stage::Leaving { look_at, .. }) => Some(self.leave_at.map_or(look_at, |at| at.min(look_at))),
        }
    }

    /// Takes what the new exit had said before the switch.
    pub(super) fn take_news(&mut self) -> Option<ClientAction> {
        self.news.pop_front()
    }

    /// Whether the new exit had said something before the switch that has not been taken yet.
    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Forgets that an exit has asked its clients to leave, because another session has begun.
    pub(super) fn stay(&mut self) {
        self.leave_at = None;
    }

    /// Whether a move to a better exit may begin.
    pub(super) fn may_improve(&self, now: Instant) -> bool {
        self.under_way.is_none() && self.rests_until.is_none_or(|until| now >= until)
    }

    /// Whether a move for this purpose may go to the exit at a place now.
    pub(super) fn may_go(&self, now: Instant, purpose: Purpose, place: usize) -> bool {
        let has_failed = self.failed.is_some_and(|(failed, until)| failed == place && now < until);
        purpose == Purpose::Leave || !has_failed
    }

    /// Whether the new session is being built.
    pub(super) fn is_building(&self) -> bool {
        self.under_way.as_ref().is_some_and(Move::is_building)
    }

    /// The move for the status.
    pub(super) fn status(&self, now: Instant) -> Option<MoveStatus> {
        let Move { rules, from, to, stage, .. } = self.under_way.as_ref()?;
        let has_switched = matches!(stage, Stage::Leaving { .. });
        Some(MoveStatus {
            from: from.clone(),
            to: to.clone(),
            has_switched,
            flows_at_old_exit: if has_switched { rules.flows_at_old(now) } else { 0 },
            flows_without_room: rules.without_room(),
        })
    }

    /// Notes that the new session has carried a packet, or that it need not be waited for.
    pub(super) fn prove(&mut self, now: Instant) {
        if let Some(Move { stage: Stage::Building { proven, .. }, .. }) = &mut self.under_way {
            proven.get_or_insert(now);
        }
    }
}

/// A random part of a duration. Predictable numbers would only make clients less evenly spread, so a failing source is no error.
pub(super) fn random_part(of: Duration) -> Duration {
    let mut bytes = [0; 2];
    let _ = getrandom::fill(&mut bytes);
    of * u32::from(u16::from_ne_bytes(bytes)) / u32::from(u16::MAX)
}

/// A part of the time between the two measurements that make a client move, so that clients which measure at once move apart.
pub(super) fn spread_confirmation() -> Duration {
    random_part(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use warren_session::exit::SessionId;

    use super::*;

    fn moved(now: Instant, stage: Stage) -> Move {
        Move {
            rules: Arc::new(Moving::begin(SessionId(1), now)),
            from: "ams1".to_owned(),
            to: "fra1".to_owned(),
            stage,
            is_asked: false,
            keeps_addresses: true,
            news: VecDeque::new(),
        }
    }

    #[test]
    fn a_switch_waits_for_the_proof_and_then_for_the_other_connections() {
        let now = Instant::now();
        let until = now + Duration::from_secs(10);
        let under_way = Some(moved(now, Stage::Building { until, proven: None }));
        let mut moves = Moves { under_way, leave_at: Some(now), ..Moves::default() };
        assert_eq!(moves.due(), Some(until), "one move at a time");
        moves.prove(now);
        moves.prove(until);
        assert_eq!(moves.due(), Some(now + ATTACH_WITHIN));
        assert!(!moves.may_improve(now));
        let status = moves.status(now).unwrap();
        assert!(!status.has_switched && status.to == "fra1");
    }

    #[test]
    fn a_better_exit_waits_for_the_pause_and_a_failed_one_for_its_own() {
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let moves = Moves { rests_until: Some(later), failed: Some((2, later)), ..Moves::default() };
        assert!(!moves.may_improve(now) && moves.may_improve(later));
        assert!(!moves.may_go(now, Purpose::Nearer, 2) && !moves.may_go(now, Purpose::Failback, 2));
        // The controls: another exit, a later time, and an exit in use that sends its clients away.
        assert!(moves.may_go(now, Purpose::Nearer, 1) && moves.may_go(later, Purpose::Nearer, 2));
        assert!(moves.may_go(now, Purpose::Leave, 2));
    }

    #[test]
    fn clients_that_leave_at_once_are_spread() {
        let parts: Vec<Duration> = (0..200).map(|_| random_part(Duration::from_secs(1))).collect();
        assert!(parts.iter().all(|part| *part <= Duration::from_secs(1)));
        let early = parts.iter().filter(|part| **part < Duration::from_millis(500)).count();
        assert!(early > 50 && early < 150, "{early}");
    }
}
