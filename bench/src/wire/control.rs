//! A running wire's Unix socket. A request is one line (`stats`, `set up delay=30ms`), an answer is one line of JSON or `error: ...`.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use clap::ValueEnum as _;

use super::{
    request::{Handle, State},
    settings::Change,
};
use crate::{interrupt::Interrupt, report, way::Ways};

/// The directory of all sockets.
const DIRECTORY: &str = "/run/warren-bench";
/// How often the listener checks whether to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for the other side's line.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request in bytes.
const LINE: u64 = 4_096;

/// The listener of a wire. Dropping this value removes the socket.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    stop: Interrupt,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens under a name. Fails if a wire with that name runs.
    pub(super) fn start(name: &str, handle: Handle) -> anyhow::Result<Self> {
        let path = path(name)?;
        fs::create_dir_all(DIRECTORY).with_context(|| format!("cannot make {DIRECTORY}"))?;
        // A socket file may be left from a killed wire. Only a running wire accepts connections.
        if UnixStream::connect(&path).is_ok() {
            bail!("a wire {name} runs already; choose another name with --name");
        }
        // A wire that was killed has not removed its socket.
        let _ = fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let stop = Interrupt::default();
        let mut control = Self { path, stop: stop.clone(), thread: None };
        listener.set_nonblocking(true).context("cannot set up the listener")?;
        let thread = thread::Builder::new().name("wire-control".to_owned());
        control.thread =
            Some(thread.spawn(move || serve(&listener, &handle, &stop)).context("cannot start a thread")?);
        Ok(control)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Removing the directory fails as long as other wires have sockets in it.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(DIRECTORY);
    }
}

/// Sends a request to the wire with this name. Fails if no such wire runs, or if the wire returns an error.
pub(super) fn ask(name: &str, request: &str) -> anyhow::Result<State> {
    let path = path(name)?;
    let mut stream = UnixStream::connect(&path)
        .with_context(|| format!("no wire {name} runs here; running wires have sockets in {DIRECTORY}"))?;
    let mut answer = String::new();
    let exchange = |stream: &mut UnixStream, answer: &mut String| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        stream.read_to_string(answer)
    };
    exchange(&mut stream, &mut answer).with_context(|| format!("the wire {name} does not answer"))?;
    if let Some(error) = answer.strip_prefix("error: ") {
        bail!("{}", error.trim());
    }
    serde_json::from_str(&answer).with_context(|| format!("cannot understand the answer of the wire {name}"))
}

fn serve(listener: &UnixListener, handle: &Handle, stop: &Interrupt) {
    while !stop.is_set() {
        match listener.accept() {
            // Errors are ignored, because they mean that the client no longer waits for the answer.
            Ok((stream, _)) => drop(converse(stream, handle)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            // If the listener fails, the wire continues to run but can no longer be controlled.
            Err(_) => return,
        }
    }
}

fn converse(mut stream: UnixStream, handle: &Handle) -> anyhow::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    // LINE limits the buffer for a client that sends no line end.
    BufReader::new((&stream).take(LINE)).read_line(&mut line)?;
    let answer = match answer(&line, handle) {
        Ok(answer) => answer,
        Err(error) => format!("error: {error:#}"),
    };
    stream.write_all(format!("{answer}\n").as_bytes())?;
    Ok(())
}

fn answer(line: &str, handle: &Handle) -> anyhow::Result<String> {
    let line = line.trim();
    let state = match line.split_once(' ') {
        None if line == "stats" => handle.state()?,
        Some(("set", rest)) => {
            let (way, settings) = rest.split_once(' ').unwrap_or((rest, ""));
            let ways =
                Ways::from_str(way, false).map_err(|_| anyhow!("\"{way}\" is not up, down or both"))?;
            let change: Change = settings.parse().map_err(|error: String| anyhow!(error))?;
            handle.change(&change.each_way(ways))?
        }
        _ => bail!("\"{line}\" is not a request; requests are \"stats\" and \"set up|down|both SETTINGS\""),
    };
    report::json(&state)
}

fn path(name: &str) -> anyhow::Result<PathBuf> {
    // Slashes are not allowed, because the name is part of a path below the directory.
    let allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(allowed) {
        bail!("\"{name}\" cannot be the name of a wire; use letters, digits, \"-\", \"_\" and \".\"");
    }
    Ok(Path::new(DIRECTORY).join(format!("wire-{name}.sock")))
}
