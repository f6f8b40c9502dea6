//! Programs that a benchmark starts: daemons, whose output goes to a file, and commands, for whose end the benchmark waits.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::topology::wait_for;
use crate::interrupt::Interrupt;

/// Time between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(3);

/// A child and the process group that it leads. Dropping this value ends the whole group.
///
/// The terminal sends the SIGINT of Ctrl-C only to this program's group. So the child does not get the signal, and this program
/// can end its children in the right order.
#[derive(Debug)]
struct Group {
    child: Child,
    /// Whether dropping this value leaves the processes running.
    is_spared: bool,
}

impl Group {
    fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).stdin(Stdio::null()).spawn()?;
        Ok(Self { child, is_spared: false })
    }

    fn try_wait(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot look at a child")
    }

    /// Waits until all processes of the group have ended, but at most `patience`. Returns whether they have ended.
    fn is_gone_within(&mut self, group: Pid, patience: Duration) -> bool {
        let start = Instant::now();
        loop {
            // A child that has ended stays in its group as a zombie until its parent has waited for it.
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended && test_kill_process_group(group).is_err() {
                return true;
            }
            if start.elapsed() >= patience {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        if self.is_spared {
            return;
        }
        // SIGTERM comes first, because a process may have to remove namespaces and devices.
        for signal in [Signal::TERM, Signal::KILL] {
            // If the group has ended, it must not be signalled, because the kernel may have reused its number.
            if self.is_gone_within(group, Duration::ZERO) {
                return;
            }
            // Fails if the group has ended in the meantime.
            let _ = kill_process_group(group, signal);
            if self.is_gone_within(group, PATIENCE) {
                return;
            }
        }
    }
}

/// A program that runs until this value is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    group: Group,
    log: PathBuf,
}

impl Process {
    /// Starts a program. Its output goes to NAME.log in `directory`.
    pub(crate) fn start(name: &str, directory: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        // The duplicate shares the file position, so the lines of both outputs stay in the order in which they were printed.
        let errors = file.try_clone().context("cannot duplicate a descriptor")?;
        let group = Group::start(command.stdout(file).stderr(errors))
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { name: name.to_owned(), group, log })
    }

    pub(crate) fn id(&self) -> u32 {
        self.group.child.id()
    }

    /// Returns what the program has printed so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns an error if the program has ended. The error contains the last line that the program printed.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.group.try_wait()? {
            bail!("{} ended with {status}: {}", self.name, last_words(&self.output()));
        }
        Ok(())
    }

    /// Waits until the program prints `text`.
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

/// A running command, whose output is collected.
#[derive(Debug)]
pub(crate) struct Running {
    group: Group,
    output: Option<JoinHandle<String>>,
    errors: Option<JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut group = Group::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        // Both pipes are read while the command runs, because a full pipe would block the command.
        let (output, errors) = (group.child.stdout.take().map(read), group.child.stderr.take().map(read));
        Ok(Self { group, output, errors })
    }

    pub(crate) fn try_wait(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.group.try_wait()
    }

    /// Ends the command and all processes that it started, and returns its standard output and standard error.
    pub(crate) fn end(self) -> (String, String) {
        let Self { group, output, errors } = self;
        // Dropping the group comes first, because the readers end only when no process of the group has the pipes open.
        drop(group);
        let text = |reader: Option<JoinHandle<String>>| reader.and_then(|reader| reader.join().ok());
        (text(output).unwrap_or_default(), text(errors).unwrap_or_default())
    }

    /// Like [`Self::end`], but does not end the processes that the command started.
    fn end_alone(mut self) -> (String, String) {
        self.group.is_spared = true;
        self.end()
    }
}

/// Runs a command until it ends, and returns its standard output. If the command fails, the error contains its last line.
pub(crate) fn run(command: &mut Command, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<String> {
    Ok(run_to_success(command, limit, interrupt)?.output)
}

/// Like [`run`], but also returns standard error.
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

/// The exit status and the output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    name: String,
    status: ExitStatus,
    pub(crate) output: String,
    pub(crate) errors: String,
}

/// Runs a command until it ends. A non-zero exit code is not an error.
pub(crate) fn run_whatever_it_returns(
    command: &mut Command,
    limit: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<Ended> {
    // In `ip netns exec NAMESPACE PROGRAM`, messages use PROGRAM as the name of the command.
    let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    let program =
        if words.get(1).is_some_and(|word| *word == "netns") { words.get(4) } else { words.first() };
    let name = program.map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let mut running = Running::start(command).with_context(|| format!("cannot start {name}"))?;
    let status = wait_for(&format!("the end of {name}"), limit, interrupt, || running.try_wait())?;
    // A daemon that the command started must continue to run. The daemon has closed the pipes.
    let (output, errors) = running.end_alone();
    Ok(Ended { name, status, output, errors })
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // If reading fails, the output read so far is used.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the last line that is not empty.
pub(crate) fn last_words(text: &str) -> &str {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it printed nothing")
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
