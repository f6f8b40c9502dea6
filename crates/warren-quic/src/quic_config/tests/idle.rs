//! What an idle connection sends, and what it survives.

use std::time::Duration;

use bytes::Bytes;
use noq_proto::VarInt;

use super::world::{CLIENT, Configs, DELAY, EXIT, World, settings};

/// Scorecard R3, counting both directions.
#[test]
fn an_idle_connection_sends_a_packet_in_ten_seconds_at_most() {
    let mut world = World::connected(&settings());
    world.run(Duration::from_secs(10), None);
    for _ in 0..12 {
        let before = world.sent;
        world.run(Duration::from_secs(300), None);
        assert!(world.sent - before <= 30, "{} in five minutes", world.sent - before);
    }
    world.assert_mtu_is_known(0);
}

/// A packet whose acknowledgement comes too late is sent again. On an idle connection, an acknowledgement that waits for further
/// packets is nearly too late.
#[test]
fn an_idle_connection_sends_nothing_twice_when_an_answer_takes_some_milliseconds_more() {
    let mut world = World::connected(&settings());
    let sent_in = |world: &mut World, last_delay: Duration| {
        let before = world.sent;
        for _ in 0..12 {
            world.delay = DELAY;
            world.run(Duration::from_secs(275), None);
            world.delay = last_delay;
            world.run(Duration::from_secs(25), None);
        }
        world.sent - before
    };
    let steady = sent_in(&mut world, DELAY);
    let faltering = sent_in(&mut world, DELAY + Duration::from_micros(2_500));
    assert!(faltering <= steady + 4, "{faltering} in an hour, and {steady} if the answers are never slow");
}

/// Scorecard F6 and A7: an outage of 20 s never ends a connection, whenever the outage begins. A client that is gone is
/// given up in time.
#[test]
fn an_idle_connection_outlives_a_hole_of_twenty_seconds_and_not_its_client() {
    for begins in 0..=26 {
        let mut world = World::connected(&settings());
        world.run(Duration::from_secs(60 + begins), None);
        world.loss_per_mille = 1_000;
        world.run(Duration::from_secs(20), None);
        world.loss_per_mille = 0;
        world.run(Duration::from_secs(60), None);
        assert_eq!(world.lost(), (false, false), "a hole that begins after {begins} s");

        world.loss_per_mille = 1_000;
        world.run(settings().idle_timeout + Duration::from_secs(1), None);
        assert!(world.lost().1, "a client that is gone after {begins} s");
    }
}

/// A search for a larger MTU and a check of the present one are due at the same time.
#[test]
fn a_path_that_shrank_while_nobody_spoke_is_noticed_where_a_wider_one_is_sought() {
    let mut world = World::beginning(&settings(), Configs::new(&settings()));
    world.limit = 1_460;
    world.run(Duration::from_secs(10), Some(&[100]));
    assert!((1_450..=1_460).contains(&world.mtu(CLIENT)), "{}", world.mtu(CLIENT));
    world.run(Duration::from_secs(60), None);

    world.limit = 1_300;
    world.run(Duration::from_secs(2 * 600 + 60), None);
    assert!(
        world.mtu(CLIENT) <= 1_300 && world.mtu(EXIT) <= 1_300,
        "{:?}",
        (world.mtu(CLIENT), world.mtu(EXIT))
    );

    world.limit = 1_500;
    world.run(Duration::from_secs(2 * 600 + 60), None);
    assert_eq!((world.mtu(CLIENT), world.mtu(EXIT)), (1_472, 1_472), "the path is wide again");
}

/// From a newer address, the client acknowledges packets that the exit sent to an earlier address. The exit has not sent a probe
/// on the newer path, and later gives that path up.
#[test]
fn a_path_that_was_gone_back_to_is_watched_as_before() {
    let mut world = World::beginning(&settings(), Configs::new(&settings()));
    world.limit = 1_460;
    world.run(Duration::from_secs(60), Some(&[100]));
    let (before, end) = (world.too_long, world.now + Duration::from_secs(700));
    while world.too_long == before {
        assert!(world.now < end, "the exit seeks a wider path");
        world.step(Some(&[100]), end);
    }
    world.run(Duration::from_millis(3), Some(&[100]));
    world.strays = true;
    world.run(Duration::from_millis(25), Some(&[100]));
    world.loss_per_mille = 1_000;
    world.run(Duration::from_secs(5), None);
    world.loss_per_mille = 0;
    world.strays = false;
    world.run(Duration::from_secs(10), None);
    assert_eq!(world.lost(), (false, false));

    world.limit = 1_300;
    world.run(Duration::from_secs(2 * 600 + 60), None);
    assert!(world.mtu(EXIT) <= 1_300, "{}", world.mtu(EXIT));
}

/// RFC 9002 section 6.2.4: two probes at a time.
#[test]
fn a_network_that_changed_after_a_silence_is_asked_and_not_flooded() {
    let mut world = World::connected(&settings());
    world.loss_per_mille = 1_000;
    world.speak(CLIENT, &[100]);
    world.run(Duration::from_secs(20), None);
    let (now, before) = (world.now, world.sent_by_client);
    world.quic(CLIENT).handle_network_change(None, now);
    world.run(Duration::from_millis(15), None);
    let sent = world.sent_by_client - before;
    assert!((1..=4).contains(&sent), "{sent} at once");

    // The probes are lost, so the next ones come soon, as on any path that has just come up.
    world.loss_per_mille = 0;
    world.run(Duration::from_millis(150), None);
    let quic = world.quic(CLIENT);
    assert_eq!(quic.unanswered_probes(), 0, "the probes are answered as soon as on a fresh path");
}

/// A stranger may close a connection with its first packet.
#[test]
fn a_connection_whose_first_packet_closes_it_is_gone_in_seconds() {
    let mut world = World::beginning(&settings(), Configs::new(&settings()));
    let now = world.now;
    world.quic(CLIENT).close(now, VarInt::from_u32(0), Bytes::new());
    world.run(Duration::from_secs(6), None);
    assert!(world.quic(EXIT).is_drained());
}
