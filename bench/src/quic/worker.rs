//! The thread of a side, which has a runtime, an endpoint and the traffic, and the handle that sends commands to the thread.

use std::{net::SocketAddr, thread::JoinHandle, time::Duration};

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::{mpsc, oneshot};
use warren_quic::{driver::Endpoint, key::PrivateKey};

use super::{
    options::Options,
    remote::Listening,
    snapshot::Snapshot,
    traffic::{Command, Connect, Traffic},
};
use crate::namespace::Namespace;

/// tokio's `event_interval`. A Warren worker has the same value, so both poll their sockets equally often.
const EVENT_INTERVAL: u32 = 16;
/// Longest time until all handshakes are complete.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The side of a worker.
pub(super) enum Role {
    Client,
    /// Listens for connections, and authenticates itself with this key.
    Exit {
        identity: PrivateKey,
        started: oneshot::Sender<SocketAddr>,
    },
}

/// The handle of a side's thread. Dropping the handle closes the connections and waits for the thread to end.
pub(super) struct WorkerHandle {
    commands: mpsc::UnboundedSender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    /// Starts the thread in its namespace, and waits until its endpoint is ready.
    pub(super) fn start(options: &Options, role: Role) -> anyhow::Result<Self> {
        let namespace = match role {
            Role::Client => &options.client_namespace,
            Role::Exit { .. } => &options.exit_namespace,
        };
        let namespace = namespace.as_deref().map(Namespace::existing).transpose()?;
        let (commands, queue) = mpsc::unbounded_channel();
        let (started, start) = oneshot::channel();
        let options = options.clone();
        let thread = std::thread::Builder::new()
            .name("quic-worker".to_owned())
            .spawn(move || run(&options, namespace.as_ref(), role, queue, started))
            .context("cannot start a thread")?;
        let handle = Self { commands, thread: Some(thread) };
        start.blocking_recv().context("the thread ended before it was ready")??;
        Ok(handle)
    }

    /// Opens all connections and waits for their handshakes.
    pub(super) fn connect(&self, exit: &Listening) -> anyhow::Result<()> {
        let (done, mut answer) = oneshot::channel();
        self.tell(Command::Connect(Connect { remote: exit.address, exit_key: exit.key()?, done }))?;
        let start = std::time::Instant::now();
        // This loop polls the channel, because a blocking receive has no timeout.
        while start.elapsed() < CONNECT_TIMEOUT {
            match answer.try_recv() {
                Ok(result) => return result.with_context(|| format!("cannot connect to {}", exit.address)),
                Err(oneshot::error::TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(1)),
                Err(oneshot::error::TryRecvError::Closed) => break,
            }
        }
        anyhow::bail!("cannot connect to {}: no answer within {} s", exit.address, CONNECT_TIMEOUT.as_secs())
    }

    pub(super) fn send(&self, on: bool) -> anyhow::Result<()> {
        self.tell(Command::Send(on))
    }

    pub(super) fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let (answer, snapshot) = oneshot::channel();
        self.tell(Command::Snapshot(answer))?;
        snapshot.blocking_recv().context("its thread ended")?
    }

    fn tell(&self, command: Command) -> anyhow::Result<()> {
        self.commands.send(command).ok().context("its thread ended")
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    options: &Options,
    namespace: Option<&Namespace>,
    role: Role,
    commands: mpsc::UnboundedReceiver<Command>,
    started: oneshot::Sender<anyhow::Result<()>>,
) {
    let set_up = || {
        namespace.map_or(Ok(()), Namespace::enter_here)?;
        if options.pin { pin(&role) } else { Ok(()) }
    };
    let runtime = set_up().and_then(|()| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .build()
            .context("cannot start a runtime")
    });
    // An error is sent through `started`, because `start` waits for its answer.
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    runtime.block_on(async {
        match endpoint(options, role) {
            Ok(endpoint) => {
                drop(started.send(Ok(())));
                Traffic::new(endpoint, options.clone(), commands).run().await;
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
}

/// Pins the calling thread to the CPU of its side.
fn pin(role: &Role) -> anyhow::Result<()> {
    let allowed = sched_getaffinity(None).context("cannot get this process's CPUs")?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let cpu = match role {
        Role::Client => cpus.next(),
        Role::Exit { .. } => cpus.next_back(),
    };
    let mut only = CpuSet::new();
    only.set(cpu.context("this process has no CPU")?);
    // `None` means the calling thread, not the whole process.
    sched_setaffinity(None, &only).context("cannot pin a thread to its CPU")
}

fn endpoint(options: &Options, role: Role) -> anyhow::Result<Endpoint> {
    match role {
        Role::Client => {
            let identity = PrivateKey::generate().context("cannot draw a key")?;
            Ok(Endpoint::client(options.settings(), identity)?)
        }
        Role::Exit { identity, started } => {
            let socket = options.bind(options.address)?;
            let address = socket.local_addr()?;
            // The key of stateless reset tokens is fixed, because it need not be secret in a benchmark.
            let endpoint = Endpoint::exit(options.settings(), vec![identity], vec![socket], [0x77; 64])?;
            // Sending fails if the caller no longer waits for the address.
            let _ = started.send(address);
            Ok(endpoint)
        }
    }
}
