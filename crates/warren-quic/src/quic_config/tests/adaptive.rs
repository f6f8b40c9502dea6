//! The controller in whole connections over a link with a rate and a queue, in virtual time.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use noq_proto::PathId;

use super::native::{self, Native};
use super::world::{Bottleneck, CLIENT, Configs, EXIT, World, settings};
use crate::settings::{Congestion, TransportSettings};

/// Bytes per second of the link: 40 Mbit/s.
const RATE: u32 = 5_000_000;
const PACKET: usize = 1_300;
/// Packets that the client offers each millisecond: more than twice the rate.
const OFFERED: [usize; 8] = [PACKET; 8];

struct Outcome {
    /// Share of the link that packets of the client used.
    share: f64,
    /// The round-trip time at the end.
    rtt: Duration,
    overflowed: u64,
}

/// Runs a client that offers more than the link carries. Of its ten seconds, the first three do not count.
fn outcome(congestion: Congestion, queue: Duration, loss_per_mille: u64) -> Outcome {
    let mut world = connected(congestion);
    world.bottleneck = Some(Bottleneck { rate: RATE, queue });
    world.loss_per_mille = loss_per_mille;
    flood(&mut world, Duration::from_secs(3));
    let (before, overflowed) = (delivered(&mut world), world.overflowed);
    flood(&mut world, Duration::from_secs(7));
    let bytes = (delivered(&mut world) - before) as f64;
    Outcome {
        share: bytes / (f64::from(RATE) * 7.0),
        rtt: world.quic(CLIENT).rtt(PathId::ZERO).unwrap(),
        overflowed: world.overflowed - overflowed,
    }
}

fn connected(congestion: Congestion) -> World {
    World::connected(&TransportSettings { congestion: congestion.into(), ..settings() })
}

fn flood(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        for _ in OFFERED {
            world.speak(CLIENT, &OFFERED);
        }
        world.run(Duration::from_millis(1), None);
    }
}

fn delivered(world: &mut World) -> u64 {
    world.quic(EXIT).stats().udp_rx.bytes
}

#[test]
fn random_loss_does_not_throttle() {
    for loss in [0, 1, 10, 50] {
        let Outcome { share, .. } = outcome(Congestion::Adaptive, Duration::from_millis(30), loss);
        let arrives = 1.0 - loss as f64 / 1_000.0;
        assert!(share > 0.9 * arrives, "{share:.2} of the link at {loss} per mille");
    }
    // The control: a controller that treats every loss as congestion.
    let Outcome { share, .. } = outcome(Congestion::Cubic, Duration::from_millis(30), 10);
    assert!(share < 0.5, "CUBIC had {share:.2} of the link");
}

#[test]
fn bursts_of_loss_do_not_throttle() {
    // The random losses differ from run to run. With bursts of ten, one run in a hundred used only 0.47 of the link.
    for (burst, least) in [(4, 0.85), (10, 0.4)] {
        let mut world = connected(Congestion::Adaptive);
        world.bottleneck = Some(Bottleneck { rate: RATE, queue: Duration::from_millis(30) });
        (world.loss_per_mille, world.loss_burst) = (10, burst);
        flood(&mut world, Duration::from_secs(3));
        let before = delivered(&mut world);
        flood(&mut world, Duration::from_secs(20));
        let share = (delivered(&mut world) - before) as f64 / (f64::from(RATE) * 20.0);
        assert!(share > least, "{share:.2} of the link with bursts of {burst}");
    }
}

#[test]
fn queue_stays_short_whatever_the_bottleneck_holds() {
    for queue in [20, 100, 400] {
        let Outcome { share, rtt, overflowed } =
            outcome(Congestion::Adaptive, Duration::from_millis(queue), 0);
        assert!(rtt < Duration::from_millis(20 + 15), "{rtt:?} with a queue of {queue} ms");
        assert!(share > 0.9, "{share:.2} of the link with a queue of {queue} ms");
        let packets = f64::from(RATE) * 7.0 / PACKET as f64;
        assert!((overflowed as f64) < 0.01 * packets, "{overflowed} dropped with a queue of {queue} ms");
    }
    let Outcome { rtt, .. } = outcome(Congestion::Cubic, Duration::from_millis(400), 0);
    assert!(rtt > Duration::from_millis(100), "CUBIC had {rtt:?}");
}

#[test]
fn a_short_queue_that_overflows_throttles() {
    let Outcome { share, overflowed, .. } = outcome(Congestion::Adaptive, Duration::from_millis(4), 0);
    let packets = (f64::from(RATE) * 7.0 / PACKET as f64).round();
    assert!(share > 0.7, "{share:.2} of the link");
    assert!((overflowed as f64) < 0.1 * packets, "{overflowed} of {packets} packets dropped");
}

#[test]
fn the_window_follows_a_rate_that_changes() {
    let mut world = connected(Congestion::Adaptive);
    let queue = Duration::from_millis(100);
    for rate in [RATE, RATE / 5, RATE] {
        world.bottleneck = Some(Bottleneck { rate, queue });
        flood(&mut world, Duration::from_secs(3));
        let before = delivered(&mut world);
        flood(&mut world, Duration::from_secs(2));
        let share = (delivered(&mut world) - before) as f64 / f64::from(rate) / 2.0;
        assert!(share > 0.85, "{share:.2} of {rate} bytes a second");
    }
}

#[test]
fn a_black_out_is_over_when_the_path_is_back() {
    let mut world = connected(Congestion::Adaptive);
    world.bottleneck = Some(Bottleneck { rate: RATE, queue: Duration::from_millis(100) });
    flood(&mut world, Duration::from_secs(2));
    world.loss_per_mille = 1_000;
    flood(&mut world, Duration::from_secs(5));
    world.loss_per_mille = 0;
    flood(&mut world, Duration::from_secs(3));
    let before = delivered(&mut world);
    flood(&mut world, Duration::from_secs(1));
    let share = (delivered(&mut world) - before) as f64 / f64::from(RATE);
    assert!(share > 0.85, "{share:.2} of the link");
}

#[test]
fn jitter_is_not_taken_for_a_queue() {
    let mut world = connected(Congestion::Adaptive);
    world.bottleneck = Some(Bottleneck { rate: RATE, queue: Duration::from_millis(50) });
    (world.loss_per_mille, world.jitter) = (5, Duration::from_millis(16));
    let offer = |world: &mut World, seconds: u64| {
        let end = world.now + Duration::from_secs(seconds);
        // Three packets per millisecond, which are 31 of the link's 40 Mbit/s.
        while world.now < end {
            for _ in 0..3 {
                world.speak(CLIENT, &OFFERED);
            }
            world.run(Duration::from_millis(1), None);
        }
    };
    offer(&mut world, 3);
    let before = delivered(&mut world);
    offer(&mut world, 20);
    let share = (delivered(&mut world) - before) as f64 / (3.0 * PACKET as f64 * 20_000.0);
    // A controller that mistook random losses for those of a full queue reached only 0.20.
    assert!(share > 0.75, "{share:.2} of what was offered");
}

#[test]
fn what_is_offered_below_the_rate_is_carried_whatever_is_lost() {
    for loss in [0, 10, 30] {
        let mut world = connected(Congestion::Adaptive);
        world.bottleneck = Some(Bottleneck { rate: RATE * 5, queue: Duration::from_millis(30) });
        world.loss_per_mille = loss;
        // 20.8 of the link's 25 million bytes per second.
        let offer = |world: &mut World, time: Duration| {
            let end = world.now + time;
            while world.now < end {
                for _ in 0..16 {
                    world.speak(CLIENT, &OFFERED);
                }
                world.run(Duration::from_millis(1), None);
            }
        };
        offer(&mut world, Duration::from_millis(500));
        let before = world.quic(EXIT).stats().frame_rx.datagram;
        offer(&mut world, Duration::from_secs(4));
        let carried = world.quic(EXIT).stats().frame_rx.datagram - before;
        let share = carried as f64 / 64_000.0;
        assert!(share > 0.98 * (1.0 - loss as f64 / 1_000.0), "{share:.3} at {loss} per mille");
    }
}

fn connected_over(congestion: Congestion, delay: u64) -> World {
    let settings = TransportSettings { congestion: congestion.into(), ..settings() };
    let mut world = World::beginning(&settings, Configs::new(&settings));
    world.delay = Duration::from_millis(delay);
    world.run(Duration::from_secs(1), Some(&[100]));
    world
}

/// A client that always has more to send, for links of up to 300 Mbit/s.
fn pour(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        for _ in 0..6 {
            world.speak(CLIENT, &OFFERED);
        }
        world.run(Duration::from_micros(200), None);
    }
}

/// The shares of the tunnel and of a native flow on a link of 200 Mbit/s and 30 ms. The native flow begins `later` milliseconds after
/// the tunnel.
fn shares(congestion: Congestion, queue: u64, later: u64) -> (f64, f64) {
    const RATE: u32 = 25_000_000;
    let mut world = connected_over(congestion, 15);
    world.bottleneck = Some(Bottleneck { rate: RATE, queue: Duration::from_millis(queue) });
    pour(&mut world, Duration::from_millis(later));
    world.native = Some(Native::new(world.now));
    pour(&mut world, Duration::from_secs(4));
    let so_far = |world: &mut World| (delivered(world), world.native.as_ref().unwrap().delivered);
    let before = so_far(&mut world);
    pour(&mut world, Duration::from_secs(20));
    let after = so_far(&mut world);
    let share = |bytes: u64| bytes as f64 / f64::from(RATE) / 20.0;
    (share(after.0 - before.0), share((after.1 - before.1) * native::PACKET as u64))
}

#[test]
fn a_native_flow_and_the_tunnel_each_have_their_share() {
    // A single run may be far from the mean.
    for (queues, least) in [([10, 10, 30], 0.28), ([100, 100, 100], 0.35)] {
        let runs = [(queues[0], 30), (queues[1], 60), (queues[2], 90)]
            .map(|(queue, later)| shares(Congestion::Adaptive, queue, later));
        let (tunnel, native) = runs.iter().fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
        assert!(tunnel > 3.0 * least && native > 3.0 * least, "queues of {queues:?} ms: {runs:.2?}");
    }
    // The control: a sender without congestion control.
    let (tunnel, native) = shares(Congestion::Off, 10, 60);
    assert!(native < 0.1, "{native:.2} beside a tunnel that had {tunnel:.2}");
}

#[test]
fn packets_wait_for_a_short_time_on_a_slow_link_with_a_long_queue() {
    // Returns the median, the 99th percentile and the maximum of the waits in milliseconds, on a link of 50 Mbit/s and
    // 20 ms.
    let waits = |congestion| {
        let mut world = connected_over(congestion, 10);
        world.bottleneck = Some(Bottleneck { rate: 6_250_000, queue: Duration::from_millis(200) });
        let mut waits: Vec<f64> = (0..10_000)
            .map(|_| {
                pour(&mut world, Duration::from_millis(1));
                world.wait(CLIENT).as_secs_f64() * 1e3
            })
            .collect();
        waits.sort_by(f64::total_cmp);
        [waits[5_000], waits[9_900], waits[9_999]]
    };
    let [median, p99, longest] = waits(Congestion::Adaptive);
    assert!(median < 10.0 && p99 < 40.0 && longest < 100.0, "{median:.1}, {p99:.1}, {longest:.1} ms");
    let [median, ..] = waits(Congestion::Cubic);
    assert!(median > 100.0, "CUBIC had {median:.1} ms");
}
