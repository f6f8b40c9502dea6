//! Several connections of one session: flows are spread over them, and each flow stays on one connection.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use crate::support::{self, Client, Exit, Net, Status, flows};

#[test]
fn flows_use_the_only_connection() {
    assert_flows_spread(1);
}

#[test]
fn flows_spread_over_four_connections() {
    assert_flows_spread(4);
}

#[test]
fn flows_spread_over_thirty_two_connections() {
    assert_flows_spread(32);
}

#[test]
fn a_flow_stays_on_one_connection_both_ways_and_in_order() {
    const COUNT: u32 = 3_000;
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 8));
    client.up();
    wait_until_attached(&client, &exit, 8);
    let before = (by_index(&client.status()), by_index(&exit.status()));

    let returned = flows::echo_numbered(&net.client, COUNT);

    assert_eq!(returned, (0..COUNT).collect::<Vec<_>>(), "every datagram came back, in order");
    let grown = |before: &[u64], after: &[u64]| -> Vec<usize> {
        let by = |index: usize| after[index] - before[index];
        (0..before.len()).filter(|index| by(*index) >= u64::from(COUNT) / 2).collect()
    };
    let up = grown(&before.0, &by_index(&client.status()));
    let down = grown(&before.1, &by_index(&exit.status()));
    assert_eq!(up.len(), 1, "some connections carried the flow up");
    assert_eq!(up, down, "the way back uses the same connection");
}

fn assert_flows_spread(connections: u16) {
    const FLOWS: u16 = 512;
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").with("transport", "connections", i64::from(connections));
    let client = Client::with(&net, &profile);
    client.up();
    wait_until_attached(&client, &exit, connections);
    let before = by_index(&client.status());

    let answered = flows::echo_from_each(&net.client, 20_000..20_000 + FLOWS);

    assert_eq!(answered, usize::from(FLOWS));
    let after = by_index(&client.status());
    let counts: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    println!("{FLOWS} flows over {connections} connections: {counts:?}");
    assert_eq!(counts.len(), usize::from(connections));
    let fair = u64::from(FLOWS / connections);
    assert!(counts.iter().all(|count| *count >= fair / 4), "every connection has a share: {counts:?}");
}

/// `up` returns after the first connection; the others follow.
fn wait_until_attached(client: &Client<'_>, exit: &Exit<'_>, connections: u16) {
    support::eventually(support::seconds(10), "every connection is attached", || {
        [client.status(), exit.status()]
            .iter()
            .all(|status| by_index(status).len() == usize::from(connections))
    });
}

/// Packets sent by each connection, in the order of the connections' numbers.
fn by_index(status: &Status) -> Vec<u64> {
    let mut counts: Vec<(u64, u64)> = status
        .list("/connections")
        .iter()
        .filter_map(|connection| Some((connection["index"].as_u64()?, connection["packets_out"].as_u64()?)))
        .collect();
    counts.sort_unstable();
    counts.into_iter().map(|(_, count)| count).collect()
}
