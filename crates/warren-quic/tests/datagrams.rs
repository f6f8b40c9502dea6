//! Datagrams stay in order. Each datagram is delivered, returned to the caller or counted as dropped.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{net::Ipv4Addr, sync::atomic::Ordering, time::Duration};

use common::{Drivers, Pair, Way, loopback_socket, number, numbered, relay::Relay};
use warren_quic::{
    driver::{ConnectionId, SendError},
    settings::{Congestion, ReceiveBatches, TransportSettings},
};

test_every_driver!(
    datagrams_arrive_in_order_and_are_counted_both_ways,
    connections_do_not_mix,
    a_full_buffer_gives_the_datagram_back_and_tells_when_there_is_room,
    a_datagram_larger_than_the_path_is_given_back,
    what_a_close_leaves_unsent_is_counted,
    datagrams_that_find_the_receive_buffer_full_push_out_older_ones_and_are_counted,
    a_path_that_loses_every_tenth_datagram_carries_the_others,
    one_receive_buffer_is_enough_and_more_can_be_had_at_run_time,
    a_path_that_shrinks_drops_what_no_longer_fits_and_counts_it,
    a_client_that_changes_its_address_keeps_its_connection,
);

async fn datagrams_arrive_in_order_and_are_counted_both_ways(drivers: Drivers) {
    const COUNT: usize = 20_000;
    for way in [Way::Up, Way::Down] {
        let mut pair = Pair::new(drivers, &TransportSettings::default());
        let (at_client, at_exit) = pair.connect().await;
        let (from, to) = if matches!(way, Way::Up) { (at_client, at_exit) } else { (at_exit, at_client) };
        let sizes = (0..COUNT).map(|index| [40, 1_100, 1_150, 600][index % 4]);
        let blocked = pair.send_all(way, from, sizes).await;
        pair.until("all have arrived", |pair| pair.receiver(way).datagrams.len() == COUNT).await;

        assert!(
            blocked > 0 && !pair.sender(way).writable.is_empty(),
            "a full buffer blocks, and reports when there is room again"
        );
        let numbers = pair.receiver(way).datagrams.iter().map(|(_, datagram)| number(datagram));
        assert!(numbers.eq(0..COUNT as u64), "in order");
        let (sent, received) = (pair.sender(way).stats(from), pair.receiver(way).stats(to));
        let count = COUNT as u64;
        assert_eq!((sent.datagrams_accepted, sent.datagrams_sent), (count, count));
        assert_eq!((received.datagrams_received, received.datagrams_delivered), (count, count));
        assert_eq!((sent.send_drops_full, sent.send_drops_too_large, received.receive_drops), (0, 0, 0));
    }
}

async fn connections_do_not_mix(drivers: Drivers) {
    const COUNT: usize = 2_000;
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(pair.connect().await);
    }
    for &(at_client, _) in &names {
        pair.send_all(Way::Up, at_client, (0..COUNT).map(|_| 500)).await;
    }
    pair.until("all have arrived", |pair| pair.exit.datagrams.len() == 4 * COUNT).await;
    for &(_, at_exit) in &names {
        let numbers = pair.exit.datagrams.iter().filter(|(from, _)| *from == at_exit);
        assert!(numbers.map(|(_, datagram)| number(datagram)).eq(0..COUNT as u64));
    }
}

async fn a_full_buffer_gives_the_datagram_back_and_tells_when_there_is_room(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let (at_client, at_exit) = pair.connect().await;
    let mut taken = 0;
    // Nothing else runs meanwhile, so the buffer must fill up.
    let refused = loop {
        match pair.client.endpoint.send_datagram(at_client, numbered(taken, 1_000)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    let SendError::Blocked(datagram) = refused else { panic!("{refused}") };
    assert_eq!((number(&datagram), datagram.len()), (taken, 1_000));
    // The buffer holds only what is sent in a few milliseconds, which is little on a busy machine.
    assert!((4..=140).contains(&taken), "the buffer holds at most one drive: {taken}");
    assert!(pair.client.writable.is_empty());
    pair.until("there is room", |pair| pair.client.writable == [at_client]).await;
    pair.client.endpoint.send_datagram(at_client, datagram).unwrap();
    pair.until("all have arrived", |pair| pair.exit.datagrams.len() as u64 == taken + 1).await;
    assert!(pair.exit.datagrams.iter().all(|(from, _)| *from == at_exit));
    assert_eq!(pair.client.writable, [at_client], "the client is notified once");
}

async fn a_datagram_larger_than_the_path_is_given_back(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let (at_client, _) = pair.connect().await;
    let largest = pair.client.endpoint.max_datagram_size(at_client).unwrap();
    pair.client.endpoint.send_datagram(at_client, numbered(0, largest)).unwrap();
    let refused = pair.client.endpoint.send_datagram(at_client, numbered(1, largest + 1)).unwrap_err();
    assert!(matches!(refused, SendError::TooLarge(datagram) if datagram.len() == largest + 1));
    pair.until("the largest arrives", |pair| pair.exit.datagrams.len() == 1).await;
    let nobody = ConnectionId(99);
    assert!(matches!(pair.client.endpoint.send_datagram(nobody, numbered(2, 9)), Err(SendError::Closed(_))));
}

async fn what_a_close_leaves_unsent_is_counted(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let (at_client, at_exit) = pair.connect().await;
    let mut taken = 0;
    while pair.client.endpoint.send_datagram(at_client, numbered(taken, 1_000)).is_ok() {
        taken += 1;
    }
    pair.exit.endpoint.close(at_exit, 0, "");
    pair.client.endpoint.close(at_client, 0, "");
    pair.until("both are closed", |pair| !pair.client.closed.is_empty() && !pair.exit.closed.is_empty())
        .await;
    let (client, exit) = (&pair.client.last[&at_client], &pair.exit.last[&at_exit]);
    assert_eq!(client.datagrams_accepted, taken);
    assert_eq!(
        client.datagrams_accepted,
        client.datagrams_sent
            + client.send_drops_full
            + client.send_drops_too_large
            + client.send_drops_closed
    );
    assert_eq!(exit.datagrams_received, exit.datagrams_delivered + exit.receive_drops);
    assert_eq!(exit.datagrams_delivered, pair.exit.datagrams.len() as u64);
    assert!(pair.client.endpoint.stats(at_client).is_none(), "the counters are gone after the next poll");
}

async fn datagrams_that_find_the_receive_buffer_full_push_out_older_ones_and_are_counted(drivers: Drivers) {
    let client = TransportSettings { congestion: Congestion::Off.into(), ..Default::default() };
    let exit = TransportSettings { datagram_receive_buffer: 64 * 1024, ..Default::default() };
    let mut pair = Pair::with(drivers.client(client), drivers.exit(exit), loopback_socket());
    let (at_client, at_exit) = pair.connect().await;
    let mut taken = 0;
    // The exit's worker is busy: noq receives, but the worker does not poll.
    let client_runs = async {
        let mut tick = tokio::time::interval(Duration::from_millis(2));
        std::future::poll_fn(|cx| {
            while tick.poll_tick(cx).is_ready() {}
            pair.client.poll(cx);
            while taken < 300 && pair.client.endpoint.send_datagram(at_client, numbered(taken, 1_000)).is_ok()
            {
                taken += 1;
            }
            pair.client.endpoint.flush(cx);
            if pair.client.stats(at_client).datagrams_sent == 300 {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    };
    tokio::time::timeout(common::PATIENCE, client_runs).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    pair.until("all were received", |pair| pair.exit.stats(at_exit).datagrams_received == 300).await;
    let exit = pair.exit.stats(at_exit);
    assert!(exit.receive_drops > 50, "{}", exit.receive_drops);
    assert_eq!(exit.datagrams_received, exit.datagrams_delivered + exit.receive_drops);
    assert_eq!(number(&pair.exit.datagrams.last().unwrap().1), 299, "the newest are kept");
}

async fn one_receive_buffer_is_enough_and_more_can_be_had_at_run_time(drivers: Drivers) {
    let settings = TransportSettings { receive_batches: ReceiveBatches::new(1), ..Default::default() };
    let batches = settings.receive_batches.clone();
    let mut pair = Pair::new(drivers, &settings);
    // Each of a client's connections has its own socket; all of them share the receive buffers.
    let names = [pair.connect().await, pair.connect().await, pair.connect().await];
    for (round, limit) in [1, 2, 32].into_iter().enumerate() {
        batches.set(limit);
        for (at_client, at_exit) in names {
            pair.send_all(Way::Up, at_client, (0..500).map(|_| 1_000)).await;
            pair.send_all(Way::Down, at_exit, (0..500).map(|_| 1_000)).await;
        }
        pair.until("all have arrived", |pair| {
            let arrived = [pair.client.datagrams.len(), pair.exit.datagrams.len()];
            arrived == [1_500 * (round + 1); 2]
        })
        .await;
    }
}

async fn a_path_that_loses_every_tenth_datagram_carries_the_others(drivers: Drivers) {
    const COUNT: usize = 5_000;
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let relay = Relay::new(pair.exit_address, 1_472).await;
    let (at_client, at_exit) = pair.connect_to(relay.address).await;
    relay.lose_one_of.store(10, Ordering::Relaxed);
    let control = vec![7; 40_000];
    pair.client.endpoint.send_control(at_client, &control).unwrap();
    pair.exit.endpoint.send_control(at_exit, &control).unwrap();
    pair.send_all(Way::Up, at_client, (0..COUNT).map(|_| 1_000)).await;
    pair.send_all(Way::Down, at_exit, (0..COUNT).map(|_| 1_000)).await;
    pair.until("control bytes were repeated until they arrived", |pair| {
        pair.exit.control_of(at_exit) == control && pair.client.control_of(at_client) == control
    })
    .await;
    pair.until("all are sent", |pair| {
        let sent = |stats: warren_quic::driver::ConnectionStats| stats.datagrams_sent == COUNT as u64;
        sent(pair.client.stats(at_client)) && sent(pair.exit.stats(at_exit))
    })
    .await;
    pair.run_for(Duration::from_millis(100)).await;
    for side in [&pair.client, &pair.exit] {
        assert!((COUNT * 3 / 4..COUNT).contains(&side.datagrams.len()), "{}", side.datagrams.len());
        let numbers: Vec<_> = side.datagrams.iter().map(|(_, datagram)| number(datagram)).collect();
        assert!(numbers.is_sorted(), "the path does not reorder");
    }
    let client = pair.client.stats(at_client);
    assert!(client.lost_packets > 0);
    assert_eq!((pair.client.closed.len(), pair.exit.closed.len()), (0, 0));
}

async fn a_path_that_shrinks_drops_what_no_longer_fits_and_counts_it(drivers: Drivers) {
    let settings =
        TransportSettings { initial_mtu: 1_472, congestion: Congestion::Off.into(), ..Default::default() };
    let mut pair = Pair::new(drivers, &settings);
    let relay = Relay::new(pair.exit_address, 1_472).await;
    let (at_client, at_exit) = pair.connect_to(relay.address).await;
    pair.send_all(Way::Up, at_client, (0..100).map(|_| 1_400)).await;
    pair.until("the large path works", |pair| pair.exit.datagrams.len() == 100).await;

    relay.limit.store(1_250, Ordering::Relaxed);
    let mut taken = 100;
    pair.until("the black hole is found", |pair| {
        while pair.client.endpoint.send_datagram(at_client, numbered(taken, 1_400)).is_ok() {
            taken += 1;
        }
        pair.client.stats(at_client).black_holes > 0
    })
    .await;
    let refused = pair.client.endpoint.send_datagram(at_client, numbered(taken, 1_400)).unwrap_err();
    assert!(matches!(refused, SendError::TooLarge(_)), "{refused}");
    pair.send_all(Way::Up, at_client, (0..50).map(|_| 1_000)).await;
    pair.until("small datagrams pass", |pair| pair.exit.datagrams.len() == 150).await;
    pair.run_for(Duration::from_millis(50)).await;

    let (client, exit) = (pair.client.stats(at_client), pair.exit.stats(at_exit));
    assert_eq!(client.mtu, 1_200);
    assert_eq!(client.datagrams_accepted, taken + 50);
    assert!(client.send_drops_too_large > 0, "queued datagrams were dropped, because they no longer fit");
    assert_eq!(client.datagrams_accepted, client.datagrams_sent + client.send_drops_too_large);
    assert!(client.datagrams_sent > exit.datagrams_received, "the rest was lost on the path");
}

async fn a_client_that_changes_its_address_keeps_its_connection(drivers: Drivers) {
    let settings = TransportSettings::default();
    let mut pair = Pair::new(drivers, &settings);
    let relay = Relay::new(pair.exit_address, 1_472).await;
    let (at_client, at_exit) = pair.connect_to(relay.address).await;
    pair.until("the path's MTU is found", |pair| pair.exit.stats(at_exit).mtu == 1_472).await;
    let before = pair.exit.stats(at_exit).remote;

    relay.move_to(Ipv4Addr::new(127, 0, 0, 2));
    // These datagrams are queued for the old path's MTU. The new path starts with a smaller one.
    let mut taken = 0;
    while pair.exit.endpoint.send_datagram(at_exit, numbered(taken, 1_400)).is_ok() {
        taken += 1;
    }
    pair.client.endpoint.send_datagram(at_client, numbered(0, 100)).unwrap();
    pair.until("the exit sees the new address", |pair| pair.exit.stats(at_exit).remote != before).await;
    pair.until("the MTU is discovered again", |pair| pair.exit.stats(at_exit).mtu == 1_472).await;
    let old = pair.client.datagrams.len();
    pair.send_all(Way::Down, at_exit, (0..100).map(|_| 1_400)).await;
    pair.until("datagrams reach the client", |pair| pair.client.datagrams.len() >= old + 100).await;
    assert_eq!((pair.client.closed.len(), pair.exit.closed.len()), (0, 0));
    let exit = pair.exit.stats(at_exit);
    assert_eq!(exit.datagrams_accepted, exit.datagrams_sent + exit.send_drops_too_large);
}
