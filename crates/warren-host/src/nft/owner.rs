//! nft processes that own tables.

use std::{
    io,
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest, unix::AsyncFd},
    net::unix::pipe,
    process::{Child, ChildStdin},
    task::JoinHandle,
    time::timeout,
};

use super::{NftCall, NftError, NftRunner, PATIENCE, call::runner, reason, spawn};

/// An owner of tables: a child of this process, or of the process that runs nft for it.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A child.
    Child(Box<Process>),
    /// A child of the process behind the runner.
    Asked(Asked),
}

/// An owner that the process behind the runner keeps.
#[derive(Debug)]
pub(crate) struct Asked {
    number: u64,
    runner: &'static dyn NftRunner,
    /// Waits for the owner's end, starting with the first ruleset.
    end: Option<JoinHandle<()>>,
}

impl Owner {
    pub(crate) fn start() -> Result<Self, NftError> {
        match runner() {
            Some(runner) => {
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                Ok(Self::Asked(Asked { number, runner, end: None }))
            }
            None => Ok(Self::Child(Box::new(Process::start()?))),
        }
    }

    /// Waits until the process has ended, and its tables with it.
    pub(crate) async fn ended(&mut self) {
        match self {
            Self::Child(process) => process.ended().await,
            Self::Asked(Asked { end, .. }) => {
                match end {
                    Some(end) => drop(end.await),
                    None => std::future::pending().await,
                }
                // The end is reported once.
                *end = None;
            }
        }
    }

    /// Loads a ruleset atomically.
    pub(crate) async fn load(&mut self, ruleset: &str) -> Result<(), NftError> {
        match self {
            Self::Child(process) => process.load(ruleset).await,
            Self::Asked(asked) => asked.load(ruleset).await,
        }
    }

    /// Ends the process, and its tables with it.
    pub(crate) async fn end(self) {
        match self {
            Self::Child(process) => process.end().await,
            Self::Asked(asked) => {
                // If the process behind the runner is gone, so is the owner.
                drop(asked.runner.run(NftCall::EndOwner { owner: asked.number }).await);
            }
        }
    }
}

impl Asked {
    async fn load(&mut self, ruleset: &str) -> Result<(), NftError> {
        let Self { number: owner, runner, .. } = *self;
        runner.run(NftCall::LoadOwned { owner, ruleset: ruleset.into() }).await?;
        self.end.get_or_insert_with(|| {
            tokio::spawn(async move {
                // If the process behind the runner ends, the process that started it notices.
                if runner.run(NftCall::AwaitOwner { owner }).await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        Ok(())
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(end) = &self.end {
            end.abort();
        }
    }
}

/// An interactive nft whose netlink socket owns the tables that it makes.
///
/// The kernel removes them when that socket is closed, and lets nobody else change them. The process reads commands
/// from a pipe, so it ends when this process does, whatever the reason.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<pipe::Receiver>,
}

impl Process {
    pub(super) fn start() -> Result<Self, NftError> {
        let (reader, writer) = io::pipe()?;
        let mut child = spawn(|command| {
            command
                .arg("-i")
                .stdin(Stdio::piped())
                .stdout(writer.try_clone()?)
                .stderr(writer.try_clone()?)
                // A Ctrl-C in the terminal must end only the daemon, which still needs the table while it stops.
                .process_group(0);
            Ok(())
        })?;
        let input = child.stdin.take().ok_or(NftError::Gone)?;
        let output = BufReader::new(pipe::Receiver::from_owned_fd(reader.into())?);
        Ok(Self { child, input, output })
    }

    /// Waits until the process has ended, and its tables with it.
    pub(super) async fn ended(&mut self) {
        // An error means that there is no process to wait for.
        drop(self.child.wait().await);
    }

    /// Waits like [`Self::ended`] while the process stays usable.
    #[allow(deprecated, reason = "an `OwnedFd` keeps its descriptor open for as long as it is registered")]
    pub(super) fn end_of(&self) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let descriptor = id.map(|id| pidfd_open(id, PidfdFlags::NONBLOCK)).transpose()?;
        let process = descriptor.map(|fd| AsyncFd::with_interest(fd, Interest::READABLE)).transpose()?;
        Ok(async move {
            match process {
                Some(process) => process.readable().await.map(drop),
                // The process was already reaped.
                None => Ok(()),
            }
        })
    }

    /// Loads a ruleset atomically.
    pub(super) async fn load(&mut self, ruleset: &str) -> Result<(), NftError> {
        self.command(&one_line(ruleset)).await.map(drop)
    }

    async fn command(&mut self, command: &str) -> Result<String, NftError> {
        let answer = timeout(PATIENCE, async {
            self.input.write_all(format!("{command}\n{SENTINEL}\n").as_bytes()).await?;
            let mut answer = String::new();
            loop {
                let start = answer.len();
                if self.output.read_line(&mut answer).await? == 0 {
                    return Err(NftError::Gone);
                }
                let is_last = answer.get(start..).is_some_and(|line| line.starts_with(SENTINEL_ANSWER));
                if is_last {
                    answer.truncate(start);
                    return Ok(answer);
                }
            }
        });
        let answer = answer.await.map_err(|_| NftError::Gone)??;
        match reason(&answer) {
            Some(reason) => Err(NftError::Refused(reason)),
            None => Ok(answer),
        }
    }

    /// Ends the process, and its tables with it.
    pub(super) async fn end(self) {
        let Self { mut child, input, output } = self;
        drop((input, output));
        if timeout(PATIENCE, child.wait()).await.is_err() {
            // An error means that it has ended by itself in the meantime.
            let _ = child.kill().await;
        }
    }
}

/// The ruleset on one line, because an interactive nft takes each line as a command of its own.
fn one_line(ruleset: &str) -> String {
    let mut line = String::with_capacity(ruleset.len());
    for statement in ruleset.lines().map(str::trim).filter(|statement| !statement.is_empty()) {
        line.push_str(statement);
        line.push_str(if statement.ends_with(['{', ';']) { " " } else { "; " });
    }
    line
}

/// The next owner's number for the process behind the runner.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// A command that only prints. Its output marks the end of the previous command's answer.
const SENTINEL: &str = "describe meta mark";
const SENTINEL_ANSWER: &str = "meta expression, datatype mark";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ruleset_on_one_line_keeps_its_statements_apart() {
        let text = "table inet x {\n\tflags owner;\n\tchain a {\n\t\tcounter drop\n\t}\n}\n";

        assert_eq!(one_line(text), "table inet x { flags owner; chain a { counter drop; }; }; ");
    }
}
