//! Processes of nft that own tables.

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

/// What owns tables: a child of this process, or of the one that makes this one's runs of nft.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A child.
    Child(Box<Process>),
    /// A child of the process that was asked for it.
    Asked(Asked),
}

/// An owner that another process keeps.
#[derive(Debug)]
pub(crate) struct Asked {
    number: u64,
    runner: &'static dyn NftRunner,
    /// Waits for its end from the first ruleset on.
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

    /// Waits until the process has ended, which takes its tables along.
    pub(crate) async fn ended(&mut self) {
        match self {
            Self::Child(process) => process.ended().await,
            Self::Asked(Asked { end, .. }) => {
                match end {
                    Some(end) => drop(end.await),
                    None => std::future::pending().await,
                }
                // It is told once.
                *end = None;
            }
        }
    }

    /// Gives nft a ruleset, all of which takes effect or nothing.
    pub(crate) async fn load(&mut self, ruleset: &str) -> Result<(), NftError> {
        match self {
            Self::Child(process) => process.load(ruleset).await,
            Self::Asked(asked) => asked.load(ruleset).await,
        }
    }

    /// Ends the process, and so its tables.
    pub(crate) async fn end(self) {
        match self {
            Self::Child(process) => process.end().await,
            Self::Asked(asked) => {
                // Without the one that was asked there is no process any more either.
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
                // The end of the process that was asked is for whoever started that one to see.
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
/// The kernel removes them when that socket is closed, and lets nobody else change them. The process reads commands from
/// a pipe, so it ends when this process does, however that happens.
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
                // A Ctrl-C in the terminal is for the daemon, which still needs the table while it stops.
                .process_group(0);
            Ok(())
        })?;
        let input = child.stdin.take().ok_or(NftError::Gone)?;
        let output = BufReader::new(pipe::Receiver::from_owned_fd(reader.into())?);
        Ok(Self { child, input, output })
    }

    /// Waits until the process has ended, which takes its tables along.
    pub(super) async fn ended(&mut self) {
        // An error means that there is no such process to wait for.
        drop(self.child.wait().await);
    }

    /// Waits as [`Self::ended`] does, while the process is used.
    #[allow(deprecated, reason = "an `OwnedFd` keeps its descriptor open for as long as it is registered")]
    pub(super) fn end_of(&self) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let descriptor = id.map(|id| pidfd_open(id, PidfdFlags::NONBLOCK)).transpose()?;
        let process = descriptor.map(|fd| AsyncFd::with_interest(fd, Interest::READABLE)).transpose()?;
        Ok(async move {
            match process {
                Some(process) => process.readable().await.map(drop),
                // It was waited for.
                None => Ok(()),
            }
        })
    }

    /// Gives nft a ruleset, all of which takes effect or nothing.
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

    /// Ends the process, and so its tables.
    pub(super) async fn end(self) {
        let Self { mut child, input, output } = self;
        drop((input, output));
        if timeout(PATIENCE, child.wait()).await.is_err() {
            // An error means that it has ended by itself meanwhile.
            let _ = child.kill().await;
        }
    }
}

/// The ruleset as one line, because an interactive nft takes each line for a command of its own.
fn one_line(ruleset: &str) -> String {
    let mut line = String::with_capacity(ruleset.len());
    for statement in ruleset.lines().map(str::trim).filter(|statement| !statement.is_empty()) {
        line.push_str(statement);
        line.push_str(if statement.ends_with(['{', ';']) { " " } else { "; " });
    }
    line
}

/// The next number of an owner that another process is asked for.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// A command that only prints, by which the end of the answer before it is known.
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
