//! An exit that gives a client an address which somebody on the client's side has.

use std::net::Ipv4Addr;

use warren_quic::key::PrivateKey;

use crate::support::lying_exit::{Answers, LyingExit};
use crate::support::{Client, Exit, ExitOptions, Net};

/// The router, by which the client reaches everybody.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Nobody's, in the client's own network.
const FREE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
const ALSO_FREE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 51);

#[test]
fn no_exit_gives_away_the_address_of_the_host_its_gateway_or_the_exits_own() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let key = PrivateKey::generate().unwrap();
    let profile = exit.enrol("laptop").with_exit("public_key", key.public().to_string());
    // A second address, which no route leads by.
    net.client.sh("ip address add 192.0.2.9/32 dev lo").ok();
    let client = Client::with(&net, &profile);
    let own: Ipv4Addr = Net::CLIENT_V4.parse().unwrap();
    let carrier: Ipv4Addr = Net::EXIT_V4.parse().unwrap();
    let neighbour = |address: Ipv4Addr| Ipv4Addr::from(u32::from(address) ^ 64);

    for (lease, gateway, says) in [
        (
            GATEWAY,
            FREE,
            "192.0.2.1 as this client's inner address, which is the address of this host's gateway",
        ),
        (own, FREE, "192.0.2.2 as this client's inner address, which is an address of this host already"),
        (Ipv4Addr::new(192, 0, 2, 9), FREE, "which is an address of this host already"),
        (carrier, neighbour(carrier), "which is the exit's address outside the tunnel"),
        (FREE, GATEWAY, "192.0.2.1 as the exit's inner address, which is the address of this host's gateway"),
    ] {
        let liar = LyingExit::answering(&net, key.clone(), Answers::with_lease(lease, gateway));
        let refused = client.warren.run("up home --timeout 3s");
        drop(liar);
        assert!(refused.code.is_some_and(|code| code != 0), "{lease}: {refused:?}");
        assert!(refused.stderr.contains(says), "{says:?} is in: {refused:?}");
        client.warren.run("down home");
        client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
        client.assert_host_unchanged();
    }

    // The control: nobody has these addresses, although they are of the client's own network.
    let _exit = LyingExit::answering(&net, key, Answers::with_lease(FREE, ALSO_FREE));
    client.up();
    client.down();
    client.assert_host_unchanged();
}
