//! Programs that a visit starts: daemons whose output goes to a file, and commands that run to their end.

use std::{
    fs::File,
    io::Read,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use super::topology::wait_for;
use crate::interrupt::Interrupt;

/// Between asking a program to end and killing it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A program that runs until this is dropped, in a process group of its own: Ctrl-C is for this program alone, which
/// then ends the others in order.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program; its output goes to the file NAME.log in `directory`.
    ///
    /// # Errors
    /// A sentence when it cannot be started.
    pub(crate) fn start(name: &str, directory: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let errors = file.try_clone().context("cannot duplicate a descriptor")?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Fails with its last words if it ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait().context("cannot look at a child")? {
            bail!("{} ended with {status}: {}", self.name, last_words(&self.output()));
        }
        Ok(())
    }

    /// Waits until it prints `text`.
    pub(crate) fn wait_for_output(
        &mut self,
        text: &str,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let what = format!("\"{text}\" from {}", self.name);
        wait_for(&what, limit, interrupt, || {
            self.check()?;
            Ok(self.output().contains(text).then_some(()))
        })
        .with_context(|| format!("{} last said: {}", self.name, last_words(&self.output())))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child, PATIENCE);
    }
}

/// Runs a command to its end and returns what it printed on standard output.
///
/// # Errors
/// A sentence with the last thing it said when it fails; when it takes longer than `limit`; when interrupted.
pub(crate) fn run(command: &mut Command, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<String> {
    Ok(run_to_success(command, limit, interrupt)?.output)
}

/// As [`run`], with what it printed on standard error.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_to_success(
    command: &mut Command,
    limit: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<Ended> {
    let ended = run_whatever_it_returns(command, limit, interrupt)?;
    if !ended.status.success() {
        let Ended { name, status, output, errors } = ended;
        bail!("{name} failed with {status}: {}", last_words(&format!("{output}\n{errors}")));
    }
    Ok(ended)
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    name: String,
    status: ExitStatus,
    pub(crate) output: String,
    pub(crate) errors: String,
}

/// Runs a command to its end, whatever its exit code.
///
/// # Errors
/// A sentence when it cannot be started or takes longer than `limit`; when interrupted.
pub(crate) fn run_whatever_it_returns(
    command: &mut Command,
    limit: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<Ended> {
    // `ip netns exec NAMESPACE PROGRAM` is about the program.
    let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    let program =
        if words.get(1).is_some_and(|word| *word == "netns") { words.get(4) } else { words.first() };
    let name = program.map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    // Both are read while it runs, or a full pipe would stop it.
    let output = child.stdout.take().map(read);
    let errors = child.stderr.take().map(read);
    let status = wait_for(&format!("the end of {name}"), limit, interrupt, || {
        child.try_wait().context("cannot look at a child")
    });
    // What still holds the pipes open ends here, so that the readers do; a daemon that was left behind has closed them.
    if status.is_err() {
        end(&mut child, PATIENCE);
    }
    let status = status?;
    let text = |reader: Option<JoinHandle<Vec<u8>>>| {
        let bytes = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Ended { name, status, output: text(output), errors: text(errors) })
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// The last line with something in it.
fn last_words(text: &str) -> &str {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing")
}

/// Ends a child and its group: politely, then not.
fn end(child: &mut Child, patience: Duration) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| {
        if let Some(group) = group {
            // Nobody left in the group is what is wanted.
            let _ = kill_process_group(group, signal);
        }
    };
    if matches!(child.try_wait(), Ok(None)) {
        signal(Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < patience && matches!(child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
    }
    signal(Signal::KILL);
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[test]
    fn command_that_fails_is_told_in_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let error = run(&mut command, LIMIT, &Interrupt::default()).unwrap_err().to_string();
        assert_eq!(error, "sh failed with exit status: 3: two");
    }

    #[test]
    fn daemon_ends_with_its_handle_and_what_it_said_is_known_until_then() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; exec sleep 60"]);
        let mut process = Process::start("sleeper", directory.path(), &mut command).unwrap();
        process.wait_for_output("ready", LIMIT, &Interrupt::default()).unwrap();
        let id = process.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn daemon_that_ended_is_an_error_with_its_last_words() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no device; exit 1"]);
        let mut process = Process::start("daemon", directory.path(), &mut command).unwrap();
        let error = process.wait_for_output("ready", LIMIT, &Interrupt::default()).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains("daemon ended with exit status: 1: no device"), "{message}");
    }
}
