//! The rules that must hold in every world.

use std::time::{Duration, Instant};

use super::world::World;
use crate::client::{ClientState, Which};
use crate::exit::SessionId;

/// When each temporary state began. `None` if the state does not hold now.
#[derive(Default)]
pub(super) struct Checks {
    /// The session in use works, and the status says that the tunnel is lost.
    stuck: Option<Instant>,
    /// The session in use cannot be proven.
    on_trial: Option<Instant>,
    /// No flow uses the session that the client has left.
    idle: Option<Instant>,
    /// The client has left a session.
    left: Option<Instant>,
    /// The path of the session that the client has left is dead, and the path of the session in use works.
    dead: Option<Instant>,
    /// An exit has a session that the client has given up, although the exit could know that.
    orphan: [Option<Instant>; 2],
    /// The path to an exit works.
    reached: [Option<Instant>; 2],
}

impl World {
    /// Checks the state of the world after a step.
    pub(super) fn check(&mut self) {
        let now = self.now;
        let (in_use, beside) = (self.watched(Which::InUse), self.watched(Which::Beside));
        let state = self.client.in_use.machine.state();
        assert!(!matches!(state, ClientState::Stopped(_)), "the client has stopped");
        let has_plan = in_use.is_up || self.client.in_use.machine.timeout().is_some();
        assert!(has_plan, "neither a session in use nor an attempt: {:?}", self.client.in_use.machine);
        let is_building = self.client.moves.is_building();
        assert!(
            in_use.is_up || !is_building || !beside.is_up,
            "the session in use is lost, and the other is there"
        );
        assert_eq!(self.client.beside.is_some(), self.client.moves.is_under_way());

        let exit = self.client.in_use.exit;
        let works = self.is_reachable(exit) && self.sites[exit].carries;
        let is_stuck = in_use.is_up && works && !self.client.is_shown_up;
        lasts(&mut self.checks.stuck, is_stuck, now, 4, "the status says that the tunnel is lost");
        assert!(in_use.is_up || !self.client.is_shown_up, "the status says up, and there is no connection");
        let is_trying = self.client.moves.is_trying();
        lasts(
            &mut self.checks.on_trial,
            is_trying,
            now,
            4,
            "a session that carries nothing has replaced one",
        );

        let has_left = self.client.beside.is_some() && !is_building && !is_trying;
        let is_idle = has_left && self.client.flows == 0;
        lasts(&mut self.checks.idle, is_idle, now, 36, "the old session goes on without flows");
        lasts(&mut self.checks.left, has_left, now, 602, "the old session goes on");
        let is_dead =
            has_left && in_use.is_up && in_use.silent_since.is_none() && beside.silent_since.is_some();
        lasts(&mut self.checks.dead, is_dead, now, 7, "flows stay at an exit that does not answer");
        self.check_exits();
    }

    fn check_exits(&mut self) {
        let now = self.now;
        let known: Vec<_> = [Some(&self.client.in_use), self.client.beside.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|side| Some((side.exit, SessionId(side.machine.welcome()?.session))))
            .collect();
        for exit in 0..2 {
            let sessions = self.sites[exit].sessions.as_ref();
            let has_orphan = sessions.is_some_and(|sessions| {
                sessions.sessions().any(|session| !known.contains(&(exit, session.id())))
            });
            let is_reachable = self.is_reachable(exit);
            self.checks.reached[exit] = is_reachable.then(|| self.checks.reached[exit].unwrap_or(now));
            let orphan = &mut self.checks.orphan[exit];
            lasts(orphan, has_orphan && is_reachable, now, 40, "an exit keeps a session that nobody has");
        }
    }

    /// Checks that an exit was right to end a session because the client is at another exit.
    pub(super) fn check_end(&self, exit: usize, session: SessionId, is_superseded: bool) {
        let side = &self.client.in_use;
        let is_in_use = side.exit == exit
            && side.is_up()
            && side.machine.welcome().is_some_and(|welcome| welcome.session == session.0);
        // The client may have been unable to reach its exit for a while. In that time the exit cannot know that the client stays.
        let has_heard =
            self.checks.reached[exit].is_some_and(|since| self.now >= since + Duration::from_secs(2));
        assert!(!is_superseded || !is_in_use || !has_heard, "a move has ended the session in use");
    }

    /// Checks that the client may switch to the new session.
    pub(super) fn check_switch(&self) {
        let (in_use, beside) = (&self.client.in_use, self.client.beside.as_ref().unwrap());
        let same = |one: &super::client::Side| one.welcome.as_ref().map(|welcome| welcome.ipv4);
        let keeps_addresses = same(in_use) == same(beside);
        let may = beside.has_carried || !in_use.is_up() || !keeps_addresses;
        assert!(may, "a session that has carried nothing replaces one that works");
    }

    /// Checks that the old session may end.
    pub(super) fn check_left(&self, why: &str) {
        let beside = self.client.beside.as_ref().unwrap();
        let may = match why {
            "no flow is left there" => self.client.flows == 0,
            "it no longer answers" => {
                let silent = self.silent_since(beside.exit);
                silent.is_some_and(|since| self.now >= since + Duration::from_secs(5))
            }
            "its time is over" => {
                self.checks.left.is_some_and(|since| self.now >= since + Duration::from_secs(599))
            }
            "it is lost" => !beside.is_up(),
            "no flow can go on there" => self.client.in_use.has_carried,
            other => panic!("{other}"),
        };
        assert!(may, "the old session ends although {why} is not so");
    }

    /// Checks the state that the world must reach once the trouble is over.
    pub(super) fn check_settled(&self) {
        let client = &self.client;
        assert!(
            client.in_use.is_up() && client.is_shown_up,
            "the client is not up: {:?}",
            client.in_use.machine
        );
        assert!(client.beside.is_none(), "the move does not end");
        let exit = client.in_use.exit;
        assert_eq!(self.store.holder(), Some(exit), "the store does not know where the client is");
        for (number, site) in self.sites.iter().enumerate() {
            let sessions = site.sessions.as_ref().unwrap().sessions().count();
            assert_eq!(sessions, usize::from(number == exit), "sessions at exit {number}");
        }
    }
}

/// Fails if a temporary state has lasted for longer than some seconds.
fn lasts(since: &mut Option<Instant>, is: bool, now: Instant, seconds: u64, what: &str) {
    let begun = *since.get_or_insert(now);
    if !is {
        *since = None;
    }
    assert!(!is || now < begun + Duration::from_secs(seconds), "{what}");
}
