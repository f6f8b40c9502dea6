//! What a connection on which nobody speaks sends, and what it outlives.

use std::time::Duration;

use super::world::{DELAY, World, settings};

/// Scorecard R3, of both directions.
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

/// What is acknowledged late is sent again, and on an idle connection an acknowledgement that waits for others is nearly late.
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
    assert!(faltering <= steady + 4, "{faltering} in an hour, {steady} without");
}

/// Scorecard F6 and A7: a hole of 20 s costs no connection, whenever it begins, and a client that is gone is given up in time.
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
