//! Fails with: for a client that answers nothing

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use noq_faults::{CLIENT, Pair, SERVER, Setup};
use noq_proto::congestion::NewRenoConfig;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
/// Bytes that the server has in use, which are counted while it runs.
static IN_USE: AtomicIsize = AtomicIsize::new(0);
static IS_SERVERS_TURN: AtomicBool = AtomicBool::new(false);

struct Counting;

// SAFETY: whatever is asked for, the system's allocator gives.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(memory, layout) }
    }
}

fn count(bytes: isize) {
    if IS_SERVERS_TURN.load(Relaxed) {
        IN_USE.fetch_add(bytes, Relaxed);
    }
}

/// Its acknowledgements to such a client stay until the client tells that they arrived.
#[test]
fn what_a_server_keeps_for_a_client_that_sends_and_acknowledges_nothing_stops_growing() {
    let mut pair = Pair::connected(Setup::new(|transport| {
        let mut congestion = NewRenoConfig::default();
        congestion.initial_window(1 << 40);
        transport.congestion_controller_factory(Arc::new(congestion));
    }));
    pair.quic(SERVER).datagrams().send(Bytes::from_static(b"down"), true).unwrap();
    let mut in_use = Vec::new();
    for _ in 0..4 {
        for _ in 0..7_500 {
            pair.now += Duration::from_millis(4);
            let _ended = pair.quic(CLIENT).datagrams().send(Bytes::from_static(b"up"), false);
            let up = pair.transmit_without_timers(CLIENT);
            IS_SERVERS_TURN.store(true, Relaxed);
            for packet in &up {
                pair.deliver(SERVER, packet);
            }
            while pair.quic(SERVER).datagrams().recv().is_some() {}
            drop(pair.transmit(SERVER));
            IS_SERVERS_TURN.store(false, Relaxed);
        }
        in_use.push(IN_USE.load(Relaxed) / 1024);
    }
    assert!(in_use[3] < 2_048, "after each 30 s {in_use:?} KiB for a client that answers nothing");
}
