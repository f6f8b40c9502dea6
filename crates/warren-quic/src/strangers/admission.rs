//! How many handshakes may be under way, in all and of one network: past a threshold addresses must be proven, past the
//! bound none is taken. The bounds are an exit's, whichever of its workers gets an attempt.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Handshakes under way from which on a client must first prove its address (RFC 9000 section 8.1), so that forged
/// addresses cannot take the rest of the room: of an exit, and of one network.
const RETRY_FROM: usize = 100;
const NETWORK_RETRY_FROM: usize = 64;

/// Most handshakes under way at an exit, and of one network.
const MAX_HANDSHAKES: usize = 256;
const NETWORK_MAX_HANDSHAKES: usize = 128;

/// The handshakes under way at an exit; clones share them. Asked once an attempt, never for a packet of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd(Arc<Mutex<UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    all: usize,
    by_network: HashMap<Network, usize>,
    /// How many took too long since the start.
    timed_out: u64,
}

/// Figures of an exit's handshakes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Handshakes {
    /// Those under way.
    pub in_flight: usize,
    /// Those that were given up because they took too long, since the start.
    pub timed_out: u64,
}

/// A handshake's place in the crowd, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    crowd: Crowd,
    network: Network,
}

/// What to do with an attempt.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Take it; the handshake keeps the seat while it is under way.
    Take(Seat),
    /// Ask for a proof of the address.
    Prove,
    /// Say nothing: the client sends its Initial again in a second.
    Wait,
    /// Refuse it, so that the client goes elsewhere.
    Refuse,
}

impl Crowd {
    /// Says what to do with an attempt of a peer, whose address may be proven.
    pub(crate) fn admit(&self, peer: SocketAddr, proven: bool) -> Admission {
        let network = Network::of(peer);
        let mut under_way = self.under_way();
        let neighbours = under_way.by_network.get(&network).copied().unwrap_or_default();
        if !proven && (under_way.all >= RETRY_FROM || neighbours >= NETWORK_RETRY_FROM) {
            Admission::Prove
        } else if under_way.all >= MAX_HANDSHAKES {
            Admission::Refuse
        } else if neighbours >= NETWORK_MAX_HANDSHAKES {
            Admission::Wait
        } else {
            under_way.all += 1;
            under_way.by_network.insert(network, neighbours + 1);
            Admission::Take(Seat { crowd: self.clone(), network })
        }
    }

    pub(super) fn handshakes(&self) -> Handshakes {
        let under_way = self.under_way();
        Handshakes { in_flight: under_way.all, timed_out: under_way.timed_out }
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Gives the seat up because the handshake took too long.
    pub(crate) fn time_out(self) {
        self.crowd.under_way().timed_out += 1;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut under_way = self.crowd.under_way();
        under_way.all -= 1;
        if let Some(neighbours) = under_way.by_network.get_mut(&self.network) {
            *neighbours -= 1;
            if *neighbours == 0 {
                under_way.by_network.remove(&self.network);
            }
        }
    }
}

/// The network of an address, as one owner usually has it: an IPv4 /24, an IPv6 /56.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct Network(IpAddr);

impl Network {
    /// Returns the network that a peer's address is of.
    pub fn of(peer: SocketAddr) -> Self {
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => Self(IpAddr::V4((address.to_bits() & !0xff).into())),
            IpAddr::V6(address) => {
                Self(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !((1 << (128 - 56)) - 1))))
            }
        }
    }

    /// Returns its first address.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 4433)
    }

    /// A crowd that took so many attempts of proven addresses, and their seats.
    fn crowd(of: impl Fn(usize) -> String, number: usize) -> (Crowd, Vec<Seat>) {
        let crowd = Crowd::default();
        let seats = (0..number).map(|index| seat(crowd.admit(peer(&of(index)), true)).unwrap()).collect();
        (crowd, seats)
    }

    fn seat(admission: Admission) -> Option<Seat> {
        match admission {
            Admission::Take(seat) => Some(seat),
            Admission::Prove | Admission::Wait | Admission::Refuse => None,
        }
    }

    #[test]
    fn one_network_must_prove_addresses_and_then_wait_while_others_are_taken() {
        let of = |index: usize| format!("192.0.2.{index}");
        let (own, other) = (peer("192.0.2.250"), peer("198.51.100.1"));
        let (below, _seats) = crowd(of, 63);
        let _last = seat(below.admit(own, false)).unwrap();
        assert!(matches!(below.admit(own, false), Admission::Prove));
        assert!(matches!(below.admit(other, false), Admission::Take(_)));
        let (below, _seats) = crowd(of, 127);
        assert!(matches!(below.admit(other, true), Admission::Take(_)));
        let _last = seat(below.admit(own, true)).unwrap();
        assert!(matches!(below.admit(own, true), Admission::Wait));
    }

    #[test]
    fn forged_addresses_leave_most_of_the_room_to_proven_ones() {
        let of = |index: usize| format!("10.{index}.0.1");
        let someone = peer("192.0.2.1");
        let (below, _seats) = crowd(of, 99);
        let _last = seat(below.admit(someone, false)).unwrap();
        assert!(matches!(below.admit(someone, false), Admission::Prove));
        let (full, _seats) = crowd(|index| format!("2001:db8:{index:x}::1"), 255);
        let _last = seat(full.admit(someone, true)).unwrap();
        assert!(matches!(full.admit(someone, true), Admission::Refuse));
    }

    #[test]
    fn clones_share_the_room_and_whoever_leaves_makes_some() {
        let (crowd, mut seats) = crowd(|index| format!("10.{index}.0.1"), 256);
        let other_worker = crowd.clone();
        assert!(matches!(other_worker.admit(peer("192.0.2.1"), true), Admission::Refuse));
        seats.pop();
        let _last = seat(other_worker.admit(peer("192.0.2.1"), true)).unwrap();
        assert!(matches!(crowd.admit(peer("192.0.2.1"), true), Admission::Refuse));
        drop((seats, _last));
        assert!(crowd.under_way().by_network.is_empty() && crowd.under_way().all == 0);
    }

    #[test]
    fn handshakes_are_counted_while_they_are_under_way_and_those_that_took_too_long_for_good() {
        let (crowd, mut seats) = crowd(|index| format!("10.{index}.0.1"), 3);
        assert_eq!(crowd.handshakes(), Handshakes { in_flight: 3, timed_out: 0 });
        seats.pop().unwrap().time_out();
        assert_eq!(crowd.handshakes(), Handshakes { in_flight: 2, timed_out: 1 });
        drop(seats);
        assert_eq!(crowd.handshakes(), Handshakes { in_flight: 0, timed_out: 1 });
    }

    #[test]
    fn addresses_of_one_owner_are_one_network() {
        let network = |address| Network::of(peer(address));
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.200"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:ff::1"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:100::1"));
    }
}
