//! The control plane's side of the workers: it sends them orders and receives their reports.

use std::task::Poll;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};
use warren_quic::socket::ThreadCache;
use warren_tun::Queue;

use super::counters::Snapshot;
use super::forward::Forwarding;
use super::message::{Command, Report};

/// The control plane's side of all workers.
pub struct WorkerHandle {
    workers: Vec<Thread>,
}

/// One worker's thread.
pub(super) struct Thread {
    commands: mpsc::Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

/// What the workers report, each one's reports in order.
pub struct Reports {
    workers: Vec<mpsc::Receiver<Report>>,
    /// The worker that is asked first. It changes each time, so that none waits for ever behind a busy one.
    first: usize,
}

impl WorkerHandle {
    pub(super) fn new(workers: Vec<Thread>) -> Self {
        Self { workers }
    }

    /// Sends an order to the worker that it is for, or to every worker where all must know. An order to a worker that has
    /// ended goes nowhere: its reports have ended too, which is how the control plane learns of it.
    pub async fn send(&self, command: Command) {
        match command {
            Command::OpenSession { session, client, route } => {
                self.send_all(|| Command::OpenSession { session, client, route: route.clone() }).await;
            }
            Command::Attach { session, connection, index } => {
                self.send_all(|| Command::Attach { session, connection, index }).await;
            }
            Command::Detach { connection } => self.send_all(|| Command::Detach { connection }).await,
            Command::SetSilent { connection, silent } => {
                self.send_all(|| Command::SetSilent { connection, silent }).await;
            }
            Command::EndSession { session } => self.send_all(|| Command::EndSession { session }).await,
            Command::CloseDevice { device } => self.send_all(|| Command::CloseDevice { device }).await,
            Command::SetForwarding { forwarding } => {
                self.send_all(|| Command::SetForwarding { forwarding: forwarding.clone() }).await;
            }
            Command::SetIdentities { identities, close_others } => {
                self.send_all(|| Command::SetIdentities { identities: identities.clone(), close_others })
                    .await;
            }
            Command::Rouse => self.send_all(|| Command::Rouse).await,
            Command::Stop { code, reason } => {
                self.send_all(|| Command::Stop { code, reason: reason.clone() }).await;
            }
            // Those of one index report in the order in which they were ordered.
            Command::Connect { index, .. } => {
                self.send_to(index as usize % self.workers.len().max(1), command).await;
            }
            Command::SendControl { connection, .. }
            | Command::Close { connection, .. }
            | Command::KnowAsClient { connection }
            | Command::Rebind { connection, .. } => self.send_to(connection.worker(), command).await,
            Command::OpenDevice { .. } | Command::Snapshot(_) | Command::ThreadCache(_) => {
                self.send_to(0, command).await
            }
            #[cfg(debug_assertions)]
            Command::Panic => self.send_to(0, command).await,
        }
    }

    /// Gives each worker its queue of the TUN device, in place of the one that it has.
    pub async fn open_device(&self, queues: Vec<Queue>, forwarding: &Forwarding) {
        for (number, queue) in queues.into_iter().enumerate() {
            self.send_to(number, Command::OpenDevice { queue, forwarding: forwarding.clone() }).await;
        }
    }

    /// Tells the others what a worker has reported, if that concerns them: of a connection whose flows they read too, or of the
    /// device whose other queues they have. Who reported it takes no harm from hearing it again.
    pub async fn tell_others(&self, report: &Report) {
        if self.workers.len() < 2 {
            return;
        }
        match report {
            Report::Closed { connection, .. } => self.send(Command::Detach { connection: *connection }).await,
            Report::Answers { connection, answers } => {
                let (connection, silent) = (*connection, !answers);
                self.send(Command::SetSilent { connection, silent }).await;
            }
            Report::DeviceFailed { device, .. } => {
                self.send(Command::CloseDevice { device: *device }).await;
            }
            Report::Connecting { .. }
            | Report::ConnectFailed { .. }
            | Report::Connected { .. }
            | Report::Control { .. } => {}
        }
    }

    /// Every counter of all workers, or none when one has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let mut answers = Vec::new();
        for number in 0..self.workers.len() {
            let (answer, snapshot) = oneshot::channel();
            self.send_to(number, Command::Snapshot(answer)).await;
            answers.push(snapshot);
        }
        let mut snapshots = Vec::new();
        for answer in answers {
            snapshots.push(answer.await.ok()?);
        }
        Some(Snapshot::of_all(snapshots))
    }

    /// What the allocator keeps for each worker's thread; a worker that has ended has left nothing.
    pub async fn thread_caches(&self) -> Vec<ThreadCache> {
        let mut caches = Vec::new();
        for number in 0..self.workers.len() {
            let (answer, cache) = oneshot::channel();
            self.send_to(number, Command::ThreadCache(answer)).await;
            caches.extend(cache.await);
        }
        caches
    }

    /// Closes every connection with a code that the other side reads, and waits for the threads to end.
    pub async fn stop(mut self, code: u32, reason: String) {
        self.send(Command::Stop { code, reason }).await;
        for worker in &mut self.workers {
            let Some(thread) = worker.thread.take() else { continue };
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

    async fn send_all(&self, command: impl Fn() -> Command) {
        for worker in &self.workers {
            drop(worker.commands.send(command()).await);
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

    /// The next report of any worker; nothing once one of them has ended.
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
