//! Ways to the exits: the addresses of each, kept when a look-up fails later, the order in which they are tried, and a
//! marked socket for each connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use warren_host::CARRIER_MARK;
use warren_quic::socket::{self, SocketConfig};
use warren_session::client::{Race, Stop};

use warren_config::{ClientProfile, RemoteExit};

/// How long an exit is tried before those behind it are tried as well.
const HEAD_START: Duration = Duration::from_millis(1_500);

/// How long an exit that said that it goes away comes after all others.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// One address of one exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The exit's place in the profile.
    pub exit: usize,
    pub remote: SocketAddr,
}

/// The profile's exits, and which of them is in use.
pub(crate) struct Exits {
    sides: Vec<Side>,
    current: usize,
    avoided: Option<(usize, Instant)>,
}

struct Side {
    exit: RemoteExit,
    addresses: Addresses,
    /// Its last word, if that was final.
    refused: Option<Stop>,
}

impl Exits {
    pub(crate) fn of(profile: &ClientProfile) -> Self {
        let side =
            |exit: &RemoteExit| Side { exit: exit.clone(), addresses: Addresses::default(), refused: None };
        let sides = profile.exits().map(side).collect();
        Self { sides, current: 0, avoided: None }
    }

    /// The place of the exit in use.
    pub(crate) fn current(&self) -> usize {
        self.current
    }

    /// The exit at a place; of the profile's first one if there is none.
    ///
    /// # Panics
    /// Never: a profile has an exit.
    pub(crate) fn exit(&self, place: usize) -> &RemoteExit {
        let side = self.sides.get(place).or(self.sides.first());
        &side.expect("a profile has an exit").exit
    }

    /// Takes over the keys and server names of a profile that has the same exits; they count for connections that are made from now on.
    pub(crate) fn take_keys(&mut self, profile: &ClientProfile) {
        for (side, exit) in self.sides.iter_mut().zip(profile.exits()) {
            side.exit.public_keys.clone_from(&exit.public_keys);
            side.exit.server_name.clone_from(&exit.server_name);
        }
    }

    /// Uses the exit at a place from now on.
    pub(crate) fn use_exit(&mut self, place: usize) {
        self.current = place;
    }

    /// The exit in use goes away: for a while it comes last.
    pub(crate) fn avoid_current(&mut self, now: Instant) {
        self.avoided = Some((self.current, now + AVOIDED_FOR));
    }

    /// The exit in use will not have this client. Uses the next that might; false when there is none.
    pub(crate) fn refused(&mut self, stop: Stop) -> bool {
        if let Some(side) = self.sides.get_mut(self.current) {
            side.refused = Some(stop);
        }
        match self.sides.iter().position(|side| side.refused.is_none()) {
            Some(next) => {
                self.current = next;
                true
            }
            None => false,
        }
    }

    /// What the exits have said for good counts no more; the first of them is in use again.
    pub(crate) fn forgive(&mut self) {
        self.sides.iter_mut().for_each(|side| side.refused = None);
        self.current = 0;
    }

    /// The places of the exits to try, in order: the one in use, then the others as the profile has them.
    pub(crate) fn order(&self, now: Instant) -> Vec<usize> {
        let avoided = self.avoided.filter(|(_, until)| *until > now).map(|(place, _)| place);
        let mut order: Vec<usize> =
            (0..self.sides.len()).filter(|place| self.sides.get(*place).is_some_and(Side::is_open)).collect();
        order.sort_by_key(|place| (Some(*place) == avoided, *place != self.current));
        order
    }

    /// The exits that stand before the one in use.
    pub(crate) fn preferred(&self) -> Vec<usize> {
        (0..self.current).filter(|place| self.sides.get(*place).is_some_and(Side::is_open)).collect()
    }

    /// Takes the answer of a look-up; an answer without addresses leaves the last good ones.
    ///
    /// # Errors
    /// A sentence, when there is no address from before either.
    pub(crate) fn learn(
        &mut self,
        place: usize,
        answer: Result<Vec<SocketAddr>, String>,
    ) -> Result<(), String> {
        let Some(Side { exit, addresses, .. }) = self.sides.get_mut(place) else { return Ok(()) };
        addresses.learn(answer, exit.endpoint.host())
    }

    /// The addresses that are an exit's for sure: those in the profile, and those by which an exit has proven its key. What a name
    /// leads to is the word of whoever controls the name.
    pub(crate) fn known(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.sides.iter().flat_map(|Side { exit, addresses, .. }| {
            let literal = exit.endpoint.host().parse().ok();
            addresses.last_good.map(|address| address.ip()).into_iter().chain(literal)
        })
    }

    /// An address was connected to.
    pub(crate) fn works(&mut self, way: Way) {
        if let Some(side) = self.sides.get_mut(way.exit) {
            side.addresses.last_good = Some(way.remote);
        }
    }

    /// Adds what is known of an exit's addresses to a race; `rank` is its place in the order.
    pub(crate) fn enter(
        &self,
        race: &mut Race<Way>,
        place: usize,
        rank: usize,
        begun: Instant,
        but: Option<Way>,
    ) {
        let Some(side) = self.sides.get(place) else { return };
        let not_before = begun + HEAD_START * u32::try_from(rank).unwrap_or(u32::MAX);
        for remote in side.addresses.in_order() {
            let way = Way { exit: place, remote };
            if Some(way) != but {
                race.add(not_before, way);
            }
        }
    }
}

impl Side {
    fn is_open(&self) -> bool {
        self.refused.is_none()
    }
}

/// An exit's last known addresses.
#[derive(Debug, Default)]
struct Addresses {
    known: Vec<SocketAddr>,
    last_good: Option<SocketAddr>,
}

impl Addresses {
    fn learn(&mut self, answer: Result<Vec<SocketAddr>, String>, host: &str) -> Result<(), String> {
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                self.known = addresses;
                Ok(())
            }
            Ok(_) if self.known.is_empty() => Err(format!("{host} has no address; check the name")),
            Err(error) if self.known.is_empty() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The one that worked last first, then one of each IP version in turn (RFC 8305 section 4).
    fn in_order(&self) -> Vec<SocketAddr> {
        let first = self.last_good.or(self.known.first().copied());
        let of_first =
            |address: &&SocketAddr| first.is_some_and(|first| first.is_ipv4() == address.is_ipv4());
        let (mut same, mut other): (Vec<&SocketAddr>, Vec<&SocketAddr>) =
            self.known.iter().filter(|address| Some(**address) != first).partition(of_first);
        same.reverse();
        other.reverse();
        let mut order: Vec<SocketAddr> = first.into_iter().collect();
        while let Some(next) = other.pop().or_else(|| same.pop()) {
            order.push(*next);
            order.extend(same.pop());
        }
        order
    }
}

/// A carrier socket of the exit address's family, marked before its first packet.
///
/// # Errors
/// As the kernel gives them; EPERM means that the mark needs CAP_NET_ADMIN.
pub(crate) fn bind(remote: SocketAddr) -> std::io::Result<UdpSocket> {
    let any = match remote {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    socket::bind(SocketConfig { mark: Some(CARRIER_MARK), ..SocketConfig::new(any) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn last_good_addresses_survive_a_failing_look_up() {
        let mut addresses = Addresses::default();
        let found = parse(&["192.0.2.1:443"]);
        assert!(addresses.learn(Err("no resolver".to_owned()), "x").is_err());
        assert!(addresses.learn(Ok(Vec::new()), "x").is_err());
        assert!(addresses.learn(Ok(found.clone()), "x").is_ok());
        assert!(addresses.learn(Err("no resolver".to_owned()), "x").is_ok());
        assert!(addresses.learn(Ok(Vec::new()), "x").is_ok());
        assert_eq!(addresses.in_order(), found);
    }

    #[test]
    fn ip_versions_take_turns_and_the_last_good_address_is_first() {
        let six = ["[2001:db8::1]:443", "[2001:db8::2]:443", "[2001:db8::3]:443"];
        let four = ["192.0.2.1:443", "192.0.2.2:443"];
        let mut addresses = Addresses::default();
        addresses.learn(Ok(parse(&[six[0], six[1], six[2], four[0], four[1]])), "x").unwrap();
        assert_eq!(addresses.in_order(), parse(&[six[0], four[0], six[1], four[1], six[2]]));
        addresses.last_good = parse(&[four[1]]).pop();
        assert_eq!(addresses.in_order(), parse(&[four[1], six[0], four[0], six[1], six[2]]));
    }

    #[test]
    fn an_address_that_worked_stays_when_the_name_has_others_by_now() {
        let mut addresses = Addresses { last_good: parse(&["192.0.2.1:443"]).pop(), ..Addresses::default() };
        addresses.learn(Ok(parse(&["192.0.2.9:443"])), "x").unwrap();
        assert_eq!(addresses.in_order(), parse(&["192.0.2.1:443", "192.0.2.9:443"]));
    }

    #[test]
    fn an_address_is_known_for_an_exits_if_the_profile_has_it_or_an_exit_answered_there() {
        let side = |endpoint: &str| {
            let exit = RemoteExit {
                endpoint: endpoint.parse().unwrap(),
                public_keys: Vec::new(),
                server_name: None,
            };
            Side { exit, addresses: Addresses::default(), refused: None }
        };
        let mut exits =
            Exits { sides: vec![side("192.0.2.1:443"), side("b.example:443")], current: 0, avoided: None };
        let known = |exits: &Exits| exits.known().map(|address| address.to_string()).collect::<Vec<_>>();

        // Whoever controls the name gives it the client's inner address at the other exit.
        exits.learn(1, Ok(parse(&["10.66.0.2:443", "192.0.2.2:443"]))).unwrap();
        assert_eq!(known(&exits), ["192.0.2.1"]);

        exits.works(Way { exit: 1, remote: "192.0.2.2:443".parse().unwrap() });
        assert_eq!(known(&exits), ["192.0.2.1", "192.0.2.2"]);
    }

    #[test]
    fn exits_are_tried_in_order_after_the_one_in_use_and_never_after_a_refusal() {
        let endpoint = "192.0.2.1:443".parse().unwrap();
        let exit = RemoteExit { endpoint, public_keys: Vec::new(), server_name: None };
        let side = || Side { exit: exit.clone(), addresses: Addresses::default(), refused: None };
        let mut exits = Exits { sides: vec![side(), side(), side()], current: 1, avoided: None };
        let now = Instant::now();
        assert_eq!(exits.order(now), [1, 0, 2]);
        assert_eq!(exits.preferred(), [0]);
        exits.avoid_current(now);
        assert_eq!(exits.order(now), [0, 2, 1]);
        assert_eq!(exits.order(now + AVOIDED_FOR), [1, 0, 2]);
        assert!(exits.refused(Stop::Requested));
        assert_eq!(exits.order(now), [0, 2]);
        assert!(exits.refused(Stop::Requested));
        assert!(!exits.refused(Stop::Requested));
        assert!(exits.order(now).is_empty());
        exits.forgive();
        assert_eq!(exits.order(now + AVOIDED_FOR), [0, 1, 2]);
    }
}
