//! How many handshakes may be under way, in all and of one network: past a threshold addresses must be proven, past the
//! bound none is taken.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Handshakes under way from which on a client must first prove its address (RFC 9000 section 8.1), so that forged
/// addresses cannot take the rest of the room: of an exit, and of one network.
const RETRY_FROM: usize = 128;
const NETWORK_RETRY_FROM: usize = 64;

/// Most handshakes under way at an endpoint, and of one network.
const MAX_HANDSHAKES: usize = 256;
const NETWORK_MAX_HANDSHAKES: usize = 128;

/// The handshakes under way at an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Vec<Network>);

/// What to do with an attempt.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Admission {
    /// Take it.
    Take,
    /// Ask for a proof of the address.
    Prove,
    /// Say nothing: the client sends its Initial again in a second.
    Wait,
    /// Refuse it, so that the client goes elsewhere.
    Refuse,
}

impl Crowd {
    /// Gathers the handshakes of these peers.
    pub(crate) fn of(peers: impl Iterator<Item = SocketAddr>) -> Self {
        Self(peers.map(Network::of).collect())
    }

    /// Notes that one more is under way.
    pub(crate) fn join(&mut self, peer: SocketAddr) {
        self.0.push(Network::of(peer));
    }

    /// Says what to do with an attempt of a peer, whose address may be proven.
    pub(crate) fn admission(&self, peer: SocketAddr, proven: bool) -> Admission {
        let network = Network::of(peer);
        let neighbours = self.0.iter().filter(|other| **other == network).count();
        if !proven && (self.0.len() >= RETRY_FROM || neighbours >= NETWORK_RETRY_FROM) {
            Admission::Prove
        } else if self.0.len() >= MAX_HANDSHAKES {
            Admission::Refuse
        } else if neighbours >= NETWORK_MAX_HANDSHAKES {
            Admission::Wait
        } else {
            Admission::Take
        }
    }
}

/// The network of an address, as one owner usually has it: an IPv4 /24, an IPv6 /56.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
struct Network(IpAddr);

impl Network {
    fn of(peer: SocketAddr) -> Self {
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => Self(IpAddr::V4((address.to_bits() & !0xff).into())),
            IpAddr::V6(address) => {
                Self(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !((1 << (128 - 56)) - 1))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 4433)
    }

    fn crowd(of: impl Fn(usize) -> String, number: usize) -> Crowd {
        Crowd::of((0..number).map(|index| peer(&of(index))))
    }

    #[test]
    fn one_network_must_prove_addresses_and_then_wait_while_others_are_taken() {
        let of = |index: usize| format!("192.0.2.{index}");
        let (own, other) = (peer("192.0.2.250"), peer("198.51.100.1"));
        assert_eq!(crowd(of, 63).admission(own, false), Admission::Take);
        assert_eq!(crowd(of, 64).admission(own, false), Admission::Prove);
        assert_eq!(crowd(of, 127).admission(own, true), Admission::Take);
        assert_eq!(crowd(of, 128).admission(own, true), Admission::Wait);
        assert_eq!(crowd(of, 127).admission(other, false), Admission::Take);
    }

    #[test]
    fn forged_addresses_leave_half_of_the_room_to_proven_ones() {
        let of = |index: usize| format!("10.{index}.0.1");
        let someone = peer("192.0.2.1");
        assert_eq!(crowd(of, 127).admission(someone, false), Admission::Take);
        assert_eq!(crowd(of, 128).admission(someone, false), Admission::Prove);
        assert_eq!(crowd(of, 255).admission(someone, true), Admission::Take);
        assert_eq!(
            crowd(|index| format!("2001:db8:{index:x}::1"), 256).admission(someone, true),
            Admission::Refuse
        );
    }

    #[test]
    fn addresses_of_one_owner_are_one_network() {
        let network = |address| Network::of(peer(address));
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.200"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:ff::1"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:100::1"));
    }

    #[test]
    fn who_joins_counts() {
        let mut crowd = Crowd::default();
        (0..64).for_each(|_| crowd.join(peer("192.0.2.1")));
        assert_eq!(crowd.admission(peer("192.0.2.2"), false), Admission::Prove);
    }
}
