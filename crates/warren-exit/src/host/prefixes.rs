//! The networks behind clients on this host. Some are routed to their clients, and others are not because this host needs them.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use warren_daemon::helper::Helper;
use warren_host::Surroundings;
use warren_session::clients::ClientRegistry;

use crate::fleet::StoreAddresses;

/// Addresses that the host of a fleet's exit must reach by its own routes, even if they are inside a network behind a client.
/// Without its store, the exit would learn nothing more, not even that such a network was removed. An exit without a fleet needs
/// no such addresses. Its operator may well have a resolver behind a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Needed {
    /// The addresses of the fleet's store. `Unknown` until the names of all members have been looked up.
    store: Addresses,
    /// The resolvers that the host's files name. The host may need them to look up the store's name.
    resolvers: Addresses,
}

/// Addresses of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Addresses {
    /// The exit belongs to no fleet, or no client has a network.
    #[default]
    NotNeeded,
    /// At least one address was never found out. The missing address could be in any network.
    Unknown,
    Known(Vec<IpAddr>),
    /// The helper's last list was empty. These are the addresses of the previous list. The list may be empty only because another
    /// program is rewriting resolv.conf, so the previous addresses stay valid until the next check.
    Emptied(Vec<IpAddr>),
}

impl Needed {
    /// Finds out which addresses the host needs. `store`: the addresses of the fleet's store, if the exit belongs to a fleet.
    /// `before`: the last result.
    pub(super) async fn look(
        store: Option<&StoreAddresses>,
        registry: &ClientRegistry,
        helper: &Helper,
        before: &Self,
    ) -> Self {
        let has_networks = registry.prefixes().next().is_some();
        // Without networks behind clients nothing can hide these addresses, so the helper need not be asked.
        match store.filter(|_| has_networks) {
            Some(store) => {
                let resolvers = before.resolvers.after(helper.try_list_resolvers().await);
                Self { store: Addresses::of_store(store), resolvers }
            }
            None => Self::default(),
        }
    }

    /// The addresses, each with a description.
    fn all(&self) -> impl Iterator<Item = (&IpAddr, &'static str)> {
        let store = self.store.known().iter().map(|address| (address, "the fleet's store"));
        store.chain(self.resolvers.known().iter().map(|address| (address, "a resolver of this host")))
    }
}

impl Addresses {
    fn of_store(store: &StoreAddresses) -> Self {
        store.all().map_or(Self::Unknown, Self::Known)
    }

    fn known(&self) -> &[IpAddr] {
        match self {
            Self::Known(known) | Self::Emptied(known) => known,
            Self::NotNeeded | Self::Unknown => &[],
        }
    }

    /// The resolvers after the helper's answer. If the helper fails, the known resolvers stay.
    fn after(&self, listed: anyhow::Result<Vec<IpAddr>>) -> Self {
        match (listed, self) {
            (Ok(listed), Self::Known(known)) if listed.is_empty() => Self::Emptied(known.clone()),
            (Ok(listed), _) => Self::Known(listed),
            (Err(error), known) => {
                tracing::debug!("the host's resolvers are not known: {error:#}");
                if *known == Self::NotNeeded { Self::Unknown } else { known.clone() }
            }
        }
    }
}

/// A network that is not routed to its client. Either this host has a permanent address in it, or the host must reach an address in
/// it that is not behind the client. Without this rule, any exit of a fleet could divert the traffic between the other exits' hosts
/// and their neighbours, or cut these hosts off from the store. Networks that a router advertises do not count, because anybody on
/// the link can send an advertisement, and would thereby get the client's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Withheld {
    client: String,
    prefix: IpNet,
    why: String,
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, prefix, why } = self;
        write!(f, "the network {prefix} is not routed to the client {client}, because {why}")
    }
}

/// Returns the networks behind all clients that are not disabled, in order: first those in force, then those withheld.
pub(super) fn in_force(
    registry: &ClientRegistry,
    host: &Surroundings,
    needed: &Needed,
) -> (Vec<IpNet>, Vec<Withheld>) {
    let (mut prefixes, mut withheld) = (Vec::new(), Vec::new());
    for (prefix, client) in registry.prefixes().filter(|(_, client)| !client.disabled) {
        match why_withheld(prefix, host, needed) {
            Some(why) => withheld.push(Withheld { client: client.name.clone(), prefix, why }),
            None => prefixes.push(prefix),
        }
    }
    (prefixes, withheld)
}

/// The advice to the operator.
const OTHER: &str = "; give the client another prefix";

fn why_withheld(prefix: IpNet, host: &Surroundings, needed: &Needed) -> Option<String> {
    if let Some(link) = host.permanent.iter().find(|link| link.network.contains(&prefix)) {
        return Some(format!("it is part of this host's network {} ({}){OTHER}", link.network, link.device));
    }
    // If the client's network is wider than the link's network, the link's own route stays in force.
    let is_on_link = |address: &IpAddr| {
        let mut links = host.permanent.iter().map(|link| link.network);
        links.any(|link| link.contains(address) && prefix.contains(&link))
    };
    if let Some((address, what)) =
        needed.all().find(|(address, _)| prefix.contains(*address) && !is_on_link(address))
    {
        return Some(format!("it contains {what}, {address}{OTHER}"));
    }
    if needed.store == Addresses::Unknown {
        let why = "the addresses of the fleet's store are not all known yet; look at `endpoints` in fleet.toml if this stays";
        return Some(why.to_owned());
    }
    (needed.resolvers == Addresses::Unknown).then(|| "this host's resolvers are not known yet".to_owned())
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
            // The prefixes overlap, so each one is in a separate registry.
            let mut alone = ClientRegistry::new();
            alone.add(client).unwrap();
            let needed = Needed::default();
            assert_eq!(in_force(&alone, &advertised, &needed).0.len(), 1, "{prefix}");
            let (routed, withheld) = in_force(&alone, &host, &needed);
            // A wider network leaves the link's own route in force.
            assert_eq!((routed.len(), withheld.len()), if number == 1 { (0, 1) } else { (1, 0) }, "{prefix}");
        }
    }

    #[test]
    fn networks_with_the_store_or_a_resolver_are_withheld_unless_this_hosts_own_route_to_it_stays_in_force() {
        let link =
            OnLink { device: DeviceName::new("eth0").unwrap(), network: "192.0.2.0/24".parse().unwrap() };
        let host = Surroundings { permanent: vec![link], ..Surroundings::default() };
        let needed = Needed {
            store: Addresses::Known(
                ["192.0.2.9", "198.51.100.1", "2001:db8::1"].map(|address| address.parse().unwrap()).to_vec(),
            ),
            resolvers: Addresses::Known(vec!["203.0.113.53".parse().unwrap()]),
        };
        let cases = [
            ("198.51.100.0/24", Some("it contains the fleet's store, 198.51.100.1")),
            ("198.51.100.1/32", Some("it contains the fleet's store, 198.51.100.1")),
            ("2001:db8::/32", Some("it contains the fleet's store, 2001:db8::1")),
            ("203.0.113.0/26", Some("it contains a resolver of this host, 203.0.113.53")),
            ("203.0.113.128/25", None),
            // The member on this host's own network is reached over that network's route.
            ("192.0.0.0/16", None),
            ("192.0.2.9/32", Some("it is part of this host's network 192.0.2.0/24 (eth0)")),
        ];
        for (prefix, expected) in cases {
            let prefix = prefix.parse().unwrap();
            let expected = expected.map(|why| format!("{why}{OTHER}"));
            assert_eq!(why_withheld(prefix, &host, &needed), expected, "{prefix}");
            // The control: the network behind the client contains only the member's address.
            let is_own = prefix.to_string() == "192.0.2.9/32";
            assert_eq!(why_withheld(prefix, &host, &Needed::default()).is_some(), is_own, "{prefix}");
        }
    }

    #[test]
    fn resolvers_that_were_known_stay_withheld_if_the_helper_fails_and_without_any_nothing_is_routed() {
        let host = Surroundings::default();
        let [one, other] =
            ["203.0.113.53", "198.51.100.53"].map(|address| address.parse::<IpAddr>().unwrap());
        let failed = || Err(anyhow::anyhow!("the helper has ended"));
        let why = |resolvers: &Addresses, prefix: &str| {
            let needed = Needed { resolvers: resolvers.clone(), ..Needed::default() };
            why_withheld(prefix.parse().unwrap(), &host, &needed)
        };
        let (with_one, with_other) = ("203.0.113.0/24", "198.51.100.0/24");

        // The helper has never answered.
        let unknown = Addresses::default().after(failed()).after(failed());
        assert!([with_one, with_other].iter().all(|prefix| why(&unknown, prefix).is_some()));

        let known = unknown.after(Ok(vec![one]));
        for kept in [known.clone(), known.after(failed()), known.after(Ok(Vec::new())).after(failed())] {
            assert!(why(&kept, with_one).is_some() && why(&kept, with_other).is_none(), "{kept:?}");
        }
        // The control: an answer counts, even from a host without resolvers.
        let changed = known.after(Ok(vec![other]));
        assert!(why(&changed, with_one).is_none() && why(&changed, with_other).is_some());
        assert_eq!(why(&unknown.after(Ok(Vec::new())), with_one), None);
        assert_eq!(
            why(&known.after(Ok(Vec::new())).after(Ok(Vec::new())), with_one),
            None,
            "the second answer counts"
        );
    }

    #[test]
    fn until_all_members_of_the_store_were_known_once_nothing_is_routed() {
        let host = Surroundings::default();
        let why = |members: &[(&str, &[&str])]| {
            let addresses = |known: &[&str]| known.iter().map(|address| address.parse().unwrap()).collect();
            let members = members.iter().map(|&(endpoint, known)| (endpoint.to_owned(), addresses(known)));
            let store = Addresses::of_store(&StoreAddresses::new(members.collect()));
            let needed = Needed { store, resolvers: Addresses::Known(Vec::new()) };
            why_withheld("203.0.113.0/24".parse().unwrap(), &host, &needed)
        };
        // A member's name was never looked up, so the network may contain that member.
        let unknown: [&[(&str, &[&str])]; 3] = [&[], &[("a", &[])], &[("a", &["198.51.100.1"]), ("b", &[])]];
        for members in unknown {
            let said = why(members).unwrap();
            assert!(said.contains("are not all known yet; look at `endpoints`"), "{said}");
        }
        // The control: all members have known addresses.
        assert_eq!(why(&[("a", &["198.51.100.1"])]), None);
        assert!(
            why(&[("a", &["198.51.100.1"]), ("b", &["203.0.113.9"])])
                .unwrap()
                .contains("it contains the fleet's store")
        );
    }
}
