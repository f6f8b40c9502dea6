//! The exit's process. It prints its address and key, then answers the requests on its standard input until the input ends.

use std::io::{BufRead as _, Write as _};

use anyhow::{Context as _, bail};
use tokio::sync::oneshot;
use warren_quic::key::PrivateKey;

use super::{
    options::Options,
    remote::{Answer, Listening, Request},
    worker::{Role, WorkerHandle},
};

/// Serves until standard input is closed. If the client's process ends, the kernel closes the pipe.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let identity = PrivateKey::generate().context("cannot draw a key")?;
    let key = identity.public().to_string();
    let (started, start) = oneshot::channel();
    let worker = match WorkerHandle::start(options, Role::Exit { identity, started }) {
        Ok(worker) => worker,
        // The client's process waits for an answer on standard output, so the error is sent as an answer.
        Err(error) => return say(&Answer::Failed(format!("{error:#}"))),
    };
    let address = start.blocking_recv().context("the exit has no address")?;
    say(&Answer::Listening(Listening { address, key }))?;
    // After this loop, dropping `worker` closes the connections.
    for line in std::io::stdin().lock().lines() {
        let line = line.context("cannot read standard input")?;
        let answer = match serde_json::from_str(&line) {
            Ok(Request::Send(on)) => worker.send(on).map(|()| Answer::Done),
            Ok(Request::Snapshot) => worker.snapshot().map(|snapshot| Answer::Snapshot(Box::new(snapshot))),
            Err(error) => {
                bail!("cannot understand {line:?}: {error}; only this program itself uses `--side exit`")
            }
        };
        say(&answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))))?;
    }
    Ok(())
}

fn say(answer: &Answer) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(answer).context("cannot write an answer as JSON")?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("cannot answer")
}
