//! A running wire's Unix socket: one line in (`stats`, `set up delay=30ms`), one line of JSON or `error: ...` out.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use clap::ValueEnum as _;

use super::{
    request::{Handle, State},
    settings::Change,
};
use crate::{report, way::Ways};

/// Where sockets are, by name.
const DIRECTORY: &str = "/run/warren-bench";
/// How often the listener looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// How long one side waits for the other's line.
const PATIENCE: Duration = Duration::from_secs(2);
/// No request is longer.
const LINE: u64 = 4_096;

/// A listener; dropping it removes the socket.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens under a name.
    ///
    /// # Errors
    /// A sentence when a wire of that name runs, or the socket cannot be made.
    pub(super) fn start(name: &str, handle: Handle) -> anyhow::Result<Self> {
        let path = path(name)?;
        fs::create_dir_all(DIRECTORY).with_context(|| format!("cannot make {DIRECTORY}"))?;
        if UnixStream::connect(&path).is_ok() {
            bail!("a wire {name} runs already; choose another name with --name");
        }
        // What a killed wire left.
        let _ = fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
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
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The directory stays as long as others have sockets in it.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(DIRECTORY);
    }
}

/// Asks the wire of that name.
///
/// # Errors
/// A sentence when there is none, or what it says is wrong with the request.
pub(super) fn ask(name: &str, request: &str) -> anyhow::Result<State> {
    let path = path(name)?;
    let mut stream = UnixStream::connect(&path)
        .with_context(|| format!("no wire {name} runs here; those that do have sockets in {DIRECTORY}"))?;
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
    serde_json::from_str(&answer).with_context(|| format!("the wire {name} answered with what is no state"))
}

fn serve(listener: &UnixListener, handle: &Handle, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        match listener.accept() {
            // Who asked may be gone before the answer; that is theirs to know.
            Ok((stream, _)) => drop(converse(stream, handle)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(_) => return,
        }
    }
}

fn converse(mut stream: UnixStream, handle: &Handle) -> anyhow::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
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
        _ => bail!("\"{line}\" is no request; there are \"stats\" and \"set up|down|both SETTINGS\""),
    };
    report::json(&state)
}

fn path(name: &str) -> anyhow::Result<PathBuf> {
    let allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(allowed) {
        bail!("a wire cannot be called \"{name}\"; letters, digits, \"-\", \"_\" and \".\" are allowed");
    }
    Ok(Path::new(DIRECTORY).join(format!("wire-{name}.sock")))
}
