//! The connection to the exit: a Unix socket that the exit binds.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio::time::sleep;
use warren_fleet_link::{ExitMessage, FleetMessage, read_frame, write_frame};

/// The shortest and the longest pause between attempts to connect. The pauses grow.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// Maximum number of messages that wait for an exit that does not read. A whole copy of 131,072 clients takes 400 messages.
const MOST_WAITING: usize = 4000;

/// A message from a connection to the exit, for the link.
pub(crate) enum FromExit {
    /// The exit has accepted a connection. Messages for the exit go into this channel.
    Connected(mpsc::Sender<FleetMessage>),
    Said(ExitMessage),
    Gone,
}

/// The end of a connection is logged only if the connection has lasted this long.
const LASTING: Duration = Duration::from_secs(5);

/// Connects to the exit again and again, with one connection at a time.
pub(crate) async fn run(path: PathBuf, report: mpsc::Sender<FromExit>) {
    let mut pause = PAUSES.0;
    let mut has_warned = false;
    // Whether the latest connection ended at once. If so, nothing is logged until a connection lasts.
    let mut is_failing = false;
    loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => {
                has_warned = false;
                if !is_failing {
                    tracing::info!("connected to the exit at {}", path.display());
                }
                let since = Instant::now();
                let Some(why) = serve(stream, &report).await else { return };
                let has_lasted = since.elapsed() >= LASTING;
                if has_lasted || !is_failing {
                    tracing::warn!("the connection to the exit has ended: {why}; trying again");
                }
                is_failing = !has_lasted;
                // A connection that ends at once does not reset the pause. Otherwise the loop would spin.
                if has_lasted {
                    pause = PAUSES.0;
                }
            }
            Err(error) if !has_warned => {
                has_warned = true;
                tracing::warn!(
                    "cannot connect to the exit at {}: {error}; it must run with [fleet] in exit.toml; trying again",
                    path.display()
                );
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Carries messages until the connection ends. Returns why it ended, or `None` if the link has ended.
async fn serve(stream: UnixStream, report: &mpsc::Sender<FromExit>) -> Option<String> {
    let (from, mut to) = stream.into_split();
    let (sender, mut messages) = mpsc::channel::<FleetMessage>(MOST_WAITING);
    report.send(FromExit::Connected(sender)).await.ok()?;
    // Reading is a task of its own, because a read that is dropped halfway loses bytes.
    let mut reading = tokio::spawn(read(from, report.clone()));
    let writing = async {
        while let Some(message) = messages.recv().await {
            if let Err(error) = write_frame(&mut to, &message).await {
                return format!("cannot write to the exit: {error}");
            }
        }
        "this program has ended it".to_owned()
    };
    let why = tokio::select! {
        why = writing => {
            reading.abort();
            why
        }
        read = &mut reading => read.unwrap_or_else(|error| error.to_string()),
    };
    report.send(FromExit::Gone).await.ok()?;
    Some(why)
}

/// Reads until the connection ends. Returns why.
async fn read(mut from: OwnedReadHalf, report: mpsc::Sender<FromExit>) -> String {
    loop {
        match read_frame::<ExitMessage>(&mut from).await {
            Ok(Some(message)) => {
                if report.send(FromExit::Said(message)).await.is_err() {
                    return "this program ends".to_owned();
                }
            }
            Ok(None) => return "the exit has closed it".to_owned(),
            Err(error) => return format!("the exit's message is refused: {error}"),
        }
    }
}
