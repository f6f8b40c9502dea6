//! A parsed and checked `Welcome`: the session that the exit granted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

use super::{AddressOwner, ClientConfig};
use crate::exit::KEEP_ALIVE;
use crate::message::{self, Network, ip_from_wire, is_unicast};
use crate::{AttachToken, MAX_DNS_SERVERS, MAX_EXIT_KEYS, MAX_ROUTES, MIN_MTU, PublicKey};

/// A session that the exit granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionGrant {
    /// The session's number at the exit.
    pub session: u64,
    /// The token that a connection presents to join the session.
    pub attach_token: AttachToken,
    /// This client's inner IPv4 address with the prefix length of the exit's network.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// This client's inner IPv6 address with the prefix length of the exit's network.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// The exit's inner IPv4 address, in the same network; set if `ipv4` is.
    pub gateway_ipv4: Option<Ipv4Addr>,
    /// The exit's inner IPv6 address, in the same network; set if `ipv6` is.
    pub gateway_ipv6: Option<Ipv6Addr>,
    /// Inner MTU in bytes, at least [`MIN_MTU`].
    pub mtu: u16,
    /// DNS servers to use.
    pub dns: Vec<IpAddr>,
    /// Networks that the exit carries traffic to.
    pub routes: Vec<IpNet>,
    /// Number of connections that the session may have, from 1 to the number asked for.
    pub connections: u32,
    /// Interval of keep-alives.
    pub keep_alive: Duration,
    /// Bit set of the features that both sides have.
    pub features: u64,
    /// Networks behind this client that the exit routes to it. The client asked for each of them.
    pub prefixes: Vec<IpNet>,
    /// The keys that the exit serves, the newest first. Empty if it does not say.
    pub exit_keys: Vec<PublicKey>,
}

/// Why a `Welcome` is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WelcomeError {
    /// The `Welcome` contains no address at all.
    #[error("it has no inner address")]
    NoAddress,
    /// An address cannot be a client's.
    #[error("it has {address} as this client's inner address")]
    Address {
        /// The address with its prefix length, or a description if it is not an address.
        address: String,
    },
    /// The exit's own address is not in the client's network.
    #[error("the exit's inner address is not in the network of {address}")]
    Gateway {
        /// The client's address.
        address: IpNet,
    },
    /// An inner address is already in use on the client's side.
    #[error("it has {address} as {role}, which is {owner}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// The address's role in the grant.
        role: &'static str,
        /// The owner of the address.
        owner: AddressOwner,
    },
    /// A number or list is out of its bounds.
    #[error("its {what} is out of range")]
    OutOfRange {
        /// The field.
        what: &'static str,
    },
}

impl SessionGrant {
    pub(super) fn parse(message: &message::Welcome, config: &ClientConfig) -> Result<Self, WelcomeError> {
        let out_of_range = |what| WelcomeError::OutOfRange { what };
        let ipv4 = message.ipv4.as_ref().map(parse_ipv4).transpose()?;
        let ipv6 = message.ipv6.as_ref().map(parse_ipv6).transpose()?;
        if ipv4.is_none() && ipv6.is_none() {
            return Err(WelcomeError::NoAddress);
        }
        let gateway_ipv4 = ipv4.map(|own| gateway(own.into(), &message.gateway_ipv4)).transpose()?;
        let gateway_ipv6 = ipv6.map(|own| gateway(own.into(), &message.gateway_ipv6)).transpose()?;
        let keep_alive = Duration::from_millis(message.keep_alive_milliseconds.into());
        let lists = Lists::parse(&message.dns, &message.routes, &message.exit_keys)?;
        // An exit must not make this host forward for a network that it did not offer.
        let is_granted = |prefix: &IpNet| config.prefixes.contains(prefix);
        let prefixes =
            parse_all(&message.prefixes, config.prefixes.len(), |prefix| prefix.network().filter(is_granted));
        Ok(Self {
            session: message.session,
            attach_token: AttachToken::from_wire(&message.attach_token)
                .ok_or(out_of_range("attach token"))?,
            ipv4: ipv4.map(|own| (own.addr(), own.prefix_len())),
            ipv6: ipv6.map(|own| (own.addr(), own.prefix_len())),
            // `gateway` returns an address of the network's own family, so the other family cannot occur.
            gateway_ipv4: gateway_ipv4
                .and_then(|address| if let IpAddr::V4(v4) = address { Some(v4) } else { None }),
            gateway_ipv6: gateway_ipv6
                .and_then(|address| if let IpAddr::V6(v6) = address { Some(v6) } else { None }),
            mtu: u16::try_from(message.mtu).ok().filter(|mtu| *mtu >= MIN_MTU).ok_or(out_of_range("MTU"))?,
            dns: lists.dns,
            routes: lists.routes,
            exit_keys: lists.exit_keys,
            connections: Some(message.connections)
                .filter(|connections| (1..=config.connections).contains(connections))
                .ok_or(out_of_range("number of connections"))?,
            keep_alive: Some(keep_alive)
                .filter(|interval| KEEP_ALIVE.contains(interval))
                .ok_or(out_of_range("keep-alive interval"))?,
            features: message.features & config.features,
            prefixes: prefixes.ok_or(out_of_range("list of prefixes"))?,
        })
    }

    /// Returns this grant with the lists of an `Update`. The lists are checked like those of a `Welcome`.
    pub(super) fn updated(&self, message: &message::Update) -> Result<Self, WelcomeError> {
        let Lists { dns, routes, exit_keys } =
            Lists::parse(&message.dns, &message.routes, &message.exit_keys)?;
        Ok(Self { dns, routes, exit_keys, ..self.clone() })
    }
}

/// The lists that an exit may change during a session.
struct Lists {
    dns: Vec<IpAddr>,
    routes: Vec<IpNet>,
    exit_keys: Vec<PublicKey>,
}

impl Lists {
    fn parse(dns: &[Vec<u8>], routes: &[Network], exit_keys: &[Vec<u8>]) -> Result<Self, WelcomeError> {
        let out_of_range = |what| WelcomeError::OutOfRange { what };
        // A resolver that the exit offers cannot have a loopback or multicast address.
        let dns = parse_all(dns, MAX_DNS_SERVERS, |bytes| ip_from_wire(bytes).filter(is_unicast));
        let exit_keys = parse_all(exit_keys, MAX_EXIT_KEYS, |bytes| PublicKey::from_wire(bytes));
        Ok(Self {
            dns: dns.ok_or(out_of_range("list of DNS servers"))?,
            routes: parse_all(routes, MAX_ROUTES, Network::network).ok_or(out_of_range("list of routes"))?,
            exit_keys: exit_keys
                .filter(|keys| !matches!(keys.as_slice(), [first, second] if first == second))
                .ok_or(out_of_range("list of the exit's keys"))?,
        })
    }
}

fn parse_ipv4(network: &Network) -> Result<Ipv4Net, WelcomeError> {
    let Some(IpNet::V4(own)) = network.interface() else { return Err(bad_address(network)) };
    // Network and broadcast addresses identify no host (RFC 1122 section 3.2.1.3), nor do those in 0.0.0.0/8 (RFC 6890).
    let reserved =
        own.addr() == own.network() || own.addr() == own.broadcast() || own.addr().octets()[0] == 0;
    if reserved || !is_unicast(&own.addr().into()) { Err(bad_address(network)) } else { Ok(own) }
}

fn parse_ipv6(network: &Network) -> Result<Ipv6Net, WelcomeError> {
    let Some(IpNet::V6(own)) = network.interface() else { return Err(bad_address(network)) };
    if own.addr() == own.network() || !is_unicast(&own.addr().into()) {
        Err(bad_address(network))
    } else {
        Ok(own)
    }
}

/// The exit's address: another host of the client's network.
fn gateway(own: IpNet, bytes: &[u8]) -> Result<IpAddr, WelcomeError> {
    let fits =
        |gateway: &IpAddr| own.contains(gateway) && *gateway != own.addr() && *gateway != own.network();
    ip_from_wire(bytes).filter(fits).ok_or(WelcomeError::Gateway { address: own })
}

/// Parses every item. Returns `None` if one fails or there are more than `most`.
fn parse_all<Wire, Parsed>(
    items: &[Wire],
    most: usize,
    parse: impl Fn(&Wire) -> Option<Parsed>,
) -> Option<Vec<Parsed>> {
    if items.len() > most { None } else { items.iter().map(parse).collect() }
}

fn bad_address(network: &Network) -> WelcomeError {
    let address = network.interface().map_or_else(|| "something else".to_owned(), |own| own.to_string());
    WelcomeError::Address { address }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_is_parsed_into_what_the_host_needs() {
        let parsed = SessionGrant::parse(&sound(), &config()).unwrap();
        assert_eq!(parsed.ipv4, Some(("10.66.0.2".parse().unwrap(), 24)));
        assert_eq!(parsed.ipv6, Some(("fd66::2".parse().unwrap(), 64)));
        assert_eq!(parsed.gateway_ipv6, Some("fd66::1".parse().unwrap()));
        assert_eq!((parsed.mtu, parsed.connections, parsed.features), (1_380, 2, 0b01));
        assert_eq!(parsed.keep_alive, Duration::from_secs(15));
        assert_eq!(parsed.dns, ["9.9.9.9".parse::<IpAddr>().unwrap()]);
        assert_eq!(parsed.exit_keys, [1, 2].map(crate::key::tests_key));
        assert_eq!(parsed.routes, ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
    }

    #[test]
    fn one_family_is_enough_and_none_is_not() {
        let one = message::Welcome { ipv4: None, ..sound() };
        assert_eq!(SessionGrant::parse(&one, &config()).unwrap().gateway_ipv4, None);
        let none = message::Welcome { ipv6: None, ..one };
        assert_eq!(SessionGrant::parse(&none, &config()), Err(WelcomeError::NoAddress));
    }

    #[test]
    fn addresses_that_no_client_can_have_are_refused() {
        let ipv4 = [
            "0.0.0.1/8",
            "127.0.0.2/8",
            "224.0.0.5/24",
            "10.66.0.0/24",
            "10.66.0.255/24",
            "169.254.0.2/16",
            "fd66::2/64",
        ];
        for address in ipv4 {
            let wrong = message::Welcome { ipv4: Some(network(address)), ..sound() };
            assert!(
                matches!(SessionGrant::parse(&wrong, &config()), Err(WelcomeError::Address { .. })),
                "{address}"
            );
        }
        for address in
            ["::1/64", "ff02::5/64", "fe80::2/64", "fd66::/64", "::ffff:10.0.0.2/96", "10.66.0.2/24"]
        {
            let wrong = message::Welcome { ipv6: Some(network(address)), ..sound() };
            assert!(
                matches!(SessionGrant::parse(&wrong, &config()), Err(WelcomeError::Address { .. })),
                "{address}"
            );
        }
    }

    #[test]
    fn the_exit_must_have_another_address_of_the_same_network() {
        for gateway in [vec![], vec![10, 67, 0, 1], vec![10, 66, 0, 2], vec![10, 66, 0, 0], vec![0; 16]] {
            let wrong = message::Welcome { gateway_ipv4: gateway.clone(), ..sound() };
            assert!(
                matches!(SessionGrant::parse(&wrong, &config()), Err(WelcomeError::Gateway { .. })),
                "{gateway:?}"
            );
        }
    }

    #[test]
    fn numbers_and_lists_out_of_range_are_refused() {
        let default_route = network("0.0.0.0/0");
        let wrong = [
            message::Welcome { mtu: 1_279, ..sound() },
            message::Welcome { mtu: 65_536, ..sound() },
            message::Welcome { connections: 0, ..sound() },
            message::Welcome { connections: 5, ..sound() },
            message::Welcome { attach_token: vec![0; 15], ..sound() },
            message::Welcome { keep_alive_milliseconds: 0, ..sound() },
            message::Welcome { keep_alive_milliseconds: 600_001, ..sound() },
            message::Welcome { dns: vec![vec![9; 5]], ..sound() },
            message::Welcome { dns: vec![vec![127, 0, 0, 1]], ..sound() },
            message::Welcome { dns: vec![vec![9; 4]; 17], ..sound() },
            message::Welcome { routes: vec![network("10.0.0.1/8")], ..sound() },
            message::Welcome { routes: vec![default_route.clone(); 1_025], ..sound() },
            message::Welcome { prefixes: vec![default_route], ..sound() },
            message::Welcome { exit_keys: vec![vec![0; 31]], ..sound() },
            // The first is not a point on the curve. The second is a point of small order.
            message::Welcome { exit_keys: vec![vec![2; 32]], ..sound() },
            message::Welcome { exit_keys: vec![vec![0; 32]], ..sound() },
            message::Welcome { exit_keys: vec![wire_key(1), wire_key(1)], ..sound() },
            message::Welcome { exit_keys: vec![wire_key(1), wire_key(2), wire_key(3)], ..sound() },
        ];
        for message in wrong {
            let parsed = SessionGrant::parse(&message, &config());
            assert!(matches!(parsed, Err(WelcomeError::OutOfRange { .. })), "{message:?}");
        }
    }

    fn config() -> ClientConfig {
        ClientConfig { connections: 4, features: 0b01, ..ClientConfig::default() }
    }

    fn sound() -> message::Welcome {
        message::Welcome {
            session: 1,
            attach_token: vec![1; 16],
            ipv4: Some(network("10.66.0.2/24")),
            ipv6: Some(network("fd66::2/64")),
            gateway_ipv4: vec![10, 66, 0, 1],
            gateway_ipv6: "fd66::1".parse::<Ipv6Addr>().unwrap().octets().to_vec(),
            mtu: 1_380,
            dns: vec![vec![9; 4]],
            routes: vec![network("0.0.0.0/0"), network("::/0")],
            connections: 2,
            keep_alive_milliseconds: 15_000,
            features: 0b11,
            prefixes: vec![],
            exit_keys: vec![wire_key(1), wire_key(2)],
        }
    }

    fn wire_key(seed: u8) -> Vec<u8> {
        crate::key::tests_key(seed).0.to_vec()
    }

    fn network(text: &str) -> Network {
        text.parse::<IpNet>().unwrap().into()
    }
}
