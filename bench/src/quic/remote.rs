//! The client's handle of the exit's process. Requests and answers are one line of JSON each.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use warren_quic::key::PublicKey;

use super::snapshot::Snapshot;

/// Longest time that the exit may take to close its connections.
const PATIENCE: Duration = Duration::from_secs(3);
const OTHER: &str = "the exit answered another request";

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Send(bool),
    Snapshot,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Listening(Listening),
    Done,
    Snapshot(Box<Snapshot>),
    Failed(String),
}

/// The exit's address and public key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Listening {
    pub(super) address: SocketAddr,
    pub(super) key: String,
}

impl Listening {
    pub(super) fn key(&self) -> anyhow::Result<PublicKey> {
        self.key.parse().context("the exit's key is not valid")
    }
}

/// The exit's process. Dropping this value ends the process.
pub(super) struct Remote {
    child: Child,
    /// The exit's standard input. Closing it makes the exit stop.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(super) listening: Listening,
}

impl Remote {
    /// Starts this program again as the exit, with the same arguments, and waits until it listens.
    pub(super) fn start() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        Self::spawn(Command::new(program).args(std::env::args_os().skip(1)).args(["--side", "exit"]))
    }

    pub(super) fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        // The exit inherits standard error, so that the user sees its messages.
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut output = BufReader::new(output.context("the exit has no standard output")?);
        let answer = receive(&mut output);
        let mut remote = Self {
            child,
            input,
            output,
            listening: Listening { address: ([0; 4], 0).into(), key: String::new() },
        };
        // `remote` is made before the answer is checked, so that an early return drops it, which ends the exit.
        let Answer::Listening(listening) = answer? else { bail!(OTHER) };
        remote.listening = listening;
        Ok(remote)
    }

    pub(super) fn send(&mut self, on: bool) -> anyhow::Result<()> {
        let Answer::Done = self.ask(&Request::Send(on))? else { bail!(OTHER) };
        Ok(())
    }

    pub(super) fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let Answer::Snapshot(snapshot) = self.ask(&Request::Snapshot)? else { bail!(OTHER) };
        Ok(*snapshot)
    }

    /// Closes the exit's standard input and waits for the process to end.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.input = None;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().context("cannot wait for the exit")? {
                if !status.success() {
                    bail!("the exit failed with {status}");
                }
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("the exit did not end within {} s", PATIENCE.as_secs())
    }

    fn ask(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let mut line = serde_json::to_string(request).context("cannot write a request as JSON")?;
        line.push('\n');
        let input = self.input.as_mut().context("the exit was stopped")?;
        input.write_all(line.as_bytes()).and_then(|()| input.flush()).context("the exit ended")?;
        receive(&mut self.output)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads an answer. Fails if it is [`Answer::Failed`].
fn receive(output: &mut BufReader<ChildStdout>) -> anyhow::Result<Answer> {
    let mut line = String::new();
    if output.read_line(&mut line).context("cannot read the exit's answer")? == 0 {
        bail!("the exit ended without an answer");
    }
    let answer = serde_json::from_str(&line)
        .with_context(|| format!("cannot understand the exit's answer {line:?}"))?;
    if let Answer::Failed(reason) = answer {
        bail!("{reason}");
    }
    Ok(answer)
}
