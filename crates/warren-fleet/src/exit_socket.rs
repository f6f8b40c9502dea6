//! The connection to the exit: a Unix socket that the exit binds.

use std::path::PathBuf;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio::time::sleep;
use warren_fleet_link::{ExitMessage, FleetMessage, read_frame, write_frame};

/// The pauses between attempts to connect grow from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// Most messages that wait for an exit that does not read. A full copy of 131,072 clients is 400.
const MOST_WAITING: usize = 4000;

/// What a connection to the exit tells the link.
pub(crate) enum FromExit {
    /// The exit has accepted a connection. Messages for it go here.
    Connected(mpsc::Sender<FleetMessage>),
    Said(ExitMessage),
    Gone,
}

/// Connects to the exit again and again, one connection after the other.
pub(crate) async fn run(path: PathBuf, report: mpsc::Sender<FromExit>) {
    let mut pause = PAUSES.0;
    let mut has_warned = false;
    loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => {
                (pause, has_warned) = (PAUSES.0, false);
                tracing::info!("connected to the exit at {}", path.display());
                if serve(stream, &report).await.is_none() {
                    return;
                }
            }
            Err(error) if !has_warned => {
                has_warned = true;
                tracing::warn!(
                    "cannot connect to the exit at {}: {error}; it has to run with [fleet] in exit.toml; trying again",
                    path.display()
                );
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Carries messages until the connection ends. `None` if the link has ended.
async fn serve(stream: UnixStream, report: &mpsc::Sender<FromExit>) -> Option<()> {
    let (from, mut to) = stream.into_split();
    let (sender, mut messages) = mpsc::channel::<FleetMessage>(MOST_WAITING);
    report.send(FromExit::Connected(sender)).await.ok()?;
    let reading = tokio::spawn(read(from, report.clone()));
    let writing = async {
        while let Some(message) = messages.recv().await {
            if let Err(error) = write_frame(&mut to, &message).await {
                tracing::warn!("the exit cannot be told: {error}");
                return;
            }
        }
    };
    let abort = reading.abort_handle();
    tokio::select! {
        () = writing => abort.abort(),
        _ = reading => {}
    }
    report.send(FromExit::Gone).await.ok()
}

async fn read(mut from: OwnedReadHalf, report: mpsc::Sender<FromExit>) {
    loop {
        match read_frame::<ExitMessage>(&mut from).await {
            Ok(Some(message)) => {
                if report.send(FromExit::Said(message)).await.is_err() {
                    return;
                }
            }
            Ok(None) => return tracing::info!("the exit has closed the connection"),
            Err(error) => return tracing::warn!("the exit's message is refused: {error}"),
        }
    }
}
