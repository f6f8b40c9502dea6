//! Which path MTU a connection assumes under loss, under overload, when the path shrinks, and when nothing is sent.

use std::time::Duration;

use noq_proto::MtuDiscoveryConfig;

use super::{
    world::{CLIENT, EXIT, FULL, MIXED, World, settings},
    *,
};

#[test]
fn random_loss_is_never_taken_for_a_black_hole() {
    for loss in [0, 50, 130, 150] {
        for sizes in [&[FULL][..], &MIXED] {
            let mut world = World::connected(&settings());
            world.loss_per_mille = loss;
            world.run(Duration::from_secs(20), Some(sizes));
            world.assert_mtu_is_known(loss);
        }
    }
}

/// The control: with the library's own rule, the same path and packets lead to a collapse, which the
/// assertion above would notice.
#[test]
fn without_confirmation_loss_is_taken_for_a_black_hole() {
    let mut upstream = MtuDiscoveryConfig::default();
    upstream.upper_bound(ETHERNET_MTU).minimum_change(MTU_MINIMUM_CHANGE);
    let mut world = World::connected_with(&settings(), Some(&upstream));
    world.loss_per_mille = 130;
    // Most runs of 20 s see a black hole. A test cannot seed noq's random numbers, so the test makes up to 15 such runs.
    let is_taken = (0..15).any(|_| {
        world.run(Duration::from_secs(20), Some(&MIXED));
        world.black_holes(CLIENT) + world.black_holes(EXIT) > 0
    });
    assert!(is_taken);
}

/// If half of all packets are lost, all eight probes of a confirmation are lost in one of 256 cases. About one run in twenty
/// has such a case. If each overload counted as a black hole at once, each side would count about twenty black holes. If two
/// lost probes were enough, each side would count three.
#[test]
fn bursts_of_overload_are_not_taken_for_black_holes() {
    let mut taken = 0;
    for sizes in [&[FULL][..], &MIXED] {
        let mut world = World::connected(&settings());
        for _ in 0..12 {
            world.run(Duration::from_secs(2), Some(sizes));
            world.loss_per_mille = 500;
            world.run(Duration::from_secs(4), Some(sizes));
            world.loss_per_mille = 0;
        }
        taken += world.black_holes(CLIENT) + world.black_holes(EXIT);
    }
    assert!(taken <= 2, "{taken}");
}

#[test]
fn a_path_that_shrinks_under_traffic_is_known_within_seconds_and_grows_again() {
    for (limit, loss) in [(1_372, 0), (1_272, 0), (1_200, 0), (1_272, 150)] {
        let mut world = World::connected(&settings());
        world.run(Duration::from_secs(2), Some(&MIXED));
        world.loss_per_mille = loss;
        world.limit = limit;
        // On a path with random loss, the loss of a large packet says less about the MTU.
        let within = Duration::from_secs(if loss == 0 { 6 } else { 20 });
        world.run_until("the shrunken path is known", within, Some(&MIXED), |world| {
            (limit - 30..=limit).contains(&world.mtu(CLIENT))
                && (limit - 30..=limit).contains(&world.mtu(EXIT))
        });
        assert_eq!((world.black_holes(CLIENT), world.black_holes(EXIT)), (1, 1));

        world.loss_per_mille = 0;
        world.limit = 1_500;
        world.run_until("the path is wide again", MTU_INTERVAL + MTU_INTERVAL / 10, Some(&[100]), |world| {
            world.mtu(CLIENT) == usize::from(ETHERNET_MTU) && world.mtu(EXIT) == usize::from(ETHERNET_MTU)
        });
    }
}

#[test]
fn a_path_that_shrank_while_nobody_spoke_is_known_soon_after_somebody_does() {
    for (limit, sizes) in [(1_372, &[FULL, FULL, 60][..]), (1_272, &MIXED), (1_228, &[FULL, FULL, 60])] {
        let mut world = World::connected(&settings());
        world.run(Duration::from_secs(70), None);
        world.limit = limit;
        world.run(Duration::from_secs(70), None);
        assert_eq!(
            world.mtu(CLIENT),
            usize::from(ETHERNET_MTU),
            "an idle connection need not know the new size"
        );
        let begun = world.now;
        world.run_until("the shrunken path is known", Duration::from_secs(60), Some(sizes), |world| {
            (limit - 30..=limit).contains(&world.mtu(CLIENT))
                && (limit - 30..=limit).contains(&world.mtu(EXIT))
        });
        println!("{limit} {:?} after {:?}", sizes.len(), world.now - begun);
    }
}

#[test]
fn a_path_that_shrinks_is_noticed_in_time_on_a_connection_that_only_keeps_alive() {
    let mut world = World::connected(&settings());
    world.run(Duration::from_secs(2), None);
    world.limit = 1_372;
    world.run_until(
        "the shrunken path is known",
        MTU_CONFIRMATION + Duration::from_secs(60),
        None,
        |world| (1_342..=1_372).contains(&world.mtu(CLIENT)) && (1_342..=1_372).contains(&world.mtu(EXIT)),
    );
}
