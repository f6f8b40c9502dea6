//! The networks behind clients on this host: which are routed to their clients, and which are not because they are this host's own.

use std::fmt;

use ipnet::IpNet;
use warren_host::Surroundings;
use warren_session::clients::ClientRegistry;

/// A network that is not routed to its client, because this host has a permanent address in it. Otherwise any exit of a fleet could
/// lead away the traffic of all others with their neighbours. Networks that a router advertises do not count: anybody on the link can
/// send an advertisement, and would get what belongs to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Withheld {
    client: String,
    prefix: IpNet,
    link: String,
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, prefix, link } = self;
        write!(
            f,
            "the network {prefix} is not routed to the client {client}, because it is part of this host's network {link}; give the client another prefix"
        )
    }
}

/// The networks behind clients that are not disabled, in order: those that are in force, and those that are withheld.
pub(super) fn in_force(registry: &ClientRegistry, host: &Surroundings) -> (Vec<IpNet>, Vec<Withheld>) {
    let (mut prefixes, mut withheld) = (Vec::new(), Vec::new());
    for (prefix, client) in registry.prefixes().filter(|(_, client)| !client.disabled) {
        match host.permanent.iter().find(|link| link.network.contains(&prefix)) {
            Some(link) => {
                let (client, link) = (client.name.clone(), format!("{} ({})", link.network, link.device));
                withheld.push(Withheld { client, prefix, link });
            }
            None => prefixes.push(prefix),
        }
    }
    (prefixes, withheld)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use warren_host::{DeviceName, OnLink};
    use warren_session::PublicKey;
    use warren_session::clients::Client;

    use super::*;

    #[test]
    fn networks_of_this_hosts_permanent_addresses_are_withheld_and_others_are_not() {
        let link =
            OnLink { device: DeviceName::new("eth0").unwrap(), network: "192.0.2.0/24".parse().unwrap() };
        let host = Surroundings { permanent: vec![link.clone()], ..Surroundings::default() };
        let advertised = Surroundings { links: vec![link], ..Surroundings::default() };
        let prefixes = ["192.0.2.7/32", "192.0.0.0/16", "198.51.100.0/24"];
        for (number, prefix) in (1..).zip(prefixes) {
            let mut client = Client::new(format!("c{number}"), PublicKey([number; 32]), UNIX_EPOCH);
            client.prefixes = vec![prefix.parse().unwrap()];
            // They overlap, so each is alone.
            let mut alone = ClientRegistry::new();
            alone.add(client).unwrap();
            assert_eq!(in_force(&alone, &advertised).0.len(), 1, "{prefix}");
            let (routed, withheld) = in_force(&alone, &host);
            // A wider network leaves the link's own route in force.
            assert_eq!((routed.len(), withheld.len()), if number == 1 { (0, 1) } else { (1, 0) }, "{prefix}");
        }
    }
}
