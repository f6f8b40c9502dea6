//! How much a connection keeps for a peer that sends but acknowledges nothing, and for how long.

use std::time::Duration;

use super::world::{CLIENT, EXIT, GAP, World, settings};
use crate::settings::{Congestion, TransportSettings};

/// A client that keeps asking for acknowledgements, and its exit, which waits for one.
fn deaf() -> World {
    let mut world = World::connected(&TransportSettings {
        congestion: Congestion::Off.into(),
        ack_threshold: 1,
        ..settings()
    });
    world.run(Duration::from_secs(1), Some(&[100]));
    world.is_deaf = true;
    world.run(GAP, Some(&[100]));
    world
}

/// How many packets the exit sends while a side sends `count` packets, eight in each millisecond.
fn sent_by_exit(world: &mut World, count: usize, side: usize) -> u64 {
    let before = world.sent_by_exit();
    for _ in 0..count {
        world.speak(side, &[100]);
        world.run(GAP / 8, None);
    }
    world.sent_by_exit() - before
}

/// Each acknowledgement that the exit sends takes memory until it is acknowledged itself.
#[test]
fn an_exit_neither_goes_on_acknowledging_to_a_client_that_answers_nothing_nor_keeps_it_for_ever() {
    let mut world = deaf();
    let answers = sent_by_exit(&mut world, 24_000, CLIENT);
    assert!((2_000..2_200).contains(&answers), "{answers}");

    let mut lasted = Duration::ZERO;
    while !world.lost().1 {
        lasted += Duration::from_secs(5);
        assert!(
            lasted < 3 * settings().idle_timeout,
            "the connection of a client that acknowledges nothing is kept"
        );
        world.run(Duration::from_secs(5), None);
        world.speak(CLIENT, &[100]);
    }
    assert!(
        lasted > settings().idle_timeout,
        "the connection ended after {lasted:?}, when an honest client may still be there"
    );
}

#[test]
fn acknowledgements_go_on_when_a_client_hears_again() {
    let mut world = deaf();
    sent_by_exit(&mut world, 24_000, CLIENT);
    world.is_deaf = false;
    world.run(Duration::from_secs(4), None);
    assert_eq!(world.quic(EXIT).unanswered_probes(), 0);
    let answers = sent_by_exit(&mut world, 800, CLIENT);
    assert!(answers > 200, "{answers} to 800 packets");
    assert_eq!(world.quic(CLIENT).unanswered_probes(), 0);
}

/// Without congestion control, nothing else limits the packets in flight to a client that answers nothing.
#[test]
fn an_exit_does_not_go_on_sending_to_a_client_that_answers_nothing() {
    let mut world = deaf();
    let sent = sent_by_exit(&mut world, 40_000, EXIT);
    assert!((32_700..33_000).contains(&sent), "{sent}");

    world.is_deaf = false;
    world.run(Duration::from_secs(4), None);
    let sent = sent_by_exit(&mut world, 8_000, EXIT);
    assert!(sent > 7_900, "{sent} to a client that answers again");
}
