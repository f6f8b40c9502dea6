//! The state of the client's moves to other exits of the fleet. `sessions/moving.rs` carries the moves out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warren_session::client::{ClientAction, Moves as Plan};

use super::connections::Purpose;
use crate::probe::Identifier;
use warren_control::status::MoveStatus;
use warren_tunnel::Moving;

/// The client's moves.
#[derive(Default)]
pub(super) struct Moves {
    /// Decides what to do next.
    pub(super) plan: Plan,
    pub(super) under_way: Option<Move>,
    /// Messages that the new exit sent before the switch and that are not handled yet. The session in use is now the one with
    /// this exit.
    pub(super) news: VecDeque<ClientAction>,
}

/// A move that is under way.
pub(super) struct Move {
    pub(super) rules: Arc<Moving>,
    pub(super) from: String,
    pub(super) to: String,
    /// Messages that the new exit has sent so far. They are handled after the switch.
    pub(super) news: VecDeque<ClientAction>,
    /// The identifier of the echo requests that the workers must send on the new session even before the switch. The workers are
    /// told of it only once.
    pub(super) identifier: Option<Identifier>,
}

impl Move {
    /// Keeps a message from the new exit until the switch. A newer message replaces an older one of the same kind, so memory use
    /// is bounded.
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

impl Moves {
    /// Takes the next message that the new exit sent before the switch.
    pub(super) fn take_news(&mut self) -> Option<ClientAction> {
        self.news.pop_front()
    }

    /// Whether a move for this purpose, to the exit at list position `place`, may begin now. If an earlier move is still under
    /// way, a new move ends the flows that are left at the old exit. This is justified only if the exit in use sends its clients
    /// away.
    pub(super) fn may_begin(&self, now: Instant, purpose: Purpose, place: usize) -> bool {
        let is_asked = purpose == Purpose::Leave;
        (is_asked || !self.plan.is_under_way()) && self.plan.may_go(now, is_asked, place)
    }

    /// The move for the status.
    pub(super) fn status(&self, now: Instant) -> Option<MoveStatus> {
        let Move { rules, from, to, .. } = self.under_way.as_ref()?;
        let has_switched = !self.plan.is_building();
        Some(MoveStatus {
            from: from.clone(),
            to: to.clone(),
            has_switched,
            flows_at_old_exit: if has_switched { rules.flows_at_old(now) } else { 0 },
            flows_without_room: rules.without_room(),
        })
    }
}

/// A random part of a duration. If the random source fails, clients are only spread less evenly, so that is not an error.
pub(super) fn random_part(of: Duration) -> Duration {
    let mut bytes = [0; 2];
    let _ = getrandom::fill(&mut bytes);
    of * u32::from(u16::from_ne_bytes(bytes)) / u32::from(u16::MAX)
}

/// A random part of the time between a measurement and the one that confirms it, so that clients that measure at the same moment
/// do not move at the same moment.
pub(super) fn spread_confirmation() -> Duration {
    random_part(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_exit_that_sends_its_clients_away_ends_the_flows_of_an_earlier_move() {
        let now = Instant::now();
        let mut moves = Moves::default();
        assert!(moves.may_begin(now, Purpose::Nearer, 1));
        moves.plan.begin(now, 1);
        assert!(!moves.may_begin(now, Purpose::Nearer, 2) && !moves.may_begin(now, Purpose::Failback, 2));
        assert!(moves.may_begin(now, Purpose::Leave, 2));
    }

    #[test]
    fn clients_that_leave_at_once_are_spread() {
        let parts: Vec<Duration> = (0..200).map(|_| random_part(Duration::from_secs(1))).collect();
        assert!(parts.iter().all(|part| *part <= Duration::from_secs(1)));
        let early = parts.iter().filter(|part| **part < Duration::from_millis(500)).count();
        assert!(early > 50 && early < 150, "{early}");
    }
}
