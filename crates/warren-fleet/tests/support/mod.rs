//! Three real etcd processes, links (`warren-fleet run`) and exits that are not real but speak as one.

pub(crate) mod etcd;
pub(crate) mod exit;
pub(crate) mod proxy;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One test at a time has etcd processes.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) fn my_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command of `warren-fleet`. Returns what it printed.
pub(crate) fn fleet(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warren-fleet"))
        .args(arguments)
        .args(directories(directory))
        .output()
        .unwrap()
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

/// Waits for something. The wait is long only if the test fails.
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
