//! The control plane's side of the workers: it sends them orders and receives their reports.

use std::task::Poll;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};
use warren_quic::socket::ThreadCache;
use warren_tun::Queue;

use super::counters::Snapshot;
use super::forward::Forwarding;
use super::message::{Command, ConnectionCommand, Report, SharedCommand};

/// The control plane's side of all workers.
pub struct WorkerHandle {
    workers: Vec<Thread>,
}

/// One worker's thread.
pub(super) struct Thread {
    commands: mpsc::Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

/// The workers' reports. The reports of one worker keep their order.
pub struct Reports {
    workers: Vec<mpsc::Receiver<Report>>,
    /// The worker that is polled first. It changes each time, so that none waits for ever behind a busy one.
    first: usize,
}

impl WorkerHandle {
    pub(super) fn new(workers: Vec<Thread>) -> Self {
        Self { workers }
    }

    /// Sends a command to the worker of its connection. If the worker has ended, drops the command. The control plane learns of
    /// the end from the reports, which end too.
    pub async fn send(&self, command: ConnectionCommand) {
        let number = match &command {
            // Connections of one index report in the order of their commands.
            ConnectionCommand::Connect { index, .. } => *index as usize % self.workers.len().max(1),
            ConnectionCommand::SendControl { connection, .. }
            | ConnectionCommand::Close { connection, .. }
            | ConnectionCommand::KnowAsClient { connection }
            | ConnectionCommand::Rebind { connection, .. } => connection.worker(),
        };
        self.send_to(number, Command::ForConnection(command)).await;
    }

    /// Sends a command to every worker.
    pub async fn send_all(&self, command: SharedCommand) {
        for worker in &self.workers {
            drop(worker.commands.send(Command::ForAll(command.clone())).await);
        }
    }

    /// Makes the first worker panic, for tests.
    #[cfg(debug_assertions)]
    pub async fn panic(&self) {
        self.send_to(0, Command::Panic).await;
    }

    /// Gives each worker its queue of the TUN device, in place of its earlier one.
    pub async fn open_device(&self, queues: Vec<Queue>, forwarding: &Forwarding) {
        for (number, queue) in queues.into_iter().enumerate() {
            self.send_to(number, Command::OpenDevice { queue, forwarding: forwarding.clone() }).await;
        }
    }

    /// Passes a report on to the other workers, because it concerns them: they also read packets of the connection's flows, or
    /// have the device's other queues. The worker that reported also gets it, which does no harm.
    pub async fn tell_others(&self, report: &Report) {
        if self.workers.len() < 2 {
            return;
        }
        match report {
            Report::Closed { connection, .. } => {
                self.send_all(SharedCommand::Detach { connection: *connection }).await
            }
            Report::Answers { connection, answers } => {
                let (connection, silent) = (*connection, !answers);
                self.send_all(SharedCommand::SetSilent { connection, silent }).await;
            }
            Report::DeviceFailed { device, .. } => {
                self.send_all(SharedCommand::CloseDevice { device: *device }).await;
            }
            Report::Connecting { .. }
            | Report::ConnectFailed { .. }
            | Report::Connected { .. }
            | Report::WireGuardUp { .. }
            | Report::Control { .. } => {}
        }
    }

    /// Returns every counter of all workers, or `None` when a worker has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let mut answers = Vec::new();
        // All workers are asked before the first answer is awaited, so that they count at about the same moment.
        for number in 0..self.workers.len() {
            let (answer, snapshot) = oneshot::channel();
            self.send_to(number, Command::Snapshot(answer)).await;
            answers.push(snapshot);
        }
        let mut snapshots = Vec::new();
        for answer in answers {
            snapshots.push(answer.await.ok()?.sum_up());
        }
        Some(Snapshot::of_all(snapshots))
    }

    /// Returns the memory that the allocator keeps for each worker's thread. A worker that has ended is left out.
    pub async fn thread_caches(&self) -> Vec<ThreadCache> {
        let mut caches = Vec::new();
        for number in 0..self.workers.len() {
            let (answer, cache) = oneshot::channel();
            self.send_to(number, Command::ThreadCache(answer)).await;
            caches.extend(cache.await);
        }
        caches
    }

    /// Closes every connection with a code for the other side, and waits for the threads to end.
    pub async fn stop(mut self, code: u32, reason: String) {
        self.send_all(SharedCommand::Stop { code, reason }).await;
        for worker in &mut self.workers {
            let Some(thread) = worker.thread.take() else { continue };
            // A join blocks its thread. The daemon's own thread has other work in the meantime.
            if tokio::task::spawn_blocking(move || thread.join()).await.is_err() {
                tracing::error!("cannot wait for the worker thread");
            }
        }
    }

    async fn send_to(&self, number: usize, command: Command) {
        if let Some(worker) = self.workers.get(number) {
            drop(worker.commands.send(command).await);
        }
    }
}

impl Thread {
    pub(super) fn new(commands: mpsc::Sender<Command>, thread: JoinHandle<()>) -> Self {
        Self { commands, thread: Some(thread) }
    }
}

impl Reports {
    pub(super) fn new(workers: Vec<mpsc::Receiver<Report>>) -> Self {
        Self { workers, first: 0 }
    }

    /// Returns the next report of any worker, or `None` once a worker has ended.
    pub async fn recv(&mut self) -> Option<Report> {
        std::future::poll_fn(|cx| {
            self.first = self.first.wrapping_add(1);
            let count = self.workers.len().max(1);
            for offset in 0..count {
                let number = self.first.wrapping_add(offset) % count;
                let Some(worker) = self.workers.get_mut(number) else { continue };
                if let Poll::Ready(report) = worker.poll_recv(cx) {
                    return Poll::Ready(report);
                }
            }
            Poll::Pending
        })
        .await
    }
}
