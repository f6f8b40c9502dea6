//! The loop of one side: it handles received packets, then gives every connection payload to send. It works like Warren's own
//! worker.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Interval, MissedTickBehavior, interval},
};
use warren_quic::{
    driver::{ConnectionId, Endpoint, Event, Inbox, MAX_CONTROL_BACKLOG, SendError},
    key::PublicKey,
};

use super::{
    options::{Mode, Options},
    snapshot::{Count, Snapshot, Sockets, Totals},
};
use crate::usage::{Mark, peak_rss_kib};

/// Size of the buffers into which datagrams are copied. Warren's packet path copies packets in the same way.
const ARENA: usize = 64 * 1024;
/// Maximum number of datagrams for a connection in one turn.
const DATAGRAMS_PER_TURN: usize = 256;
/// Maximum number of writes to a connection's stream in one turn. Each write fills the stream's backlog.
const WRITES_PER_TURN: usize = 4;
/// Bytes that a datagram leaves free in its packet, so that an ACK frame fits too. Not used if the user gives the datagram size.
const SLACK: usize = 32;
const RTT_INTERVAL: Duration = Duration::from_millis(10);

/// A command to a side.
pub(super) enum Command {
    Connect(Connect),
    /// Start sending as much as the connections accept, or stop.
    Send(bool),
    Snapshot(oneshot::Sender<anyhow::Result<Snapshot>>),
    Stop,
}

/// The exit to connect to. `done` gets the answer when all connections are established or one has failed.
pub(super) struct Connect {
    pub(super) remote: SocketAddr,
    pub(super) exit_key: PublicKey,
    pub(super) done: oneshot::Sender<anyhow::Result<()>>,
}

/// The state of one side's thread.
pub(super) struct Traffic {
    endpoint: Endpoint,
    options: Options,
    commands: mpsc::UnboundedReceiver<Command>,
    inbox: Inbox,
    links: Vec<Link>,
    sending: bool,
    waiting: Option<Connect>,
    source: Vec<u8>,
    arena: BytesMut,
    delivered: Count,
    accepted: Count,
    /// The sum of the counters of connections that have ended.
    past: Totals,
    rtt: RttSampler,
    /// The first error that makes the run invalid.
    failure: Option<String>,
    stopping: bool,
}

/// Round-trip times of all connections, sampled at an interval.
struct RttSampler {
    tick: Pin<Box<Interval>>,
    /// Round-trip times in microseconds.
    samples: Vec<u32>,
}

struct Link {
    connection: ConnectionId,
    connected: bool,
    blocked: bool,
}

/// Whether a connection accepts more payload after it was filled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Filled {
    /// The connection accepts more immediately.
    More,
    /// The connection accepts more after it has reported an event.
    Blocked,
    /// The connection accepts more once a part of its backlog has been sent. Sending wakes this thread, but there is no event.
    Full,
}

impl Traffic {
    /// Must be called inside the side's runtime, because the timer belongs to it.
    pub(super) fn new(
        endpoint: Endpoint,
        options: Options,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        Self {
            endpoint,
            options,
            commands,
            inbox: Inbox::new(),
            links: Vec::new(),
            sending: false,
            waiting: None,
            // The payload of each datagram is a slice of `source`, so `source` has the size of the largest datagram.
            source: vec![0x5a; usize::from(u16::MAX)],
            arena: BytesMut::with_capacity(ARENA),
            delivered: Count::default(),
            accepted: Count::default(),
            past: Totals::default(),
            rtt: RttSampler::new(),
            failure: None,
            stopping: false,
        }
    }

    /// Runs until the stop command, then closes every connection.
    pub(super) async fn run(mut self) {
        std::future::poll_fn(|cx| self.turn(cx)).await;
        self.endpoint.shutdown().await;
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.take_commands(cx);
        if self.stopping {
            return Poll::Ready(());
        }
        // Received packets may free send buffers, so they are handled before the connections are filled.
        let mut busy = self.take_carrier(cx);
        busy |= self.fill_connections();
        self.endpoint.flush(cx);
        self.rtt.sample(cx, &self.endpoint, &self.links);
        // Yielding between turns lets the transport's tasks on this thread run.
        if busy {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn take_commands(&mut self, cx: &mut Context<'_>) {
        // Polling until `Pending` registers the waker for the next command.
        while let Poll::Ready(command) = self.commands.poll_recv(cx) {
            match command {
                Some(Command::Connect(connect)) => self.connect(connect),
                Some(Command::Send(on)) => self.sending = on,
                Some(Command::Snapshot(answer)) => drop(answer.send(self.snapshot())),
                // `None` means that the handle is gone, so no stop command can come.
                Some(Command::Stop) | None => {
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn connect(&mut self, connect: Connect) {
        for _ in 0..self.options.connections {
            match self.connect_one(&connect) {
                Ok(connection) => self.links.push(Link { connection, connected: false, blocked: false }),
                Err(error) => {
                    // Sending fails if the caller was cancelled and no longer waits for the answer.
                    drop(connect.done.send(Err(error)));
                    return;
                }
            }
        }
        self.waiting = Some(connect);
    }

    fn connect_one(&mut self, connect: &Connect) -> anyhow::Result<ConnectionId> {
        let any = match connect.remote {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = self.options.bind(any)?;
        Ok(self.endpoint.connect(socket, connect.remote, &[connect.exit_key])?)
    }

    fn take_carrier(&mut self, cx: &mut Context<'_>) -> bool {
        if self.endpoint.poll(cx, &mut self.inbox).is_pending() {
            return false;
        }
        // `inbox` is moved out of `self`, because handling an event borrows all of `self`.
        let mut inbox = std::mem::take(&mut self.inbox);
        for event in inbox.events.drain(..) {
            self.take_event(event);
        }
        for (_, datagram) in inbox.datagrams.drain(..) {
            self.delivered.add(datagram.len());
        }
        self.inbox = inbox;
        true
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Connected { connection, .. } => {
                match self.links.iter_mut().find(|link| link.connection == connection) {
                    Some(link) => {
                        link.connected = true;
                        self.open_stream(connection);
                    }
                    // This is how an exit learns of a new connection.
                    None => self.links.push(Link { connection, connected: true, blocked: false }),
                }
                if self.links.iter().all(|link| link.connected)
                    && let Some(connect) = self.waiting.take()
                {
                    drop(connect.done.send(Ok(())));
                }
            }
            Event::Writable { connection } => {
                if let Some(link) = self.links.iter_mut().find(|link| link.connection == connection) {
                    link.blocked = false;
                }
            }
            Event::Closed { connection, reason } => {
                if let Some(stats) = self.endpoint.stats(connection) {
                    self.past.add(&stats);
                }
                self.links.retain(|link| link.connection != connection);
                let failure = format!("a connection ended: {reason}");
                if let Some(connect) = self.waiting.take() {
                    drop(connect.done.send(Err(anyhow::anyhow!(failure.clone()))));
                }
                // Only the first failure is kept, because later failures may be its consequences.
                self.failure.get_or_insert(failure);
            }
            // In stream mode, the payload travels on the connection's control stream.
            Event::Control { data, .. } => self.delivered.add(data.len()),
            // The benchmark ignores whether a peer is silent for a while. The end of a connection is handled above.
            Event::Answers { .. } => {}
        }
    }

    /// Opens the client's stream. The exit learns of the stream when its first byte arrives. After that, both sides can send on
    /// the stream.
    fn open_stream(&mut self, connection: ConnectionId) {
        const HELLO: [u8; 1] = [0];
        if self.options.mode == Mode::Stream {
            match self.endpoint.send_control(connection, &HELLO) {
                Ok(()) => self.accepted.add(HELLO.len()),
                Err(error) => {
                    self.failure.get_or_insert(error.to_string());
                }
            }
        }
    }

    /// Fills all connections, and returns whether any of them would immediately accept more.
    fn fill_connections(&mut self) -> bool {
        if !self.sending {
            return false;
        }
        // `links` is moved out of `self`, because filling a connection borrows all of `self`.
        let mut links = std::mem::take(&mut self.links);
        let mut more = false;
        for link in links.iter_mut().filter(|link| link.connected && !link.blocked) {
            let filled = match self.options.mode {
                Mode::Datagrams => self.fill(link.connection),
                Mode::Stream => self.fill_stream(link.connection),
            };
            match filled {
                Ok(filled) => {
                    link.blocked = filled == Filled::Blocked;
                    more |= filled == Filled::More;
                }
                Err(error) => {
                    self.failure.get_or_insert(error.to_string());
                    link.blocked = true;
                }
            }
        }
        self.links = links;
        more
    }

    /// Fills a connection with datagrams.
    fn fill(&mut self, connection: ConnectionId) -> anyhow::Result<Filled> {
        let Some(largest) = self.endpoint.max_datagram_size(connection) else { return Ok(Filled::Blocked) };
        let size = self.options.datagram_size.map_or_else(|| largest.saturating_sub(SLACK), usize::from);
        let payload = self.source.get(..size).context("a datagram has at most 65535 bytes")?;
        for _ in 0..DATAGRAMS_PER_TURN {
            match self.endpoint.send_datagram(connection, copy(&mut self.arena, payload)) {
                Ok(()) => self.accepted.add(size),
                // The next attempt makes the same datagram again.
                Err(SendError::Blocked(_)) => return Ok(Filled::Blocked),
                Err(SendError::TooLarge(_)) => {
                    bail!(
                        "a datagram of {size} bytes does not fit: the path carries {largest}; lower --datagram-size"
                    )
                }
                Err(SendError::Closed(_)) => return Ok(Filled::Blocked),
            }
        }
        Ok(Filled::More)
    }

    /// Fills a connection's stream.
    fn fill_stream(&mut self, connection: ConnectionId) -> anyhow::Result<Filled> {
        for _ in 0..WRITES_PER_TURN {
            let Some(backlog) = self.endpoint.control_backlog(connection) else { return Ok(Filled::Full) };
            // A small write costs as much as a large one, so the backlog must be at least half empty.
            if backlog > MAX_CONTROL_BACKLOG / 2 {
                return Ok(Filled::Full);
            }
            let room = (MAX_CONTROL_BACKLOG - backlog).min(self.source.len());
            let payload = self.source.get(..room).unwrap_or_default();
            match self.endpoint.send_control(connection, payload) {
                Ok(()) => self.accepted.add(room),
                Err(SendError::Closed(_)) => return Ok(Filled::Full),
                Err(error) => bail!("cannot write to a stream: {error}"),
            }
        }
        Ok(Filled::More)
    }

    /// Takes a snapshot. Fails if the run is not valid.
    fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        if let Some(failure) = &self.failure {
            bail!("{failure}");
        }
        let mut totals = self.past;
        for stats in self.links.iter().filter_map(|link| self.endpoint.stats(link.connection)) {
            totals.add(&stats);
        }
        Ok(Snapshot {
            mark: Mark::of_process()?,
            peak_rss_kib: peak_rss_kib(),
            delivered: self.delivered,
            accepted: self.accepted,
            totals,
            sockets: Sockets::of(&self.endpoint.socket_stats()),
            rtt_samples: std::mem::take(&mut self.rtt.samples),
            connections: self.links.len(),
        })
    }
}

impl RttSampler {
    fn new() -> Self {
        let mut tick = interval(RTT_INTERVAL);
        // A late turn takes only one sample, even if it missed several ticks.
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self { tick: Box::pin(tick), samples: Vec::new() }
    }

    fn sample(&mut self, cx: &mut Context<'_>, endpoint: &Endpoint, links: &[Link]) {
        let mut is_due = false;
        // Polling until `Pending` registers the waker for the next tick.
        while self.tick.poll_tick(cx).is_ready() {
            is_due = true;
        }
        if is_due {
            let rtt = |link: &Link| endpoint.stats(link.connection).map(|stats| stats.rtt.as_micros());
            let micros = links.iter().filter_map(rtt);
            // 2^32 microseconds are more than an hour, so the fallback is not used.
            self.samples.extend(micros.map(|micros| u32::try_from(micros).unwrap_or(u32::MAX)));
        }
    }
}

/// Copies a payload, because Warren's packet path also copies each packet out of the TUN's read buffer.
fn copy(arena: &mut BytesMut, payload: &[u8]) -> Bytes {
    if arena.capacity() < payload.len() {
        arena.reserve(ARENA.max(payload.len()));
    }
    arena.extend_from_slice(payload);
    arena.split().freeze()
}
