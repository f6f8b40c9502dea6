//! One run in a process group of its own, which is ended whole: when done, too late or interrupted.

use std::{
    io::Read,
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::interrupt::Interrupt;

/// Between asking a group to end and killing it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between looks at the child.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a command to its end and returns what it printed.
///
/// # Errors
/// A sentence with the last thing it said when it fails; when it takes longer than `limit`; when interrupted.
pub(super) fn run(
    command: &mut Command,
    limit: Duration,
    interrupt: &Interrupt,
    tick: &dyn Fn(),
) -> anyhow::Result<String> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().context("cannot start it")?;
    let mut group = Group { child };
    // Both are read while it runs, or a full pipe would stop it.
    let output = group.child.stdout.take().map(|pipe| thread::spawn(|| read(pipe)));
    let errors = group.child.stderr.take().map(|pipe| thread::spawn(|| read(pipe)));
    let status = group.wait(limit, interrupt, tick);
    // What still holds the pipes open ends here, so that the readers do.
    drop(group);
    let text = |reader: Option<thread::JoinHandle<String>>| reader.and_then(|reader| reader.join().ok());
    let (output, errors) = (text(output).unwrap_or_default(), text(errors).unwrap_or_default());
    let status = status?;
    if !status.success() {
        let said = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        bail!("it failed with {status}: {}", said.trim());
    }
    Ok(output)
}

fn read(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before an error is still worth showing.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A child and all it started; dropping it ends them.
struct Group {
    child: Child,
}

impl Group {
    fn wait(
        &mut self,
        limit: Duration,
        interrupt: &Interrupt,
        tick: &dyn Fn(),
    ) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for it")? {
                return Ok(status);
            }
            interrupt.check()?;
            if start.elapsed() > limit {
                bail!("it took longer than {} s; --timeout allows more", limit.as_secs());
            }
            tick();
            thread::sleep(LOOK);
        }
    }

    /// Waits for the last of the group; returns whether it is gone.
    fn is_gone_within(&mut self, group: Pid, patience: Duration) -> bool {
        let start = Instant::now();
        loop {
            // The child stays in its group until it was waited for.
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended && test_kill_process_group(group).is_err() {
                return true;
            }
            if start.elapsed() >= patience {
                return false;
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        // What removes namespaces and devices on its way out gets the time for it.
        for signal in [Signal::TERM, Signal::KILL] {
            if self.is_gone_within(group, Duration::ZERO) {
                return;
            }
            // Nobody left to take the signal is what is wanted.
            let _ = kill_process_group(group, signal);
            if self.is_gone_within(group, PATIENCE) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<String> {
        run(Command::new("sh").args(["-c", line]), limit, interrupt, &|| ())
    }

    #[test]
    fn failure_is_told_in_the_childs_last_words() {
        let error = shell("echo one >&2; echo two >&2; exit 3", PATIENCE, &Interrupt::default()).unwrap_err();
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
        assert_eq!(shell("sleep 60 & echo done", PATIENCE, &Interrupt::default()).unwrap(), "done\n");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
