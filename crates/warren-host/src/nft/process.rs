//! An nft process that owns tables.

use std::{fs::File, io, process::Stdio};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest, unix::AsyncFd},
    net::unix::pipe,
    process::{Child, ChildStdin},
    time::timeout,
};

use super::{
    NftError,
    program::{PATIENCE, reason, spawn},
};

/// An interactive nft whose netlink socket owns the tables that it makes.
///
/// The kernel removes them when that socket is closed, and lets nobody else change them. The process reads commands
/// from a pipe, so it ends when this process does, whatever the reason.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<pipe::Receiver>,
    /// Whether the process keeps a lock open. A process that undoes the changes of a killed one waits for
    /// that lock.
    is_locked: bool,
}

impl Process {
    /// Starts the process. It keeps `lock` open until it ends.
    pub(super) fn start(lock: Option<File>) -> Result<Self, NftError> {
        let (reader, writer) = io::pipe()?;
        // Standard output is needed for answers, so the process inherits the lock under its own descriptor number. No
        // other program can inherit the lock by mistake: the runtime has one thread, and nothing here waits.
        lock.as_ref().map(|lock| fcntl_setfd(lock, FdFlags::empty())).transpose().map_err(io::Error::from)?;
        let mut child = spawn(|command| {
            command
                // -s lists without counters, -i reads commands from standard input.
                .args(["-s", "-i"])
                .stdin(Stdio::piped())
                // One pipe for both: errors come on standard error, and the line that ends an answer comes on standard output.
                .stdout(writer.try_clone()?)
                .stderr(writer.try_clone()?)
                // A Ctrl-C in the terminal must end only the daemon, which still needs the table while it stops.
                .process_group(0);
            Ok(())
        })?;
        let input = child.stdin.take().ok_or(NftError::Gone)?;
        let output = BufReader::new(pipe::Receiver::from_owned_fd(reader.into())?);
        Ok(Self { child, input, output, is_locked: lock.is_some() })
    }

    /// Whether the process keeps a lock open.
    pub(super) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Waits until the process has ended, and its tables with it.
    pub(super) async fn ended(&mut self) {
        // An error means that there is no process to wait for.
        drop(self.child.wait().await);
    }

    /// Waits like [`Self::ended`], but without borrowing the process, so that it stays usable.
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

    /// Carries out a command of one line and returns the output. An empty command shows whether nft answers.
    pub(super) async fn command(&mut self, command: &str) -> Result<String, NftError> {
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
        let Self { mut child, input, output, .. } = self;
        // An interactive nft ends with its input.
        drop((input, output));
        if timeout(PATIENCE, child.wait()).await.is_err() {
            // An error means that it has ended by itself in the meantime.
            let _ = child.kill().await;
        }
    }
}

/// Puts the ruleset on one line, because an interactive nft takes each line as a separate command.
fn one_line(ruleset: &str) -> String {
    let mut line = String::with_capacity(ruleset.len());
    for statement in ruleset.lines().map(str::trim).filter(|statement| !statement.is_empty()) {
        line.push_str(statement);
        line.push_str(if statement.ends_with(['{', ';']) { " " } else { "; " });
    }
    line
}

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
