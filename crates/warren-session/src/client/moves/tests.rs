//! Tests moves step by step. `crate::tests::two_exits` tests them in a simulated world.

use super::*;

const UP: Watched = Watched { is_up: true, has_all: true, silent_since: None };
const FEW: Watched = Watched { is_up: true, has_all: false, silent_since: None };
const DOWN: Watched = Watched { is_up: false, has_all: false, silent_since: None };

/// Moves of a client that goes to the exit at place 2.
struct Test {
    moves: Moves,
    now: Instant,
}

impl Test {
    fn new(is_asked: bool, keeps_addresses: bool) -> Self {
        let (mut moves, now) = (Moves::default(), Instant::now());
        if is_asked {
            moves.asked_to_leave(now, Duration::ZERO);
        }
        moves.begin(now, 2);
        moves.granted(keeps_addresses);
        Self { moves, now }
    }

    fn next(&mut self, in_use: Watched, beside: Watched) -> Option<Step> {
        self.moves.next(self.now, in_use, beside, || 0)
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }
}

#[test]
fn a_switch_waits_for_the_proof_and_then_for_the_other_connections() {
    let mut test = Test::new(false, true);
    assert_eq!(test.next(UP, FEW), Some(Step::Probe(Which::Beside)));
    test.moves.asks(Which::Beside);
    assert_eq!(test.next(UP, UP), None, "it has not carried anything");
    assert!(!test.moves.may_improve(test.now), "one move at a time");
    test.moves.answered(test.now, Which::Beside);
    assert_eq!(test.next(UP, FEW), None);
    assert_eq!(test.moves.due(), Some(test.now + ATTACH_WITHIN));
    test.wait(1_000);
    assert_eq!(test.next(UP, FEW), Some(Step::Switch));
    assert_eq!(test.moves.switched(test.now), Switched::Leaving);
    assert!(test.moves.is_proven(Which::InUse) && !test.moves.is_building());
}

#[test]
fn a_session_that_cannot_be_probed_is_asked_again_and_never_takes_over() {
    let mut test = Test::new(true, true);
    for _ in 0..19 {
        assert_eq!(test.next(UP, UP), Some(Step::Probe(Which::Beside)));
        // The caller could not send the echo, because there was no device.
        test.moves.unanswered(test.now, Which::Beside);
        assert_eq!(test.next(UP, UP), None);
        test.wait(500);
    }
    test.wait(500);
    assert!(matches!(test.next(UP, UP), Some(Step::GiveUp(_))));
    assert_eq!(test.moves.give_up(test.now), Some(2));
    assert!(test.moves.end(), "the client stays");
    assert_eq!(test.moves.due(), Some(test.now + RETRY_AFTER), "the exit has asked it to leave");
}

#[test]
fn an_echo_proves_only_the_session_that_it_went_through() {
    let mut test = Test::new(false, true);
    test.moves.lost(Which::InUse);
    test.moves.asks(Which::InUse);
    test.moves.asks(Which::Beside);

    test.moves.answered(test.now, Which::InUse);

    assert!(test.moves.is_proven(Which::InUse) && !test.moves.is_proven(Which::Beside));
    assert_eq!(test.next(UP, UP), None);
}

#[test]
fn a_lost_session_needs_no_proof_of_the_other_unless_it_is_back_by_then() {
    let mut test = Test::new(false, true);
    assert_eq!(test.next(DOWN, DOWN), None);
    assert_eq!(test.next(UP, UP), Some(Step::Probe(Which::Beside)), "it is back");
    assert_eq!(test.next(DOWN, UP), Some(Step::Switch));
}

#[test]
fn other_addresses_are_worth_a_move_only_if_the_exit_asks_for_it_and_are_tried_first() {
    let mut unasked = Test::new(false, false);
    assert!(matches!(unasked.next(UP, UP), Some(Step::GiveUp(_))));

    let mut asked = Test::new(true, false);
    assert_eq!(asked.next(UP, UP), Some(Step::Switch));
    assert_eq!(asked.moves.switched(asked.now), Switched::Trying);
    assert_eq!(asked.next(UP, UP), Some(Step::Probe(Which::InUse)));
    asked.moves.asks(Which::InUse);
    asked.wait(2_999);
    assert_eq!(asked.next(UP, UP), None);
    asked.wait(1);
    assert!(matches!(asked.next(UP, UP), Some(Step::SwitchBack(_))));
    asked.moves.give_up(asked.now);
    asked.moves.switched_back(asked.now);
    assert!(asked.moves.end(), "the client stays");

    // The control: the new session carries packets.
    let mut carries = Test::new(true, false);
    assert_eq!(carries.next(UP, UP), Some(Step::Switch));
    carries.moves.switched(carries.now);
    carries.moves.answered(carries.now, Which::InUse);
    assert!(matches!(carries.next(UP, UP), Some(Step::End(_))));
    assert!(!carries.moves.end());
}

#[test]
fn an_old_session_whose_path_is_dead_ends_if_the_other_is_answered() {
    let mut test = Test::new(false, true);
    test.moves.switched(test.now);
    test.wait(1_000);
    let silent = Watched { silent_since: Some(test.now), ..UP };
    let look = |test: &mut Test, in_use, beside| {
        test.wait(1_000);
        test.moves.next(test.now, in_use, beside, || 3)
    };
    (0..4).for_each(|_| assert_eq!(look(&mut test, UP, silent), None));
    // Neither session is answered, so the old one may be as good as the other.
    (0..9).for_each(|_| assert_eq!(look(&mut test, silent, silent), None));
    assert!(matches!(look(&mut test, UP, silent), Some(Step::End(_))));
}

#[test]
fn the_old_session_ends_when_no_flow_is_left_or_its_time_is_over() {
    let mut test = Test::new(false, true);
    test.moves.switched(test.now);
    let mut ends = |seconds: u64, flows| {
        test.wait(seconds * 1_000);
        matches!(test.moves.next(test.now, UP, UP, || flows), Some(Step::End(_)))
    };
    assert!(!ends(29, 0) && !ends(2, 1) && !ends(500, 1));
    assert!(ends(1, 0));
    assert!(ends(100, 1), "ten minutes");
}

#[test]
fn a_better_exit_waits_for_the_pause_and_a_failed_one_for_its_own() {
    let mut test = Test::new(false, true);
    test.moves.give_up(test.now);
    test.moves.end();
    let later = test.now + PAUSE;
    assert!(!test.moves.may_go(test.now, false, 2));
    // The controls: another exit, a later time, and an exit in use that sends its clients to other exits.
    assert!(test.moves.may_go(test.now, false, 1) && test.moves.may_go(later, false, 2));
    assert!(test.moves.may_go(test.now, true, 2));

    test.moves.begin(test.now, 1);
    test.moves.switched(test.now);
    test.moves.end();
    assert!(!test.moves.may_improve(test.now) && test.moves.may_improve(later));
}

#[test]
fn an_exit_asks_until_the_client_leaves_and_one_move_is_proven_at_a_time() {
    let (mut moves, now) = (Moves::default(), Instant::now());
    assert!(moves.asked_to_leave(now, SPREAD));
    assert!(!moves.asked_to_leave(now, SPREAD), "each connection brings it");
    assert_eq!(moves.next(now, UP, DOWN, || 0), None);
    let at = now + SPREAD;
    assert_eq!(moves.next(at, UP, DOWN, || 0), Some(Step::Race));
    assert_eq!(moves.due(), Some(at + RETRY_AFTER), "nobody answered");
    moves.begin(at, 2);
    moves.granted(true);
    moves.answered(at, Which::Beside);
    assert_eq!(moves.next(at, UP, UP, || 0), Some(Step::Switch));
    moves.switched(at);
    // The new exit is drained, too.
    assert!(moves.asked_to_leave(at, Duration::ZERO));
    assert_eq!(moves.next(at, UP, UP, || 1), Some(Step::Race));
}

const SPREAD: Duration = Duration::from_millis(700);
