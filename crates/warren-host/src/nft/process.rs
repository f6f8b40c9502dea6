//! An nft process that owns tables.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    process::Stdio,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
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
/// from a pipe, so it ends when this process ends for any reason.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<pipe::Receiver>,
    /// A file in memory that holds the ruleset. nft reads its standard input one byte at a time, but an included file as a whole.
    ruleset: File,
    /// Whether the process holds a lock. A process that undoes the changes of a killed one waits for that
    /// lock.
    is_locked: bool,
}

impl Process {
    /// Starts the process. It keeps `lock` open until it ends.
    pub(super) fn start(lock: Option<File>) -> Result<Self, NftError> {
        let (reader, writer) = io::pipe()?;
        // Standard output is needed for answers. So the process inherits the lock and the ruleset under their own descriptor
        // numbers. No other program can inherit them by mistake, because the runtime has one thread and nothing here waits.
        let ruleset = File::from(memfd_create("ruleset", MemfdFlags::empty()).map_err(io::Error::from)?);
        lock.as_ref().map(|lock| fcntl_setfd(lock, FdFlags::empty())).transpose().map_err(io::Error::from)?;
        let mut child = spawn(|command| {
            command
                // -s lists without counters, -i reads commands from standard input.
                .args(["-s", "-i"])
                .stdin(Stdio::piped())
                // Both outputs share one pipe. Errors come on standard error, and the line that ends an answer comes on
                // standard output.
                .stdout(writer.try_clone()?)
                .stderr(writer.try_clone()?)
                // A Ctrl-C in the terminal must end only the daemon, which still needs the table while it stops.
                .process_group(0);
            Ok(())
        })?;
        fcntl_setfd(&ruleset, FdFlags::CLOEXEC).map_err(io::Error::from)?;
        let input = child.stdin.take().ok_or(NftError::Gone)?;
        let output = BufReader::new(pipe::Receiver::from_owned_fd(reader.into())?);
        Ok(Self { child, input, output, ruleset, is_locked: lock.is_some() })
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
        self.read(ruleset).await.map(drop)
    }

    /// Whether this nft answers and can read the file in memory.
    pub(super) async fn reads_rulesets(&mut self) -> bool {
        self.read("describe meta length\n").await.is_ok_and(|answer| answer.contains("meta expression"))
    }

    /// Makes nft read these lines. Returns the output.
    async fn read(&mut self, lines: &str) -> Result<String, NftError> {
        self.ruleset.set_len(0)?;
        self.ruleset.write_all_at(lines.as_bytes(), 0)?;
        self.command(&format!("include \"/proc/self/fd/{}\"", self.ruleset.as_raw_fd())).await
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

/// A command that only prints. Its output marks the end of the previous command's answer.
const SENTINEL: &str = "describe meta mark";
const SENTINEL_ANSWER: &str = "meta expression, datatype mark";
