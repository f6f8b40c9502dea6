//! In steady state, hardly any memory is allocated per datagram, including QUIC's own part. None is allocated for the counts that
//! workers read.

#![allow(clippy::print_stdout, reason = "the figures are part of what the test shows")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::{
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use common::{Pair, Side, loopback_socket};
use counting::{ALLOCATED_BYTES, ALLOCATIONS, Counting};
use warren_quic::{
    driver::{ConnectionId, Event, Inbox, SendError},
    settings::{Driver, TransportSettings},
};

/// Datagrams that are sent before counting starts. By then every buffer and the congestion window have reached their size.
const WARM_UP: u64 = 100_000;
const COUNTED: u64 = 200_000;
const SIZE: usize = 1_400;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test]
async fn a_datagram_costs_less_than_a_twentieth_of_an_allocation_on_both_sides_together() {
    let settings = TransportSettings {
        driver: Driver::Warren,
        initial_mtu: 1_472,
        min_mtu: 1_472,
        ..TransportSettings::default()
    };
    let mut pair = Pair::with(settings.clone(), settings, loopback_socket());
    let (at_client, _) = pair.connect().await;
    let mut workers = Workers::new(pair, at_client);
    workers.run_until(WARM_UP).await;
    let (allocations, bytes) = (ALLOCATIONS.load(Relaxed), ALLOCATED_BYTES.load(Relaxed));
    let sent = workers.sent;
    workers.run_until(WARM_UP + COUNTED).await;
    let per_datagram = |before: usize, counter: &AtomicUsize| {
        (counter.load(Relaxed) - before) as f64 / (workers.sent - sent) as f64
    };
    let (allocations, bytes) =
        (per_datagram(allocations, &ALLOCATIONS), per_datagram(bytes, &ALLOCATED_BYTES));
    println!("{allocations:.4} allocations and {bytes:.1} bytes allocated per datagram, both sides together");
    assert!(allocations <= 0.05, "{allocations}");
    // Receive buffers and transmits are reused: no datagram is copied or newly allocated.
    assert!(bytes <= 50.0, "{bytes}");

    // A worker asks all its connections for these counts four times a second, including idle ones.
    let before = ALLOCATIONS.load(Relaxed);
    let asked = (0..1_000).filter(|_| workers.pair.client.endpoint.loss_counts(at_client).is_some()).count();
    let allocations = ALLOCATIONS.load(Relaxed) - before;
    println!("{allocations} allocations for {asked} times a connection's loss counts");
    assert_eq!((asked, allocations), (1_000, 0));
}

/// A client's and an exit's worker, as in the tunnel: each turn polls, takes and releases received datagrams, sends and flushes.
struct Workers {
    pair: Pair,
    connection: ConnectionId,
    inbox: Inbox,
    arena: Arena,
    blocked: bool,
    sent: u64,
    received: u64,
}

impl Workers {
    fn new(pair: Pair, connection: ConnectionId) -> Self {
        let (inbox, arena) = (Inbox::new(), Arena::new());
        Self { pair, connection, inbox, arena, blocked: false, sent: 0, received: 0 }
    }

    async fn run_until(&mut self, received: u64) {
        poll_fn(|cx| {
            self.turn(cx);
            if self.received >= received { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn turn(&mut self, cx: &mut Context<'_>) {
        let busy = self.take(cx, |pair| &mut pair.client);
        self.send();
        self.pair.client.endpoint.flush(cx);
        let busy = self.take(cx, |pair| &mut pair.exit) || busy;
        self.pair.exit.endpoint.flush(cx);
        if busy {
            cx.waker().wake_by_ref();
        }
    }

    fn take(&mut self, cx: &mut Context<'_>, side: fn(&mut Pair) -> &mut Side) -> bool {
        let busy = side(&mut self.pair).endpoint.poll(cx, &mut self.inbox).is_ready();
        for event in self.inbox.events.drain(..) {
            if let Event::Writable { .. } = event {
                self.blocked = false;
            }
        }
        self.received += self.inbox.datagrams.len() as u64;
        self.inbox.clear();
        busy
    }

    fn send(&mut self) {
        while !self.blocked {
            let datagram = self.arena.datagram();
            match self.pair.client.endpoint.send_datagram(self.connection, datagram) {
                Ok(()) => self.sent += 1,
                Err(SendError::Blocked(_)) => self.blocked = true,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Memory for outgoing datagrams: when the last slab is full, the datagrams of the first slab have left.
struct Arena {
    slabs: [BytesMut; 4],
}

impl Arena {
    const SLAB_BYTES: usize = 64 * 1024;

    fn new() -> Self {
        Self { slabs: std::array::from_fn(|_| BytesMut::with_capacity(Self::SLAB_BYTES)) }
    }

    fn datagram(&mut self) -> Bytes {
        if self.slabs[0].capacity() < SIZE {
            self.slabs.rotate_left(1);
            if !self.slabs[0].try_reclaim(Self::SLAB_BYTES) {
                self.slabs[0] = BytesMut::with_capacity(Self::SLAB_BYTES);
            }
        }
        self.slabs[0].put_bytes(0x5a, SIZE);
        self.slabs[0].split().freeze()
    }
}
