//! How packets leave: with marks, and in batches.

use std::time::Duration;

use super::{
    world::{CLIENT, FULL, MIXED, World, settings},
    *,
};
use crate::settings::Congestion;

#[test]
fn packets_are_marked_for_ecn_unless_nothing_would_answer_to_marks() {
    for congestion in Congestion::ALL {
        let mut world = World::connected(&TransportSettings { congestion: congestion.into(), ..settings() });
        world.run(Duration::from_secs(1), Some(&MIXED));
        if congestion == Congestion::Off {
            assert_eq!(world.marked, 0, "{congestion}");
        } else {
            assert!(world.marked * 10 > world.sent * 9, "{congestion}: {} of {}", world.marked, world.sent);
        }
    }
}

/// A worker asks for packets in each of its turns. A turn is much shorter than the time that the pacer needs
/// to allow a batch.
#[test]
fn what_is_paced_leaves_in_batches_however_often_it_is_asked_for() {
    for congestion in [Congestion::Cubic, Congestion::NewReno, Congestion::Bbr3] {
        let mut world = World::connected(&TransportSettings { congestion: congestion.into(), ..settings() });
        let (batches, sent) = (world.batches, world.sent_by_client);
        // In this time the window grows, but stays smaller than the offered data.
        let end = world.now + Duration::from_millis(80);
        while world.now < end {
            (0..10).for_each(|_| world.speak(CLIENT, &[FULL]));
            world.step(None, world.now + Duration::from_micros(20));
        }
        let (batches, sent) = (world.batches - batches, world.sent_by_client - sent);
        assert!(sent > 1_000 && sent >= batches * 6, "{congestion}: {sent} in {batches} batches");
    }
}
