//! Three real etcd processes, links (`warren-fleet run`), and stand-ins that speak to the links as exits do.

pub(crate) mod certificates;
pub(crate) mod etcd;
pub(crate) mod exit;
pub(crate) mod proxy;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of tests that run etcd processes at once. Such tests mostly wait, and more of them would slow down each other's
/// disk writes.
const AT_ONCE: usize = 2;
/// Number of tests that run etcd processes now.
static TAKEN: Mutex<usize> = Mutex::new(0);
static IS_FREE: Condvar = Condvar::new();

/// The right to run etcd processes. It ends when this value is dropped. Threads of the test may share it.
pub(crate) struct Turn(());

pub(crate) fn my_turn() -> Turn {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let free = IS_FREE.wait_while(taken, |taken| *taken == AT_ONCE);
    *free.unwrap_or_else(PoisonError::into_inner) += 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        IS_FREE.notify_one();
    }
}

/// The bug that links and commands have, one of `planted.rs`.
static PLANTED: Mutex<Option<&'static str>> = Mutex::new(None);

/// Plants a bug in every link and command that starts from now on, or in none.
pub(crate) fn plant(bug: Option<&'static str>) {
    *PLANTED.lock().unwrap_or_else(PoisonError::into_inner) = bug;
}

/// A command of `warren-fleet`. The file `clock` in the directory steps its clock.
fn warren_fleet(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warren-fleet"));
    command.env("WARREN_FLEET_CLOCK", directory.join("clock"));
    if let Some(bug) = *PLANTED.lock().unwrap_or_else(PoisonError::into_inner) {
        command.env("WARREN_FLEET_PLANTED", bug);
    }
    command
}

/// Runs a command of `warren-fleet`. Returns what it printed.
pub(crate) fn fleet(directory: &Path, arguments: &[&str]) -> Output {
    warren_fleet(directory).args(arguments).args(directories(directory)).output().unwrap()
}

/// Runs commands at the same time, each with its directory. Returns their outputs in the same order.
pub(crate) fn fleet_at_once(commands: &[(&Path, Vec<&str>)]) -> Vec<Output> {
    let start = |(directory, arguments): &(&Path, Vec<&str>)| {
        let mut command = warren_fleet(directory);
        command.args(arguments).args(directories(directory)).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let started: Vec<_> = commands.iter().map(start).collect();
    started.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

/// Runs a command that ends at a step, as if it were killed there.
pub(crate) fn fleet_dies(directory: &Path, step: &str, arguments: &[&str]) {
    let mut command = warren_fleet(directory);
    command.args(arguments).args(directories(directory)).env("WARREN_FLEET_DIES_AT", step);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), None, "{step}: {}", String::from_utf8_lossy(&output.stderr));
}

/// As [`fleet`], for a command that has to succeed.
pub(crate) fn fleet_ok(directory: &Path, arguments: &[&str]) -> String {
    let output = fleet(directory, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// As [`fleet`], for a command that has to fail. Returns why.
pub(crate) fn fleet_fails(directory: &Path, arguments: &[&str]) -> String {
    let output = fleet(directory, arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

pub(crate) fn directories(directory: &Path) -> Vec<String> {
    ["config", "runtime", "state"]
        .iter()
        .flat_map(|kind| [format!("--{kind}-dir"), directory.join(kind).display().to_string()])
        .collect()
}

/// Waits until `check` returns a value. The wait is long only if the test fails.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(since.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(done.success());
}
