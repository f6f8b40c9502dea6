//! The worker's turn: take commands, then datagrams from the carrier, then packets from the TUN, then fill the connections. Turns follow
//! each other while there is work.

mod bulk_flows;
mod commands;
mod from_carrier;
mod from_device;
mod longest_turn;
mod ready;
mod reports;
mod rest;
mod snapshot;
mod to_device;
mod upkeep;
mod wireguard;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use slab::Slab;
use tokio::sync::mpsc;
use tokio::time::Sleep;
use warren_packet::coalesce::Coalescer;
use warren_quic::driver::{ConnectionId, Endpoint, Inbox};
use warren_session::exit::SessionId;
use warren_tun::{Queue, Ring};

use self::bulk_flows::BulkFlows;
use self::longest_turn::LongestTurn;
use self::rest::Rest;
use super::arena::Arena;
use super::counters::{Drops, Occupancy, PastConnections, Totals};
use super::forward::{Forwarding, Sessions};
use super::hand_over::HandOver;
use super::message::{Command, Report};
use super::pump::Pump;
use super::snapshots::Snapshots;
use super::traffic::ClientTraffic;
use super::upkeep::{ROUND, Upkeep};
use super::wireguard::WireGuard;
use crate::tuning::Tuning;

/// How soon to check again whether this worker's own queues still hold back the TUN. The queues also wake the worker when they have
/// room.
const HELD_BACK: Duration = Duration::from_millis(20);
/// How soon to check again whether another worker's full inbox still holds back the TUN. That inbox does not wake this worker
/// when it has room.
const HAND_OVER_FILLING: Duration = Duration::from_millis(1);
/// Maximum number of turns before the runtime checks sockets and timers again. Each check costs a system call. Most wake-ups take
/// two turns, and the second finds nothing. With more turns than this, the other direction waits too long.
// Four turns save 5 to 12 % of CPU for a GB of TCP. Eight or sixteen turns save no more, and a ping waits longer (bench/LOG.md,
// "Apart before decryption, and turns in a row").
const TURNS_IN_A_ROW: u32 = 4;
/// No further turn begins once the turns in a row have taken this long.
const ROW: Duration = Duration::from_millis(2);

/// The outcome of a turn.
enum Turn {
    /// The turn did something, and there may be more to do.
    Busy,
    /// There was nothing to do.
    Idle,
    /// The worker is to stop.
    Last,
}

/// Everything that one thread owns on the packet path. It has many fields because it shares none of them: each step of a turn
/// borrows the few that it needs.
pub(super) struct Worker {
    endpoint: Endpoint,
    /// The WireGuard state. Only one worker of an exit that serves WireGuard has it.
    pub(super) wireguard: Option<Box<WireGuard>>,
    commands: mpsc::Receiver<Command>,
    reports: mpsc::Sender<Report>,
    /// Reports that found the channel full. The carrier is not polled while there are any.
    unsent_reports: VecDeque<Report>,
    device: Option<Device>,
    /// Writes a batch to the device in one system call.
    ring: Option<Ring>,
    tuning: Tuning,
    hand_over: HandOver,
    sessions: Sessions,
    clients: ClientTraffic,
    pumps: Slab<Pump>,
    by_connection: HashMap<ConnectionId, usize>,
    /// Attached connections of other workers.
    elsewhere: HashMap<ConnectionId, SessionId>,
    /// Pumps with something to send and room to send it.
    ready: VecDeque<usize>,
    totals: Totals,
    drops: Drops,
    past: PastConnections,
    occupancy: Occupancy,
    /// The endpoint's count of drives at the end of the last turn.
    drives: u64,
    inbox: Inbox,
    /// Numbered datagrams that no longer wait for earlier ones. Empty between two datagrams.
    released: VecDeque<Bytes>,
    arena: Arena,
    timer: Pin<Box<Sleep>>,
    /// When the timer will wake the worker, if it is set.
    timer_due: Option<Instant>,
    upkeep: Upkeep,
    snapshots: Snapshots,
    /// The memory of all packets that connections hold back to restore the order.
    held: usize,
    /// Pumps with postponed work of `Repair`: a copy to send, or a missing datagram to stop waiting for.
    repairs: Vec<usize>,
    /// When the earliest postponed repair is due.
    repair_due: Option<Instant>,
    /// When postponed repairs last ran.
    last_repairs: Instant,
    stopping: Option<(u32, String)>,
    rest: Rest,
    longest_turn: Option<LongestTurn>,
}

struct Device {
    queue: Queue,
    bulk_flows: BulkFlows,
    forwarding: Forwarding,
    /// Reads in a row that failed.
    failed_reads: u32,
    /// Holds the super-packet of the read that is being processed.
    buffer: Box<[u8]>,
    /// Merges the packets of one batch from the carrier; empty between batches.
    coalescer: Coalescer<Bytes>,
}

impl Worker {
    pub(super) fn new(
        endpoint: Endpoint,
        ring: Option<Ring>,
        tuning: Tuning,
        hand_over: HandOver,
        commands: mpsc::Receiver<Command>,
        reports: mpsc::Sender<Report>,
    ) -> Self {
        Self {
            endpoint,
            wireguard: None,
            commands,
            reports,
            unsent_reports: VecDeque::new(),
            device: None,
            ring,
            tuning,
            hand_over,
            sessions: Sessions::default(),
            clients: ClientTraffic::default(),
            pumps: Slab::new(),
            by_connection: HashMap::new(),
            elsewhere: HashMap::new(),
            ready: VecDeque::new(),
            totals: Totals::default(),
            drops: Drops::default(),
            past: PastConnections::default(),
            occupancy: Occupancy::default(),
            drives: 0,
            inbox: Inbox::default(),
            released: VecDeque::new(),
            arena: Arena::default(),
            timer: Box::pin(tokio::time::sleep(ROUND)),
            timer_due: None,
            upkeep: Upkeep::new(Instant::now()),
            snapshots: Snapshots::default(),
            held: 0,
            repairs: Vec::new(),
            repair_due: None,
            last_repairs: Instant::now(),
            stopping: None,
            rest: Rest::new(Instant::now()),
            longest_turn: LongestTurn::if_logged(),
        }
    }

    /// Runs turns until the control plane says stop or is gone, then closes every connection.
    pub(super) async fn run(mut self) {
        // Turns limit themselves. Tokio's cooperative budget would run out in the middle of a turn, and the worker would find
        // no work although packets wait. The TUN's bulk lane could then starve, and the worker could rest too early.
        tokio::task::unconstrained(std::future::poll_fn(|cx| self.turns(cx))).await;
        let Occupancy { packets_per_tun_read, packets_per_tun_write, drives_per_wakeup } = &self.occupancy;
        tracing::debug!(%packets_per_tun_read, %packets_per_tun_write, %drives_per_wakeup, "how full batches were");
        let (code, reason) = self.stopping.take().unwrap_or((0, String::new()));
        let connections: Vec<ConnectionId> = self.by_connection.keys().copied().collect();
        for connection in connections {
            self.endpoint.close(connection, code, &reason);
        }
        // A worker that never had a connection has no peer to tell.
        if self.past.connections > 0 || !self.by_connection.is_empty() {
            self.endpoint.shutdown().await;
        }
    }

    /// Takes turns until one finds nothing to do, at most [`TURNS_IN_A_ROW`]. Then sleeps if a rest is due.
    fn turns(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // noq's tasks run on this thread, so with noq's driver they have to run between turns.
        let most = if self.endpoint.drives().is_some() { TURNS_IN_A_ROW } else { 1 };
        let start = Instant::now();
        let mut did_something = false;
        for _ in 0..most {
            match self.turn(cx) {
                Turn::Busy if start.elapsed() >= ROW => break,
                Turn::Busy => did_something = true,
                Turn::Idle => {
                    // A wake-up that found nothing is not work. If it counted, `Rest` would measure the time from it
                    // instead of from the last work.
                    let due = did_something.then(|| self.rest.due(Instant::now(), &self.totals));
                    if let Some(length) = due.flatten() {
                        // Blocks the whole thread on purpose, so that packets gather in the sockets in the meantime.
                        std::thread::sleep(length);
                    }
                    return Poll::Pending;
                }
                Turn::Last => return Poll::Ready(()),
            }
        }
        // There may be more to do, but the runtime checks sockets and timers first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Turn {
        let now = Instant::now();
        if let Some(longest) = &mut self.longest_turn {
            longest.begin();
        }
        let turn = self.take_turn(cx, now);
        if let Some(longest) = &mut self.longest_turn {
            longest.end(now);
        }
        turn
    }

    fn take_turn(&mut self, cx: &mut Context<'_>, now: Instant) -> Turn {
        // Commands first, so that packets find a session that has just been opened.
        let mut busy = self.take_commands(cx);
        if self.stopping.is_some() {
            return Turn::Last;
        }
        busy |= self.take_snapshot();
        // Busy while reports wait, because the channel does not wake this worker when it has room.
        busy |= self.flush_reports();
        busy |= self.take_carrier(cx, now);
        busy |= self.take_wireguard(cx, now);
        busy |= self.take_handed_over(cx, now);
        busy |= self.take_device(cx, now);
        self.hand_over();
        self.fill_connections(now);
        self.send_wireguard();
        // Last, so that a drive sends whole batches.
        self.endpoint.flush(cx);
        self.count_drives();
        self.run_timer(cx, now);
        if busy { Turn::Busy } else { Turn::Idle }
    }

    fn count_drives(&mut self) {
        if let Some(drives) = self.endpoint.drives() {
            self.occupancy.drives_per_wakeup.record(drives - self.drives);
            self.drives = drives;
        }
    }

    fn run_timer(&mut self, cx: &mut Context<'_>, now: Instant) {
        self.look_after_connections(now);
        if self.repair_due.is_some_and(|due| due <= now) {
            self.run_repairs(now);
            // Sends the datagrams of `run_repairs`, which were queued after this turn's flush.
            self.endpoint.flush(cx);
        }
        // If the timer is still set, it fires once more. That costs one empty turn.
        let Some(wait) = self.longest_sleep(now) else {
            self.timer_due = None;
            return;
        };
        // A timer that fires too early costs one empty turn, so it is set again only if it would fire too late.
        if self.timer_due.is_none_or(|due| due > now + wait) {
            self.timer.as_mut().reset(tokio::time::Instant::now() + wait);
            self.timer_due = Some(now + wait);
        }
        // Polled even if it was just set, because the poll registers the waker.
        if self.timer.as_mut().poll(cx).is_ready() {
            self.timer_due = None;
            cx.waker().wake_by_ref();
        }
    }

    /// Returns how long the worker may sleep without missing one of its own deadlines; `None` if it has no deadline.
    fn longest_sleep(&self, now: Instant) -> Option<Duration> {
        let held_back = self
            .is_held_back(now)
            .then(|| if self.hand_over.is_filling() { HAND_OVER_FILLING } else { HELD_BACK });
        let repair = self.repair_due.map(|due| due.saturating_duration_since(now));
        let wireguard = self.wireguard.as_ref().and_then(|wireguard| wireguard.due(now));
        [held_back, self.upkeep.due(), repair, wireguard].into_iter().flatten().min()
    }
}
