//! Measures an exit's memory for each enrolled client. This file has only one test, because another test's memory in the same
//! process would be counted too.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

#[path = "../../warren-quic/tests/common/counting.rs"]
mod counting;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use counting::{Counting, LIVE_BYTES};
use warren_session::PublicKey;
use warren_session::clients::{Client, ClientRegistry, RowChange};
use warren_session::exit::{ExitSessions, SessionConfig, WholeCopy};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CLIENTS: u32 = 100_000;

/// Maximum bytes for each client. This is the figure in docs/fleet.md, without the allocator's overhead for each allocation.
const MOST: usize = 1_024;

#[test]
fn a_client_from_a_whole_copy_or_from_disk_takes_at_most_a_kibibyte_and_less_than_one_that_came_alone() {
    let whole = bytes_per_client(|| {
        let mut sessions = exit(ClientRegistry::new());
        let mut copy = WholeCopy::default();
        for first in (0..CLIENTS).step_by(1_000) {
            copy.add(&sessions, (first..first + 1_000).map(row).collect()).unwrap();
        }
        assert!(sessions.take_whole(Instant::now(), copy).is_empty());
        while sessions.poll_action().is_some() {}
        sessions
    });
    let from_disk = bytes_per_client(|| exit(ClientRegistry::from_rows((0..CLIENTS).map(row)).unwrap()));
    // The control: clients are added one at a time, and nothing is compacted.
    let one_by_one = bytes_per_client(|| {
        let mut sessions = exit(ClientRegistry::new());
        (0..CLIENTS).for_each(|number| assert!(sessions.apply(Instant::now(), vec![row(number)]).is_empty()));
        while sessions.poll_action().is_some() {}
        sessions
    });
    println!(
        "measured: bytes of each client {whole} after a whole copy, {from_disk} from disk, {one_by_one} if they come one by one"
    );
    assert!(whole <= MOST && from_disk <= MOST, "{whole} {from_disk}");
    assert!(one_by_one > whole, "{one_by_one}");
}

/// The growth of the heap for each client, while the measured value exists.
fn bytes_per_client(make: impl FnOnce() -> ExitSessions) -> usize {
    let before = LIVE_BYTES.load(Relaxed);
    let made = make();
    let grown = LIVE_BYTES.load(Relaxed) - before;
    assert_eq!(made.registry().len(), usize::try_from(CLIENTS).unwrap());
    drop(made);
    grown / usize::try_from(CLIENTS).unwrap()
}

fn exit(registry: ClientRegistry) -> ExitSessions {
    let config = SessionConfig {
        ipv4: Some("10.64.0.0/14".parse().unwrap()),
        ipv6: Some("fd66::/64".parse().unwrap()),
        ..SessionConfig::default()
    };
    ExitSessions::new(config, registry, Instant::now(), SystemTime::now(), Box::new(|bytes| bytes.fill(7)))
        .unwrap()
}

/// A client that has been connected before, so it has addresses. The keys of successive clients are not sorted.
fn row(number: u32) -> RowChange {
    let mut key = [7; 32];
    key[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b1).to_be_bytes());
    let enrolled = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let mut client = Client::new(format!("client-{number:06}"), PublicKey(key), enrolled);
    client.leased_ipv4 = Some(Ipv4Addr::from(0x0a40_0002 + number));
    client.leased_ipv6 = Some(Ipv6Addr::from((0xfd66 << 112) + 2 + u128::from(number)));
    client.last_seen = Some(enrolled + Duration::from_secs(number.into()));
    client.into()
}
