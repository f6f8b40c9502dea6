//! The profile's exits: their addresses, the order in which they are tried, and a marked socket for each connection.
//!
//! If a look-up fails, the addresses that an earlier one found stay in use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use warren_host::CARRIER_MARK;
use warren_quic::socket::{self, SocketConfig};
use warren_session::client::{Race, Stop};

use super::learnt_keys::LearntKeys;
use warren_config::{ClientProfile, RemoteExit};

/// How long an exit is tried before the next one in the profile is tried as well.
const HEAD_START: Duration = Duration::from_millis(1_500);

/// How long an exit is tried last after it has announced a restart or a drain.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// One address of one exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The exit's place in the profile.
    pub exit: usize,
    pub remote: SocketAddr,
}

/// The profile's exits, and the place of the exit in use.
pub(crate) struct Exits {
    entries: Vec<Entry>,
    current: usize,
    avoided: Option<(usize, Instant)>,
}

struct Entry {
    exit: RemoteExit,
    addresses: Addresses,
    /// The exit's refusal, if it refused this client for good.
    refused: Option<Stop>,
}

impl Exits {
    pub(crate) fn of(profile: &ClientProfile) -> Self {
        let entry =
            |exit: &RemoteExit| Entry { exit: exit.clone(), addresses: Addresses::default(), refused: None };
        let entries = profile.exits().map(entry).collect();
        Self { entries, current: 0, avoided: None }
    }

    /// Exits without keys, each at one address.
    #[cfg(test)]
    pub(crate) fn at(endpoints: &[&str]) -> Self {
        let exit = |endpoint: &&str| RemoteExit {
            endpoint: endpoint.parse().unwrap(),
            public_keys: Vec::new(),
            server_name: None,
        };
        let entry = |exit| Entry { exit, addresses: Addresses::default(), refused: None };
        Self { entries: endpoints.iter().map(exit).map(entry).collect(), current: 0, avoided: None }
    }

    /// Whether any exit's address is known.
    pub(crate) fn have_addresses(&self) -> bool {
        self.entries.iter().any(|entry| !entry.addresses.known.is_empty())
    }

    /// The place of the exit in use.
    pub(crate) fn current(&self) -> usize {
        self.current
    }

    /// The exit at a place in the profile, or the first one if there is no such place.
    ///
    /// # Panics
    /// Never: a profile has an exit.
    pub(crate) fn exit(&self, place: usize) -> &RemoteExit {
        let entry = self.entries.get(place).or(self.entries.first());
        &entry.expect("a profile has an exit").exit
    }

    /// Takes over the keys and server names from a profile with the same exits. They apply to connections that are opened from now
    /// on.
    pub(crate) fn take_keys(&mut self, profile: &ClientProfile) {
        // A reload with other endpoints is refused, so both lists have the same order.
        for (entry, exit) in self.entries.iter_mut().zip(profile.exits()) {
            entry.exit.public_keys.clone_from(&exit.public_keys);
            entry.exit.server_name.clone_from(&exit.server_name);
        }
    }

    /// Accepts the exits of a profile by the keys that this client has learnt, too.
    pub(crate) fn accept_learnt(&mut self, profile: &ClientProfile, learnt: &LearntKeys) {
        for (entry, exit) in self.entries.iter_mut().zip(profile.exits()) {
            entry.exit.public_keys = learnt.accepted(exit);
        }
    }

    /// Uses the exit at a place from now on.
    pub(crate) fn use_exit(&mut self, place: usize) {
        self.current = place;
    }

    /// Tries the exit in use last for a while, because it restarts or drains.
    pub(crate) fn avoid_current(&mut self, now: Instant) {
        self.avoided = Some((self.current, now + AVOIDED_FOR));
    }

    /// Notes that the exit in use refuses this client for good, and uses the first exit that may accept it. Returns false if every
    /// exit has refused.
    pub(crate) fn refused(&mut self, stop: Stop) -> bool {
        if let Some(entry) = self.entries.get_mut(self.current) {
            entry.refused = Some(stop);
        }
        // Searched from the profile's first exit, since exits before the one in use may accept this client too.
        match self.entries.iter().position(|entry| entry.refused.is_none()) {
            Some(next) => {
                self.current = next;
                true
            }
            None => false,
        }
    }

    /// Forgets the exits' refusals, and uses the first exit again.
    pub(crate) fn forgive(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.refused = None);
        self.current = 0;
    }

    /// The places of the exits to try, in order: the exit in use, then the others in the profile's order.
    pub(crate) fn order(&self, now: Instant) -> Vec<usize> {
        let avoided = self.avoided.filter(|(_, until)| *until > now).map(|(place, _)| place);
        let mut order: Vec<usize> = (0..self.entries.len())
            .filter(|place| self.entries.get(*place).is_some_and(Entry::may_accept))
            .collect();
        // The sort is stable, so the other exits stay in the profile's order.
        order.sort_by_key(|place| (Some(*place) == avoided, *place != self.current));
        order
    }

    /// The places of the exits that the profile lists before the one in use.
    pub(crate) fn preferred(&self) -> Vec<usize> {
        (0..self.current).filter(|place| self.entries.get(*place).is_some_and(Entry::may_accept)).collect()
    }

    /// Takes over the addresses that a look-up found. If it found none, the earlier addresses stay.
    ///
    /// # Errors
    /// A message for the user, if there are no earlier addresses either.
    pub(crate) fn learn(
        &mut self,
        place: usize,
        answer: Result<Vec<SocketAddr>, String>,
    ) -> Result<(), String> {
        let Some(Entry { exit, addresses, .. }) = self.entries.get_mut(place) else { return Ok(()) };
        addresses.learn(answer, exit.endpoint.host())
    }

    /// The addresses that certainly belong to an exit: those in the profile, and those where an exit has proven its key. Other
    /// addresses of a name do not count, because the name's owner can let it resolve to any address.
    pub(crate) fn known(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.entries.iter().flat_map(|Entry { exit, addresses, .. }| {
            let literal = exit.endpoint.host().parse().ok();
            addresses.last_good.map(|address| address.ip()).into_iter().chain(literal)
        })
    }

    /// Notes that an exit has proven its key at an address.
    pub(crate) fn works(&mut self, way: Way) {
        if let Some(entry) = self.entries.get_mut(way.exit) {
            entry.addresses.last_good = Some(way.remote);
        }
    }

    /// Adds an exit's known addresses to a race that began at `begun`. The higher the exit's `rank` in the order, the later its
    /// start. The way `but` is left out.
    pub(crate) fn enter(
        &self,
        race: &mut Race<Way>,
        place: usize,
        rank: usize,
        begun: Instant,
        but: Option<Way>,
    ) {
        let Some(entry) = self.entries.get(place) else { return };
        // Each exit starts one head start after the one before it. The fallback never applies: no profile has so many exits.
        let not_before = begun + HEAD_START * u32::try_from(rank).unwrap_or(u32::MAX);
        for remote in entry.addresses.in_order() {
            let way = Way { exit: place, remote };
            if Some(way) != but {
                race.add(not_before, way);
            }
        }
    }
}

impl Entry {
    fn may_accept(&self) -> bool {
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
            // A failing resolver says nothing about the addresses that are known already.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The address that worked last, then addresses of both IP versions in turn (RFC 8305 section 4).
    fn in_order(&self) -> Vec<SocketAddr> {
        let first = self.last_good.or(self.known.first().copied());
        let of_first =
            |address: &&SocketAddr| first.is_some_and(|first| first.is_ipv4() == address.is_ipv4());
        let (mut same, mut other): (Vec<&SocketAddr>, Vec<&SocketAddr>) =
            self.known.iter().filter(|address| Some(**address) != first).partition(of_first);
        // Reversed, because `pop` below takes from the end.
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

/// Opens a carrier socket for the IP version of the exit's address. Even its first packet carries the mark.
///
/// # Errors
/// The kernel's error. EPERM means that setting the mark needs CAP_NET_ADMIN.
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
        let mut exits = Exits::at(&["192.0.2.1:443", "b.example:443"]);
        let known = |exits: &Exits| exits.known().map(|address| address.to_string()).collect::<Vec<_>>();

        // The owner of the name b.example lets it resolve to the inner address that the client has at the other exit.
        exits.learn(1, Ok(parse(&["10.66.0.2:443", "192.0.2.2:443"]))).unwrap();
        assert_eq!(known(&exits), ["192.0.2.1"]);

        exits.works(Way { exit: 1, remote: "192.0.2.2:443".parse().unwrap() });
        assert_eq!(known(&exits), ["192.0.2.1", "192.0.2.2"]);
    }

    #[test]
    fn exits_are_tried_in_order_after_the_one_in_use_and_never_after_a_refusal() {
        let mut exits = Exits::at(&["192.0.2.1:443"; 3]);
        exits.use_exit(1);
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
