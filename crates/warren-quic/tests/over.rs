//! Closed connections answer late packets for a while. Many may accumulate in that time, so their number is limited.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{future::poll_fn, task::Poll};

use common::{Pair, loopback_socket};
use warren_quic::{
    driver::Endpoint,
    settings::{Driver, TransportSettings},
};

const MANY: usize = 400;
const KEPT: usize = 256;

#[tokio::test]
async fn an_exit_keeps_some_of_the_connections_that_are_over() {
    let settings = TransportSettings { driver: Driver::Warren, ..TransportSettings::default() };
    let mut pair = Pair::with(settings.clone(), settings, loopback_socket());
    for _ in 0..MANY {
        pair.connect().await;
    }
    let others = pair.connect().await;
    assert_eq!(connections(&pair.exit.endpoint), MANY + 1);

    for (id, _) in pair.exit.connected.clone() {
        if id != others.1 {
            pair.exit.endpoint.close(id, 0, "");
        }
    }
    // There is no pause here, because closed connections would expire during it.
    poll_fn(|cx| {
        let mut polls_left = 1_000;
        while pair.exit.closed.len() < MANY && polls_left > 0 {
            pair.exit.poll_once(cx);
            polls_left -= 1;
        }
        pair.exit.poll_once(cx);
        pair.exit.endpoint.flush(cx);
        Poll::Ready(())
    })
    .await;
    assert_eq!(pair.exit.closed.len(), MANY);
    assert!(connections(&pair.exit.endpoint) <= KEPT + 1, "{}", connections(&pair.exit.endpoint));

    pair.until("every client connection has closed, the forgotten ones by a reset", |pair| {
        pair.client.closed.len() == MANY
    })
    .await;
    pair.client.endpoint.send_control(others.0, b"still here").unwrap();
    pair.until("the open connection still works", |pair| pair.exit.control_of(others.1) == b"still here")
        .await;
    pair.until("all other connections are gone", |pair| connections(&pair.exit.endpoint) == 1).await;
}

/// The endpoint's connections, including closed ones.
fn connections(endpoint: &Endpoint) -> usize {
    let all = format!("{endpoint:?}");
    let (_, count) = all.split_once("connections: ").unwrap();
    count.split(',').next().unwrap().trim().parse().unwrap()
}
