//! Faults that occur while exits work.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use warren_fleet_link::StoreLink;

use super::Fleet;
use super::history::{Allowance, Epoch, Failed, Run};
use super::store_log::StoreLog;
use super::support::fleet_ok;
use super::support::proxy::{CUT, CUT_TO_EXIT, CUT_TO_STORE, OPEN, Ways};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The third exit's link is cut off from the store in one direction or both.
    CutToStore,
    CutToExit,
    Cut,
    /// Like [`Self::Cut`], but the store also compacts the changes that the link has not seen.
    CompactBehind,
    /// The leader hangs for three seconds.
    StopLeader,
    /// The leader is killed and comes back.
    KillLeader,
    /// The clock of the third exit's link steps by an hour, and back.
    StepClock,
    /// The store is replaced by an old backup, and an operator recovers it.
    Restore,
}

/// How long a cut or a stop lasts.
const FAULT: Duration = Duration::from_millis(3_000);

/// Pause before each fault, and after the last one.
const CALM: Duration = Duration::from_millis(2_500);

/// How long after the end of one link's fault a removal may still be late: the pause before the link connects again, and
/// two seconds.
const AFTER_A_CUT: Duration = Duration::from_millis(4_500);

/// How long after the end of the leader's fault a removal may still be late.
const AFTER_A_LEADER: Duration = Duration::from_millis(5_000);

pub(crate) struct Faults<'a> {
    run: &'a Run,
    ways: Ways,
    epochs: Vec<Epoch>,
    log: StoreLog,
    levels: usize,
}

impl<'a> Faults<'a> {
    /// Call it before any operation begins.
    pub(crate) fn new(run: &'a Run, ways: Ways) -> Result<Self, String> {
        let log = StoreLog::begin(&run.fleet.read().unwrap().store)?;
        Ok(Self { run, ways, epochs: Vec::new(), log, levels: 0 })
    }

    /// Causes each fault at least once, and continues until there were enough operations. Returns everything that happened, by
    /// epoch.
    #[allow(clippy::readonly_write_lock, reason = "it keeps all others from working")]
    pub(crate) fn disturb(mut self, operations: usize, faults: &[Fault]) -> Result<Vec<Epoch>, Failed> {
        for round in 0.. {
            let ended: usize = self.epochs.iter().map(|epoch| epoch.done.len()).sum();
            let has_enough = ended + self.run.done.lock().unwrap().len() >= operations;
            if has_enough && round >= faults.len() {
                break;
            }
            std::thread::sleep(CALM);
            if let Some(fault) = faults.get(round % faults.len().max(1)) {
                println!("{:?} after {} operations", fault, self.run.done.lock().unwrap().len());
                self.make(*fault)?;
            }
        }
        std::thread::sleep(CALM);
        // No operation begins while this lock is held.
        let run = self.run;
        let fleet = run.fleet.write().unwrap();
        self.run.is_over.store(true, Ordering::SeqCst);
        self.end_epoch(&fleet)?;
        Ok(self.epochs)
    }

    fn make(&mut self, fault: Fault) -> Result<(), Failed> {
        match fault {
            Fault::CutToStore => self.cut(CUT_TO_STORE, false)?,
            Fault::CutToExit => self.cut(CUT_TO_EXIT, false)?,
            Fault::Cut => self.cut(CUT, false)?,
            Fault::CompactBehind => self.cut(CUT, true)?,
            Fault::StopLeader => self.stop_leader(),
            Fault::KillLeader => self.kill_leader(),
            Fault::StepClock => self.step_clock()?,
            Fault::Restore => self.restore()?,
        }
        Ok(())
    }

    fn cut(&mut self, cut: u8, compacts: bool) -> Result<(), String> {
        let from = Instant::now();
        self.ways.set(cut);
        std::thread::sleep(FAULT);
        let compacted = if compacts { self.compact() } else { Ok(()) };
        self.ways.set(OPEN);
        self.allow(Some(2), from, AFTER_A_CUT);
        compacted
    }

    /// Reads the store's log up to now, then lets the store forget it.
    fn compact(&mut self) -> Result<(), String> {
        let fleet = self.run.fleet.read().unwrap();
        let revision = self.log.read(&fleet.store)?;
        fleet.store.etcdctl_ok(&["compact", &revision.to_string()]);
        Ok(())
    }

    fn stop_leader(&self) {
        let fleet = self.run.fleet.read().unwrap();
        let leader = fleet.store.leader();
        let from = Instant::now();
        fleet.store.signal(leader, "STOP");
        std::thread::sleep(FAULT);
        fleet.store.signal(leader, "CONT");
        self.allow(None, from, AFTER_A_LEADER);
    }

    fn kill_leader(&self) {
        let leader = self.run.fleet.read().unwrap().store.leader();
        let from = Instant::now();
        // No operation begins while this lock is held. It is held only as long as it takes to kill or start a process.
        self.run.fleet.write().unwrap().store.stop_member(leader);
        std::thread::sleep(FAULT);
        self.run.fleet.write().unwrap().store.start_member(leader);
        self.run.fleet.read().unwrap().store.wait_until_ready();
        self.allow(None, from, AFTER_A_LEADER);
    }

    fn step_clock(&self) -> Result<(), String> {
        let file = self.run.fleet.read().unwrap().exits[2].directory.join("clock");
        for seconds in [3_600_i64, -3_600, 0] {
            std::fs::write(&file, seconds.to_string()).unwrap();
            let is_wrong = seconds != 0;
            let since = Instant::now();
            while self.run.fleet.read().unwrap().exits[2]
                .seen(|seen| (seen.own_clock_offset_ms.abs() > 60_000) != is_wrong)
            {
                if since.elapsed() > Duration::from_secs(10) {
                    return Err(format!("a clock that is {seconds} s wrong is not noticed"));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            self.run.is_clock_wrong[2].store(is_wrong, Ordering::SeqCst);
            let fleet = self.run.fleet.read().unwrap();
            if fleet.exits[..2].iter().any(|exit| exit.seen(|seen| seen.own_clock_offset_ms.abs() > 60_000)) {
                return Err("an exit takes its right clock for wrong".to_owned());
            }
        }
        Ok(())
    }

    /// Replaces the store by a backup that lacks the latest operations, and recovers it at an exit that has them all.
    fn restore(&mut self) -> Result<(), Failed> {
        let backup = self.run.fleet.read().unwrap().store.back_up();
        std::thread::sleep(Duration::from_millis(1_500));
        let run = self.run;
        let mut fleet = run.fleet.write().unwrap();
        self.end_epoch(&fleet)?;
        let from = Instant::now();
        fleet.store.restore(&backup);
        let is_refused = |store: &Option<StoreLink>| matches!(store, Some(StoreLink::Refused { .. }));
        for exit in &fleet.exits {
            exit.wait("the backup is noticed", |seen| is_refused(&seen.store).then_some(()));
        }
        // An operator would take longer. The links save their copies when they notice the backup.
        std::thread::sleep(Duration::from_secs(1));
        fleet_ok(&fleet.exits[0].directory, &["recover"]);
        for exit in &fleet.exits {
            exit.wait("the store is used again", |seen| {
                (seen.store == Some(StoreLink::Reachable)).then_some(())
            });
        }
        self.log = StoreLog::begin(&fleet.store)?;
        drop(fleet);
        self.allow(None, from, AFTER_A_LEADER);
        Ok(())
    }

    /// Records what happened up to now.
    fn end_epoch(&mut self, fleet: &Fleet) -> Result<(), Failed> {
        // Requests that were given up may still be on their way.
        std::thread::sleep(Duration::from_millis(2_600));
        self.levels += 1;
        Run::level(fleet, self.levels)?;
        self.log.read(&fleet.store)?;
        let done = std::mem::take(&mut *self.run.done.lock().unwrap());
        self.epochs.push(Epoch { done, log: std::mem::take(&mut self.log) });
        Ok(())
    }

    fn allow(&self, exit: Option<usize>, from: Instant, after: Duration) {
        let until = Instant::now() + after;
        self.run.allowances.lock().unwrap().push(Allowance { exit, from, until });
    }
}
