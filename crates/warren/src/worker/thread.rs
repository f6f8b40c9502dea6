//! Starting a worker on its own thread, and the handle that the control plane keeps.

use std::net::UdpSocket;
use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::sync::{mpsc, oneshot};
use warren_quic::driver::Endpoint;
use warren_quic::key::PrivateKey;

use super::counters::Snapshot;
use super::message::{Command, Report};
use super::run::Worker;
use crate::tuning::Tuning;

/// Orders that may wait for a worker.
const COMMAND_QUEUE: usize = 1024;
/// Reports that may wait for the control plane; a worker with a full queue stops taking from the carrier.
const REPORT_QUEUE: usize = 1024;
/// How many task polls pass before the runtime looks at sockets again. The default of 61 lets bulk traffic in one
/// direction delay the other's arrival by dozens of batches.
const EVENT_INTERVAL: u32 = 16;

/// What a worker needs to make its QUIC endpoint, on its own thread.
pub(crate) enum Carrier {
    /// A client's: sockets come with each connection.
    Client { tuning: Tuning, identity: PrivateKey },
    /// An exit's: sockets that are bound already.
    Exit {
        tuning: Tuning,
        /// Its key, and the old one while clients learn a new one.
        identities: Vec<PrivateKey>,
        sockets: Vec<UdpSocket>,
        /// Secret of the stateless reset tokens; kept over restarts, so that a new process can reset the old one's connections.
        reset_key: [u8; 64],
    },
}

/// The control plane's side of a worker.
pub(crate) struct WorkerHandle {
    commands: mpsc::Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a worker thread and waits until its endpoint stands.
///
/// # Errors
/// When the thread, its runtime or the QUIC endpoint cannot be made.
pub(crate) async fn spawn(carrier: Carrier) -> anyhow::Result<(WorkerHandle, mpsc::Receiver<Report>)> {
    let (commands, command_queue) = mpsc::channel(COMMAND_QUEUE);
    let (report_queue, reports) = mpsc::channel(REPORT_QUEUE);
    let (started, start) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("warren-worker-0".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .event_interval(EVENT_INTERVAL)
                .build()
                .context("cannot start the worker's runtime; check the limits on descriptors and memory");
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            runtime.block_on(async move {
                let tuning = carrier.tuning();
                match carrier.endpoint() {
                    Ok(endpoint) => {
                        // Nobody waits for the answer when the daemon gave up meanwhile.
                        drop(started.send(Ok(())));
                        Worker::new(endpoint, tuning, command_queue, report_queue).run().await;
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        })
        .context("cannot start the worker thread; check the limits on processes and memory")?;
    start.await.context("the worker thread ended before it started")??;
    Ok((WorkerHandle { commands, thread: Some(thread) }, reports))
}

impl Carrier {
    fn tuning(&self) -> Tuning {
        let (Self::Client { tuning, .. } | Self::Exit { tuning, .. }) = self;
        tuning.clone()
    }

    fn endpoint(self) -> anyhow::Result<Endpoint> {
        match self {
            Self::Client { tuning, identity } => {
                Endpoint::client(tuning.settings, identity).context("cannot make the QUIC endpoint")
            }
            Self::Exit { tuning, identities, sockets, reset_key } => {
                Endpoint::exit(tuning.settings, identities, sockets, reset_key)
                    .context("cannot make the QUIC endpoint")
            }
        }
    }
}

impl WorkerHandle {
    /// Sends an order. An order to a worker that has ended goes nowhere: its reports have ended too, which is how the
    /// control plane learns of it.
    pub(crate) async fn send(&self, command: Command) {
        drop(self.commands.send(command).await);
    }

    /// Every counter of the worker, or none when it has ended.
    pub(crate) async fn snapshot(&self) -> Option<Snapshot> {
        let (answer, snapshot) = oneshot::channel();
        self.send(Command::Snapshot(answer)).await;
        snapshot.await.ok()
    }

    /// Closes every connection with a code that the other side reads, and waits for the thread to end.
    pub(crate) async fn stop(mut self, code: u32, reason: String) {
        self.send(Command::Stop { code, reason }).await;
        let Some(thread) = self.thread.take() else { return };
        if tokio::task::spawn_blocking(move || thread.join()).await.is_err() {
            tracing::error!("cannot wait for the worker thread");
        }
    }
}
