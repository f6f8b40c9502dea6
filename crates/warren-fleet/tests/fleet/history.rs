//! Three exits enrol, invite and remove at once while the store has faults, and everything that happened is checked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use super::check::{Figures, check};
use super::faults::{Fault, Faults};
use super::store_log::StoreLog;
use super::support::plant;
use super::workload::{Done, Workload};
use super::{Fleet, client, number_key, three_exits_one_behind_a_way};

/// Everything that happened between two restores of the store.
pub(crate) struct Epoch {
    pub(crate) done: Vec<Done>,
    pub(crate) log: StoreLog,
}

/// How long a removal may take to reach an exit, if the removal is acknowledged within a certain period.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// `None` for all exits.
    pub(crate) exit: Option<usize>,
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

/// What the threads of a run share.
pub(crate) struct Run {
    pub(crate) fleet: RwLock<Fleet>,
    pub(crate) done: Mutex<Vec<Done>>,
    pub(crate) is_over: AtomicBool,
    pub(crate) allowances: Mutex<Vec<Allowance>>,
    /// Whether an exit knows that its clock is wrong, so that it redeems nothing.
    pub(crate) is_clock_wrong: [AtomicBool; 3],
}

/// Why a history has failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The history could not be made, so it shows nothing.
    Unmade(String),
    /// The checker has found this violation.
    Found(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::Unmade(why)
    }
}

/// Runs this many operations and these faults in turn, then checks everything.
fn history(operations: usize, faults: &[Fault]) -> Result<Figures, Failed> {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let run = Run {
        fleet: RwLock::new(fleet),
        done: Mutex::new(Vec::new()),
        is_over: AtomicBool::new(false),
        allowances: Mutex::new(Vec::new()),
        is_clock_wrong: Default::default(),
    };
    let workload = Workload::new();
    let disturbing = Faults::new(&run, ways)?;
    let epochs = std::thread::scope(|scope| {
        for number in 0..3 * workload.workers {
            let (run, workload) = (&run, &workload);
            scope.spawn(move || workload.work(run, number % 3, number));
        }
        let _ending = Ending(&run);
        disturbing.disturb(operations, faults)
    })?;
    check(&run, &epochs).map_err(Failed::Found)
}

/// Ends the run, even if a fault fails. Otherwise the threads would never end.
struct Ending<'a>(&'a Run);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

impl Run {
    /// Waits until every exit has all stored rows, and fails if that takes too long. No operation may begin meanwhile.
    pub(crate) fn level(fleet: &Fleet, number: usize) -> Result<(), Failed> {
        let last = number_key(50_000_000 + number);
        let since = Instant::now();
        let is_late = || since.elapsed() > Duration::from_secs(30);
        fleet.exits[1].store(&[client(&format!("level{number}"), last).into()]);
        while fleet.exits.iter().any(|exit| exit.client(last).is_none()) {
            if is_late() {
                return Err(Failed::Found("an exit does not hear of changes".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        while fleet.exits[1..].iter().any(|exit| {
            let rows = fleet.exits[0].seen(|seen| seen.rows.clone());
            exit.seen(|seen| seen.rows != rows)
        }) {
            if is_late() {
                return Err(Failed::Found("the exits do not agree".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

const ALL_FAULTS: [Fault; 8] = [
    Fault::CutToStore,
    Fault::CutToExit,
    Fault::StopLeader,
    Fault::CompactBehind,
    Fault::KillLeader,
    Fault::Cut,
    Fault::StepClock,
    Fault::Restore,
];

#[test]
fn a_history_with_faults_has_nothing_twice_and_loses_nothing() {
    let figures = history(4_000, &ALL_FAULTS).unwrap();
    println!("{figures}");
    assert!(figures.tests_something(), "the test does not test: {figures}");
}

#[test]
#[ignore = "takes minutes"]
fn a_long_history_with_faults_has_nothing_twice_and_loses_nothing() {
    let figures = history(100_000, &ALL_FAULTS).unwrap();
    println!("{figures}");
    assert!(figures.operations >= 100_000 && figures.tests_something(), "{figures}");
}

#[test]
#[ignore = "takes some minutes, and what it plants is in every link of this process; run it by name"]
fn the_checker_finds_planted_bugs() {
    const BUGS: [(&str, &[Fault]); 5] = [
        ("ReadThenPut", &[]),
        ("NewestBasis", &[]),
        ("CompactionIgnored", &[Fault::CompactBehind]),
        ("LateTransactionMissed", &[Fault::CutToExit, Fault::StopLeader]),
        ("TombstoneForgotten", &[Fault::Restore]),
    ];
    if !cfg!(debug_assertions) {
        panic!("only a build with debug assertions has planted bugs");
    }
    // The control: the same faults without a bug.
    let faults = BUGS.map(|(_, faults)| faults).concat();
    let figures = history(1_500, &faults).unwrap();
    assert!(figures.tests_something(), "the test does not test: {figures}");
    for (bug, faults) in BUGS {
        let found = (1..=TRIES).find_map(|number| Some((number, finding(bug, faults)?)));
        let (number, found) = found.unwrap_or_else(|| panic!("{bug} was not found"));
        println!("{bug}, in history {number}: {found}");
    }
}

/// Maximum number of histories until a bug is found. Whether a transaction succeeds late is a matter of chance.
const TRIES: usize = 8;

/// What the checker finds in a history with a bug.
fn finding(bug: &'static str, faults: &[Fault]) -> Option<String> {
    let _planted = Planted::new(bug);
    match history(1_500, faults) {
        Err(Failed::Found(found)) => Some(found),
        Err(Failed::Unmade(why)) => panic!("a history with {bug} shows nothing: {why}"),
        Ok(figures) => {
            println!("{bug} is not in {figures}");
            None
        }
    }
}

/// A bug that is planted until this is dropped, even if its test fails.
struct Planted;

impl Planted {
    fn new(bug: &'static str) -> Self {
        plant(Some(bug));
        Self
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        plant(None);
    }
}
