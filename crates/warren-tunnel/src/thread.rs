//! Starting the workers, each on its own thread.

use std::net::UdpSocket;

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::{mpsc, oneshot};
use warren_quic::driver::Endpoint;
use warren_quic::key::PrivateKey;
use warren_quic::settings::WorkerPlace;
use warren_tun::Ring;

use super::hand_over::{self, HandOver};
use super::handle::{Reports, Thread, WorkerHandle};
use super::message::Report;
use super::rings::Rings;
use super::run::Worker;
use super::wireguard::{WireGuard, WireGuardCarrier};
use crate::tuning::Tuning;

/// Maximum number of commands that wait for a worker.
const COMMAND_QUEUE: usize = 1024;
/// Maximum number of reports that wait for the control plane. A worker with a full queue stops receiving from the carrier.
const REPORT_QUEUE: usize = 1024;
/// How many task polls pass before the runtime checks sockets again. With the default of 61, bulk traffic in
/// one direction delays packets of the other direction by dozens of batches.
const EVENT_INTERVAL: u32 = 16;

/// The parts from which workers make their QUIC endpoints, each on its own thread.
#[allow(missing_docs, reason = "each variant's comment covers its fields")]
pub enum Carrier {
    /// For a client. Each request to connect carries its own socket.
    Client { tuning: Tuning, identity: PrivateKey },
    /// For an exit.
    Exit {
        /// The settings of its connections.
        tuning: Tuning,
        /// The exit's key, and the old key while clients learn the new one.
        identities: Vec<PrivateKey>,
        /// The sockets of each worker, bound already.
        sockets: Vec<Vec<UdpSocket>>,
        /// The parts that serve WireGuard. `None` if the exit does not serve WireGuard. Only the first worker serves it.
        wireguard: Option<WireGuardCarrier>,
        /// Secret of the stateless reset tokens. It stays the same over restarts, so that a new process can reset the old one's
        /// connections.
        reset_key: [u8; 64],
    },
}

/// Starts the workers' threads and waits until every endpoint is ready. Without rings, each write to the TUN is a
/// system call.
///
/// # Errors
/// When a thread, its runtime or its QUIC endpoint cannot be made. Threads that have started then end.
pub async fn spawn(carrier: Carrier, rings: Rings) -> anyhow::Result<(WorkerHandle, Reports)> {
    let shares = carrier.shares(rings);
    let ways = hand_over::between(shares.len());
    let (mut workers, mut reports) = (Vec::new(), Vec::new());
    for (share, ways) in shares.into_iter().zip(ways) {
        let (worker, from) = start(share, ways).await?;
        workers.push(worker);
        reports.push(from);
    }
    Ok((WorkerHandle::new(workers), Reports::new(reports)))
}

/// One worker's share of the carrier.
struct Share {
    /// The settings, which contain the worker's place.
    tuning: Tuning,
    role: Role,
    ring: Option<Ring>,
    wireguard: Option<WireGuardCarrier>,
}

enum Role {
    Client(PrivateKey),
    Exit { identities: Vec<PrivateKey>, sockets: Vec<UdpSocket>, reset_key: [u8; 64] },
}

async fn start(share: Share, ways: HandOver) -> anyhow::Result<(Thread, mpsc::Receiver<Report>)> {
    let (commands, command_queue) = mpsc::channel(COMMAND_QUEUE);
    let (report_queue, reports) = mpsc::channel(REPORT_QUEUE);
    let (started, start) = oneshot::channel();
    let number = share.tuning.settings.worker.index();
    let thread = std::thread::Builder::new()
        .name(format!("warren-worker-{number}"))
        .spawn(move || {
            // Done here, because an affinity is set for the calling thread.
            if share.tuning.pin {
                pin(usize::from(number));
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .event_interval(EVENT_INTERVAL)
                .build()
                .context("cannot start the worker's runtime; check the limits on descriptors and memory");
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            // The endpoint registers its sockets with this thread's runtime, so it is made inside.
            runtime.block_on(async move {
                let Share { tuning, role, ring, wireguard } = share;
                let made =
                    role.endpoint(&tuning).and_then(|endpoint| Ok((endpoint, made(wireguard, &tuning)?)));
                match made {
                    Ok((endpoint, wireguard)) => {
                        // If the daemon has given up meanwhile, it does not read this answer.
                        drop(started.send(Ok(())));
                        let mut worker =
                            Worker::new(endpoint, ring, tuning, ways, command_queue, report_queue);
                        worker.wireguard = wireguard;
                        worker.run().await;
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        })
        .context("cannot start the worker thread; check the limits on processes and memory")?;
    start.await.context("the worker thread ended before it was ready; see the log, and start it again")??;
    Ok((Thread::new(commands, thread), reports))
}

fn made(wireguard: Option<WireGuardCarrier>, tuning: &Tuning) -> anyhow::Result<Option<Box<WireGuard>>> {
    let Some(carrier) = wireguard else { return Ok(None) };
    let made = WireGuard::new(carrier, &tuning.settings);
    Ok(Some(Box::new(made.context("cannot use the sockets for WireGuard; check the limits on descriptors")?)))
}

/// Ties this thread to one of the cores that the process may use.
fn pin(number: usize) {
    let pinned = sched_getaffinity(None).and_then(|allowed| {
        // Uses only allowed cores, because taskset(1) or a container may leave some out.
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        let mut own = CpuSet::new();
        if let Some(core) = cores.get(number % cores.len().max(1)) {
            own.set(*core);
        }
        sched_setaffinity(None, &own)
    });
    if let Err(error) = pinned {
        tracing::warn!("cannot tie worker {number} to a core: {error}; the kernel chooses its core");
    }
}

impl Carrier {
    /// Divides the carrier among the workers.
    fn shares(self, rings: Rings) -> Vec<Share> {
        let mut wireguard = None;
        let (tuning, roles): (_, Box<dyn Iterator<Item = Role>>) = match self {
            Self::Client { tuning, identity } => {
                (tuning, Box::new(std::iter::repeat_with(move || Role::Client(identity.clone()))))
            }
            Self::Exit { tuning, identities, sockets, wireguard: carrier, reset_key } => {
                wireguard = carrier;
                let role = move |sockets| Role::Exit { identities: identities.clone(), sockets, reset_key };
                (tuning, Box::new(sockets.into_iter().map(role)))
            }
        };
        tuning.tun_writes.found(rings.are_there());
        let share = |((place, role), ring)| {
            let mut tuning = tuning.clone();
            tuning.settings.worker = place;
            Share { tuning, role, ring, wireguard: wireguard.take() }
        };
        WorkerPlace::all(tuning.workers).zip(roles).zip(rings.shares()).map(share).collect()
    }
}

impl Role {
    fn endpoint(self, tuning: &Tuning) -> anyhow::Result<Endpoint> {
        let settings = tuning.settings.clone();
        let endpoint = match self {
            Self::Client(identity) => Endpoint::client(settings, identity),
            Self::Exit { identities, sockets, reset_key } => {
                Endpoint::exit(settings, identities, sockets, reset_key)
            }
        };
        endpoint.context("cannot make the QUIC endpoint; check the limits on descriptors, and the keys")
    }
}
