//! The requests of the exits: invitations, enrolments and removals, all of them for the same few names, addresses and tokens.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use warren_fleet_link::Outcome;
use warren_session::PublicKey;
use warren_session::clients::{RowChange, RowId};

use super::history::Run;
use super::support::exit::{Exit, Seen};
use super::{client, invitation, number_key, removal};

/// Number of tokens for which all exits compete at a time.
const WANTED: usize = 60;

/// Number of tokens in one request.
const INVITED_AT_ONCE: usize = 30;

/// An operation that has ended.
pub(crate) struct Done {
    pub(crate) exit: usize,
    pub(crate) what: What,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy)]
pub(crate) enum What {
    Invite,
    Enrol { token: u16, key: PublicKey },
    Remove { key: PublicKey },
}

pub(crate) struct Workload {
    /// Number of threads at each exit.
    pub(crate) workers: usize,
    invited: AtomicUsize,
    keys: AtomicUsize,
    /// Clients that were enrolled, the latest last.
    enrolled: Mutex<Vec<(String, PublicKey)>>,
}

impl Workload {
    pub(crate) fn new() -> Self {
        Self {
            workers: 4,
            invited: AtomicUsize::new(0),
            keys: AtomicUsize::new(1),
            enrolled: Mutex::new(Vec::new()),
        }
    }

    /// Sends one request after the other to an exit until the run is over.
    pub(crate) fn work(&self, run: &Run, exit: usize, number: usize) {
        let mut dice = Dice { state: u64::try_from(number).unwrap() + 1, invites: number == 0 };
        loop {
            // The thread that restores the store, or ends the run, takes this lock for writing.
            let fleet = run.fleet.read().unwrap();
            if run.is_over.load(Ordering::SeqCst) {
                return;
            }
            let is_clock_wrong = run.is_clock_wrong[exit].load(Ordering::SeqCst);
            let Some(done) = self.once(&fleet.exits[exit], exit, &mut dice, is_clock_wrong) else {
                drop(fleet);
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            let is_away = done.outcome == Outcome::Unavailable;
            run.done.lock().unwrap().push(done);
            drop(fleet);
            if is_away {
                // While the store is unreachable, refusals come at once and test little.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    fn once(&self, exit: &Exit, number: usize, dice: &mut Dice, is_clock_wrong: bool) -> Option<Done> {
        let mut what = None;
        let asked = Instant::now();
        let answer = exit.propose(|seen| {
            let (chosen, rows) = self.choose(seen, dice, is_clock_wrong)?;
            what = Some(chosen);
            Some(rows)
        })?;
        let what = what?;
        let (outcome, answered) = answer.recv_timeout(Duration::from_secs(4)).expect("no answer within 4 s");
        if let (What::Enrol { key, .. }, Outcome::Stored { .. }) = (what, outcome)
            && let Some(enrolled) = exit.client(key)
        {
            self.enrolled.lock().unwrap().push((enrolled.name, key));
        }
        Some(Done { exit: number, what, asked, answered, outcome })
    }

    fn choose(&self, seen: &Seen, dice: &mut Dice, is_clock_wrong: bool) -> Option<(What, Vec<RowChange>)> {
        if dice.roll(3) == 0 || is_clock_wrong {
            let mut enrolled = self.enrolled.lock().unwrap();
            if enrolled.is_empty() {
                return None;
            }
            // Another thread may remove the same client.
            let at = dice.roll(enrolled.len());
            let (name, key) = enrolled[at].clone();
            if !seen.rows.contains_key(&RowId::Client(key)) {
                if seen.gone.contains_key(&key) {
                    enrolled.swap_remove(at);
                }
                return None;
            }
            return Some((What::Remove { key }, removal(&name, key)));
        }
        let invited = self.invited.load(Ordering::SeqCst);
        let first = invited.saturating_sub(WANTED);
        for _ in 0..10 {
            let token = u16::try_from(first + dice.roll(WANTED)).unwrap();
            let open = RowChange::from(invitation("history", token, None));
            if usize::from(token) < invited && seen.rows.get(&open.id()) == Some(&open) {
                return Some(self.enrol(token, dice));
            }
        }
        // Few invitations are open. Only one thread makes more, because otherwise all threads would do so at once.
        if !dice.invites {
            return None;
        }
        let tokens = self.invited.fetch_add(INVITED_AT_ONCE, Ordering::SeqCst);
        let open = (tokens..tokens + INVITED_AT_ONCE)
            .map(|token| invitation("history", u16::try_from(token).unwrap(), None).into());
        Some((What::Invite, open.collect()))
    }

    fn enrol(&self, token: u16, dice: &mut Dice) -> (What, Vec<RowChange>) {
        let key = number_key(self.keys.fetch_add(1, Ordering::SeqCst));
        // There are few names and addresses, so that several clients want the same ones.
        let mut enrolled = client(&format!("client{}", dice.roll(1_000)), key);
        enrolled.leased_ipv4 = Some(
            [10, 0, u8::try_from(dice.roll(4)).unwrap(), u8::try_from(1 + dice.roll(250)).unwrap()].into(),
        );
        (What::Enrol { token, key }, vec![enrolled.into(), invitation("history", token, Some(key)).into()])
    }
}

/// Pseudo-random numbers. Each seed has its own sequence.
struct Dice {
    state: u64,
    /// Whether the thread makes invitations.
    invites: bool,
}

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.state >> 33).unwrap() % sides.max(1)
    }
}
