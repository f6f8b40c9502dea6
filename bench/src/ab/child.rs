//! Runs a variant in its own process group. All processes of the group are killed when the run ends, exceeds its time limit or is
//! interrupted.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{
    interrupt::Interrupt,
    vpn::process::{Running, last_words},
};

/// How often to check whether the child has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a command until it ends, and returns its standard output.
///
/// # Errors
/// Fails if the command fails (the error has the last line that it printed), if it takes longer than `limit`, or if the
/// user interrupts.
pub(super) fn run(
    command: &mut Command,
    limit: Duration,
    interrupt: &Interrupt,
    tick: &dyn Fn(),
) -> anyhow::Result<String> {
    let mut running = Running::start(command).context("cannot start it")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = running.try_wait()? {
            break status;
        }
        // An early return drops `running`, which ends the whole process group.
        interrupt.check()?;
        if start.elapsed() > limit {
            bail!("it took longer than {} s; --timeout allows more", limit.as_secs());
        }
        tick();
        // The end of the child is noticed up to `LOOK` late. This does not change the figures, because the child measures its own
        // time.
        thread::sleep(LOOK);
    };
    let (output, errors) = running.end();
    if !status.success() {
        bail!("it failed with {status}: {}", last_words(&errors));
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    fn shell(line: &str, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<String> {
        run(Command::new("sh").args(["-c", line]), limit, interrupt, &|| ())
    }

    #[test]
    fn failure_is_told_in_the_childs_last_words() {
        let error = shell("echo one >&2; echo two >&2; exit 3", LIMIT, &Interrupt::default()).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("exit status: 3") && message.ends_with(": two"), "{message}");
    }

    #[test]
    fn late_child_is_ended_with_all_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let line = format!("sleep 60 & echo $! > {}; wait", file.display());
        let start = Instant::now();
        let error = shell(&line, Duration::from_millis(300), &Interrupt::default()).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
        let pid = std::fs::read_to_string(file).unwrap();
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn what_outlives_its_parent_in_the_group_is_ended_too() {
        let start = Instant::now();
        assert_eq!(shell("sleep 60 & echo done", LIMIT, &Interrupt::default()).unwrap(), "done\n");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
