//! Faults of a fleet with three real exits, one after the other, while its clients live.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::etcd::Etcd;
use super::faulty_fleet::EXITS;
use super::real_fleet::{RealFleet, endpoint, store_of};
use super::seen_history::{Fault, Late};
use super::{Net, eventually, seconds};

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The leader of etcd hangs.
    LeaderStopped,
    /// The leader is killed and comes back.
    LeaderKilled,
    /// Packets from the third exit to the store are dropped, or those from the store, or both.
    CutToStore,
    CutToExit,
    Cut,
    /// The third exit is cut off, and the store compacts what this exit has not seen.
    Compacted,
    /// The clock of the third exit and its link steps by an hour, in both directions, and back.
    Clock,
    /// The store is replaced by an old backup, and an operator recovers it.
    Restored,
}

pub const ALL: [Kind; 8] = [
    Kind::CutToStore,
    Kind::LeaderStopped,
    Kind::CutToExit,
    Kind::Compacted,
    Kind::LeaderKilled,
    Kind::Clock,
    Kind::Cut,
    Kind::Restored,
];

/// How long a cut lasts, and how long the leader is away.
const FAULT: Duration = Duration::from_millis(3_500);

/// How long a removal may take while the leader is away.
const WITH_THE_LEADER_AWAY: Late = Late::AfterAnswer(seconds(5));

/// How long after the end of a cut a removal may reach the exit.
const AFTER_A_CUT: Late = Late::AfterFault(seconds(2));

/// How long after the return of the store all exits may need.
const AFTER_THE_STORE: Late = Late::AfterFault(seconds(5));

pub struct Faults<'net> {
    pub net: &'net Net,
    pub etcd: Etcd<'net>,
    pub fleet: RealFleet<'net>,
    /// The file with the third exit's error of the clock.
    pub clock: PathBuf,
    pub happened: Vec<Fault>,
}

impl Faults<'_> {
    pub fn make(&mut self, kind: Kind) {
        let (from, cut) = (Instant::now(), endpoint(2).ip());
        let to_store = format!("ip saddr {cut} tcp dport 2379 drop;");
        let to_exit = format!("ip daddr {cut} tcp sport 2379 drop;");
        let (exit, late) = match kind {
            Kind::LeaderStopped => {
                let leader = self.etcd.leader();
                self.etcd.signal(leader, Signal::STOP);
                std::thread::sleep(FAULT);
                self.etcd.signal(leader, Signal::CONT);
                (None, WITH_THE_LEADER_AWAY)
            }
            Kind::LeaderKilled => {
                let leader = self.etcd.leader();
                self.etcd.kill_member(leader);
                std::thread::sleep(FAULT);
                self.etcd.start_member(leader);
                (None, WITH_THE_LEADER_AWAY)
            }
            Kind::CutToStore => self.cut(&to_store, false),
            Kind::CutToExit => self.cut(&to_exit, false),
            Kind::Cut => self.cut(&(to_store + &to_exit), false),
            Kind::Compacted => self.cut(&(to_store + &to_exit), true),
            Kind::Clock => return self.step_clock(),
            Kind::Restored => {
                self.restore();
                (None, AFTER_THE_STORE)
            }
        };
        self.happened.push(Fault { exit, from, until: Instant::now(), late });
        if let Kind::LeaderStopped | Kind::LeaderKilled = kind {
            // The member that comes back must not be away together with the next one.
            self.etcd.wait_until_ready();
            self.wait_until_all_say("reachable");
        }
    }

    fn cut(&self, rules: &str, compacts: bool) -> (Option<usize>, Late) {
        let router = &self.net.router;
        let table = "type filter hook forward priority 0;";
        router.sh(&format!("nft 'table inet cut {{ chain forward {{ {table} {rules} }}; }}'")).ok();
        std::thread::sleep(FAULT);
        if compacts {
            eventually(seconds(6), "the exit is cut off", || store_of(&self.fleet.exits[2]) == "away");
            self.etcd.compact();
        }
        router.sh("nft delete table inet cut").ok();
        (Some(2), AFTER_A_CUT)
    }

    fn step_clock(&self) {
        let is_wrong = |exit: usize| self.fleet.exits[exit].status().0["fleet"]["is_clock_wrong"] == true;
        for step in [3_600, -3_600, 0] {
            std::fs::write(&self.clock, step.to_string()).unwrap();
            eventually(seconds(10), "the exit knows of its clock", || is_wrong(2) == (step != 0));
            std::thread::sleep(seconds(1));
            assert!(!is_wrong(0) && !is_wrong(1), "the others' clocks are right");
        }
    }

    fn restore(&mut self) {
        let backup = self.etcd.back_up();
        // What happens now is not in the backup.
        std::thread::sleep(seconds(2));
        self.etcd.restore(&backup);
        self.wait_until_all_say("refused");
        // An operator takes longer. The links save their copies meanwhile.
        std::thread::sleep(seconds(1));
        self.fleet.exits[0].warren.run("fleet recover").ok();
        self.wait_until_all_say("reachable");
    }

    pub fn wait_until_all_say(&self, store: &str) {
        eventually(seconds(20), &format!("all exits say that the store is {store}"), || {
            (0..EXITS).all(|exit| store_of(&self.fleet.exits[exit]) == store)
        });
    }
}
