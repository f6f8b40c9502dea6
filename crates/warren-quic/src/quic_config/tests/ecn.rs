//! ECN on the outer path: what marks do, and what paths do to marks.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use noq_proto::PathId;

use super::{
    world::{Bottleneck, CLIENT, Configs, EXIT, EcnPath, World, settings},
    *,
};
use crate::{settings::Congestion, stats::ControllerState};

/// Bytes per second of the link: 40 Mbit/s.
const RATE: u32 = 5_000_000;
/// Packets that the client offers each millisecond: more than twice the rate.
const OFFERED: [usize; 8] = [1_300; 8];
const MS: Duration = Duration::from_millis(1);

/// The results of a client that offers more than the link carries.
struct Outcome {
    /// Share of the link that the client's packets used.
    share: f64,
    /// The longest smoothed round-trip time.
    longest_rtt: Duration,
    /// Packets that the full queue dropped.
    overflowed: u64,
    states: Vec<ControllerState>,
    /// Cuts of the window by more than a tenth that come within a round trip after the previous such cut.
    hasty_cuts: u32,
}

/// Offers more than the link carries for ten seconds. The first three do not count.
fn flooded(world: &mut World) -> Outcome {
    flood(world, 3_000, |_| {});
    let (before, overflowed) = (world.quic(EXIT).stats().udp_rx.bytes, world.overflowed);
    let mut outcome =
        Outcome { share: 0.0, longest_rtt: MS, overflowed: 0, states: Vec::new(), hasty_cuts: 0 };
    let (mut window, mut last_cut) = (0, None);
    flood(world, 7_000, |world| {
        let (now, quic) = (world.now, world.quic(CLIENT));
        outcome.longest_rtt = outcome.longest_rtt.max(quic.rtt(PathId::ZERO).unwrap());
        outcome.states.extend(state(quic));
        let latest = quic.path_stats(PathId::ZERO).unwrap().cwnd;
        if latest * 10 < window * 9 {
            outcome.hasty_cuts += u32::from(last_cut.is_some_and(|last| now < last + 18 * MS));
            last_cut = Some(now);
        }
        window = latest;
    });
    outcome.states.dedup();
    outcome.overflowed = world.overflowed - overflowed;
    outcome.share = (world.quic(EXIT).stats().udp_rx.bytes - before) as f64 / (f64::from(RATE) * 7.0);
    outcome
}

fn flood(world: &mut World, milliseconds: u32, mut each: impl FnMut(&mut World)) {
    for _ in 0..milliseconds {
        OFFERED.iter().for_each(|_| world.speak(CLIENT, &OFFERED));
        world.run(MS, None);
        each(world);
    }
}

fn state(quic: &noq_proto::Connection) -> Option<ControllerState> {
    state_of(quic.congestion_state(PathId::ZERO)?)
}

/// A link with a queue of 100 ms.
fn linked(ecn: EcnPath, marks_after: Option<Duration>) -> World {
    let settings = TransportSettings { congestion: Congestion::Adaptive.into(), ..settings() };
    let mut world = World::connected(&settings);
    world.bottleneck = Some(Bottleneck { rate: RATE, queue: 100 * MS });
    (world.ecn, world.marks_after) = (ecn, marks_after);
    world
}

#[test]
fn marks_lower_the_rate_once_a_round_before_a_packet_is_lost() {
    let mut world = linked(EcnPath::Keeps, Some(5 * MS));

    let Outcome { share, longest_rtt, overflowed, states, hasty_cuts } = flooded(&mut world);

    // CUBIC reaches this with a queue of a quarter of the round-trip time.
    assert!(share > 0.75, "{share:.2} of the link");
    assert!(longest_rtt < 32 * MS, "{longest_rtt:?}");
    assert_eq!((overflowed, hasty_cuts), (0, 0));
    assert!(states.contains(&ControllerState::Marked), "{states:?}");
    assert!(world.congested > 0);
    // The control: without marks, the queue is longer until the controller shortens it.
    let mut world = linked(EcnPath::Keeps, None);
    let outcome = flooded(&mut world);
    assert!(!outcome.states.contains(&ControllerState::Marked), "{:?}", outcome.states);
    assert!(outcome.share > 0.9);
}

#[test]
fn a_path_that_clears_or_changes_marks_is_used_without_them() {
    for ecn in [EcnPath::Clears, EcnPath::Swaps] {
        let mut world = linked(ecn, None);
        let Outcome { share, states, .. } = flooded(&mut world);
        let marked = world.marked;
        flood(&mut world, 100, |_| {});
        assert_eq!(world.marked, marked, "{ecn:?}: packets are still marked");
        assert!(share > 0.9, "{ecn:?}: {share:.2} of the link");
        assert!(!states.contains(&ControllerState::Marked), "{ecn:?}: {states:?}");
        assert_eq!(world.lost(), (false, false));
    }
    // The control: packets are still marked if the path leaves marks alone.
    let mut world = linked(EcnPath::Keeps, None);
    let marked = world.marked;
    flood(&mut world, 100, |_| {});
    assert!(world.marked > marked);
}

#[test]
fn a_path_that_marks_everything_from_the_start_is_used_without_marks() {
    for congestion in [Congestion::Adaptive, Congestion::Cubic, Congestion::NewReno, Congestion::Bbr3] {
        let mut world = beginning(congestion, EcnPath::MarksAll);
        flood(&mut world, 1_000, |_| {});
        let marked = world.marked;
        flood(&mut world, 100, |_| {});
        assert_eq!(world.marked, marked, "{congestion}: packets are still marked");
    }
}

#[test]
fn a_path_that_drops_what_supports_ecn_carries_a_connection() {
    let mut world = beginning(Congestion::Adaptive, EcnPath::Drops);
    let start = world.now;
    world.run_until("both sides connect", Duration::from_secs(9), Some(&[100]), World::are_connected);
    let took = world.now - start;
    // The control: a path that leaves marks alone.
    let mut world = beginning(Congestion::Adaptive, EcnPath::Keeps);
    let start = world.now;
    world.run_until("both sides connect", Duration::from_secs(9), Some(&[100]), World::are_connected);
    assert!(world.now - start < 100 * MS, "{:?}", world.now - start);
    // A client gives a handshake five seconds.
    assert!(took > 1_000 * MS && took < 4_000 * MS, "{took:?}");
}

fn beginning(congestion: Congestion, ecn: EcnPath) -> World {
    let settings = TransportSettings { congestion: congestion.into(), ..settings() };
    let mut world = World::beginning(&settings, Configs::new(&settings));
    world.ecn = ecn;
    world
}
