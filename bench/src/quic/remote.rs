//! The exit's process as the client sees it: requests and answers, one JSON line each.

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

/// How long the exit may take to close its connections.
const PATIENCE: Duration = Duration::from_secs(3);

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

/// Where the exit is, and how it proves that it is the one.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Listening {
    pub(super) address: SocketAddr,
    pub(super) key: String,
}

impl Listening {
    pub(super) fn key(&self) -> anyhow::Result<PublicKey> {
        self.key.parse().context("the exit's key is not one")
    }
}

/// The exit's process; dropping it ends it.
pub(super) struct Remote {
    child: Child,
    /// Closed to make it stop.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    listening: Listening,
}

impl Remote {
    /// Starts this program with the same arguments as the other side, and waits until it listens.
    pub(super) fn start() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        Self::spawn(Command::new(program).args(std::env::args_os().skip(1)).args(["--side", "exit"]))
    }

    pub(super) fn spawn(command: &mut Command) -> anyhow::Result<Self> {
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
        match answer? {
            Answer::Listening(listening) => remote.listening = listening,
            Answer::Failed(reason) => bail!("{reason}"),
            Answer::Done | Answer::Snapshot(_) => bail!("the exit did not say where it listens"),
        }
        Ok(remote)
    }

    pub(super) fn listening(&self) -> &Listening {
        &self.listening
    }

    pub(super) fn send(&mut self, on: bool) -> anyhow::Result<()> {
        match self.ask(&Request::Send(on))? {
            Answer::Done => Ok(()),
            Answer::Failed(reason) => bail!("{reason}"),
            Answer::Listening(_) | Answer::Snapshot(_) => {
                bail!("the exit gave an answer to another question")
            }
        }
    }

    pub(super) fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        match self.ask(&Request::Snapshot)? {
            Answer::Snapshot(snapshot) => Ok(*snapshot),
            Answer::Failed(reason) => bail!("{reason}"),
            Answer::Listening(_) | Answer::Done => bail!("the exit gave an answer to another question"),
        }
    }

    /// Lets the exit end by itself.
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

fn receive(output: &mut BufReader<ChildStdout>) -> anyhow::Result<Answer> {
    let mut line = String::new();
    if output.read_line(&mut line).context("cannot read the exit's answer")? == 0 {
        bail!("the exit ended without an answer");
    }
    serde_json::from_str(&line).with_context(|| format!("the exit gave an answer that is none: {line:?}"))
}
