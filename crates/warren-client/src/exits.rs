//! The profile's exits, and those of its fleet's roster: their addresses, the order in which they are tried, and a marked socket
//! for each connection. `members.rs` handles the roster.
//!
//! If a look-up fails, the addresses that an earlier one found stay in use. An exit that leaves the roster keeps its list
//! position, so that a late event of a connection is never attributed to another exit.

mod members;
#[cfg(test)]
mod roster_tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use warren_host::CARRIER_MARK;
use warren_quic::key::PublicKey;
use warren_quic::socket::{self, SocketConfig};
use warren_session::client::Race;

use super::fleet::Fleet;
use super::learnt_keys::LearntKeys;
use warren_config::{ClientProfile, RemoteExit};

/// How long an exit is tried before the next one in the profile is tried at the same time.
const HEAD_START: Duration = Duration::from_millis(1_500);

/// If an exit has announced a restart or a drain, it is tried after all others for this long.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// How long an exit that has refused this client for good is not tried, and how often a client that all exits have refused asks again.
/// So the client works again without a command once an operator has enabled it.
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_secs(300);

/// How long a client that has found another exit does not return to an exit that has refused it for good. A return outside a fleet
/// ends the session that works, and the exit may refuse again.
const RETURN_AFTER: Duration = Duration::from_secs(3_600);

/// An exit that a profile's client would use.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownExit {
    /// The exit, including all keys that the client accepts for it.
    pub exit: RemoteExit,
    /// The exit's name in the fleet's roster, if it is in the roster.
    pub member: Option<String>,
    /// Whether the profile lists the exit.
    pub is_pinned: bool,
}

/// The exits of a profile and of the roster that its daemon has kept, in the order of profile and roster.
pub fn known_exits(state_dir: &Path, profile: &ClientProfile) -> Vec<KnownExit> {
    let learnt = LearntKeys::load(state_dir, profile.name.as_str());
    let mut exits = Exits::of(profile);
    exits.follow(profile, &learnt, &Fleet::load(state_dir, profile));
    let pinned = profile.exits().count();
    let known = |(place, entry): (usize, Entry)| KnownExit {
        exit: entry.exit,
        member: entry.member,
        is_pinned: place < pinned,
    };
    (0..).zip(exits.entries).map(known).collect()
}

/// One address of one exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The exit's place in the list: the profile's exits, then those of the roster.
    pub exit: usize,
    pub remote: SocketAddr,
}

/// All exits, and the place of the exit in use.
pub(crate) struct Exits {
    entries: Vec<Entry>,
    current: usize,
    avoided: Vec<(usize, Instant)>,
    /// The exit of the roster that the user has asked for.
    asked_for: Option<String>,
    /// Whether the user has asked for an exit.
    is_asked: bool,
    /// Whether the client chooses among the roster's exits. If not, the profile's order counts, and the roster's exits come last.
    chooses: bool,
}

/// An endpoint of an exit.
struct Entry {
    exit: RemoteExit,
    addresses: Addresses,
    /// When the exit last refused this client for good.
    refused: Option<Instant>,
    /// The exit's name in the roster, which all its endpoints share.
    member: Option<String>,
    /// Whether the profile lists the exit, or the user has asked for it. A client returns to such an exit when it is available
    /// again.
    is_listed: bool,
    /// The exit's rank in the order of attempts. The lowest comes first.
    rank: usize,
    /// Whether the exit has left the roster.
    is_gone: bool,
}

impl Exits {
    pub(crate) fn of(profile: &ClientProfile) -> Self {
        Self::listed(profile.exits().cloned())
    }

    fn listed(exits: impl Iterator<Item = RemoteExit>) -> Self {
        let entries = exits.zip(0..).map(|(exit, place)| Entry::new(exit, place)).collect();
        Self { entries, current: 0, avoided: Vec::new(), asked_for: None, is_asked: false, chooses: false }
    }

    /// Exits without keys, each at one address.
    #[cfg(test)]
    pub(crate) fn at(endpoints: &[&str]) -> Self {
        let exit = |endpoint: &&str| RemoteExit {
            endpoint: endpoint.parse().unwrap(),
            public_keys: Vec::new(),
            server_name: None,
        };
        Self::listed(endpoints.iter().map(exit))
    }

    /// Whether any exit's address is known.
    pub(crate) fn have_addresses(&self) -> bool {
        self.entries.iter().any(|entry| !entry.addresses.known.is_empty())
    }

    /// The place of the exit in use.
    pub(crate) fn current(&self) -> usize {
        self.current
    }

    /// Returns the exit at a place, or the first one if there is no such place.
    ///
    /// # Panics
    /// Never: a profile has an exit.
    pub(crate) fn exit(&self, place: usize) -> &RemoteExit {
        let entry = self.entries.get(place).or(self.entries.first());
        &entry.expect("a profile has an exit").exit
    }

    /// Applies the keys and server names of a profile with the same exits. They apply to connections that are opened from now on.
    pub(crate) fn take_keys(&mut self, profile: &ClientProfile) {
        // A reload with other endpoints is refused, so both lists have the same order.
        for (entry, exit) in self.entries.iter_mut().zip(profile.exits()) {
            entry.exit.public_keys.clone_from(&exit.public_keys);
            entry.exit.server_name.clone_from(&exit.server_name);
        }
    }

    /// Uses the exit at a place from now on.
    pub(crate) fn use_exit(&mut self, place: usize) {
        self.current = place;
    }

    /// Uses the first exit in the order.
    pub(crate) fn use_first(&mut self, now: Instant) {
        if let Some(first) = self.first(now) {
            self.current = first;
        }
    }

    /// Whether an exit may open a connection with a key.
    pub(crate) fn accepts(&self, place: usize, key: PublicKey) -> bool {
        self.entries.get(place).is_some_and(|entry| !entry.is_gone && entry.exit.public_keys.contains(&key))
    }

    /// Whether there still is an exit at a place.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.entries.get(place).is_some_and(|entry| !entry.is_gone)
    }

    /// The roster's name for the exit at a place.
    pub(crate) fn member(&self, place: usize) -> Option<&str> {
        self.entries.get(place)?.member.as_deref()
    }

    /// Whether both places are endpoints of one exit.
    pub(crate) fn is_same_exit(&self, one: usize, other: usize) -> bool {
        one == other || self.member(one).is_some_and(|name| self.member(other) == Some(name))
    }

    /// Number of exits that are tried. One may have several endpoints.
    pub(crate) fn count(&self) -> usize {
        let places: Vec<usize> = (0..self.entries.len()).filter(|place| self.has(*place)).collect();
        self.with_ranks(&places).iter().map(|(_, rank)| rank + 1).max().unwrap_or_default()
    }

    /// Whether an address is known to belong to an exit.
    pub(crate) fn have(&self, address: SocketAddr) -> bool {
        let has = |entry: &Entry| {
            let addresses = &entry.addresses;
            entry.literal() == Some(address)
                || addresses.known.contains(&address)
                || addresses.last_good == Some(address)
        };
        self.entries.iter().any(|entry| !entry.is_gone && has(entry))
    }

    /// The places of some exits, each with the number of other exits before it. All endpoints of one exit have the same
    /// number.
    pub(crate) fn with_ranks(&self, places: &[usize]) -> Vec<(usize, usize)> {
        let mut exits: Vec<usize> = Vec::new();
        let mut ranked = Vec::with_capacity(places.len());
        for &place in places {
            let known = exits.iter().position(|other| self.is_same_exit(*other, place));
            ranked.push((place, known.unwrap_or(exits.len())));
            if known.is_none() {
                exits.push(place);
            }
        }
        ranked
    }

    /// For a while, tries the exit in use only after all others, because it restarts or drains.
    pub(crate) fn avoid_current(&mut self, now: Instant) {
        self.avoid(self.current, now);
    }

    /// For a while, tries an exit only after all others.
    pub(crate) fn avoid(&mut self, place: usize, now: Instant) {
        self.avoided.retain(|(avoided, until)| *avoided != place && *until > now);
        self.avoided.push((place, now + AVOIDED_FOR));
    }

    /// Records that the exit in use refuses this client for good, and switches to the first exit that may accept it. Returns false
    /// if every exit has refused.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        self.refused_by(self.current, now);
        // The search begins with the first exit, because exits before the one in use may accept this client
        // too.
        match self.first(now) {
            Some(next) => {
                self.current = next;
                true
            }
            None => false,
        }
    }

    /// Records that the exit at a place refuses this client for good.
    pub(crate) fn refused_by(&mut self, refusing: usize, now: Instant) {
        for place in 0..self.entries.len() {
            if self.is_same_exit(place, refusing)
                && let Some(entry) = self.entries.get_mut(place)
            {
                entry.refused = Some(now);
            }
        }
    }

    /// Clears the exits' refusals, and uses the first exit again.
    pub(crate) fn forgive(&mut self, now: Instant) {
        self.entries.iter_mut().for_each(|entry| entry.refused = None);
        self.use_first(now);
    }

    /// Returns the place of the first exit in the order that may accept this client.
    fn first(&self, now: Instant) -> Option<usize> {
        let places = (0..).zip(&self.entries).filter(|(_, entry)| entry.may_accept(now));
        places.min_by_key(|(_, entry)| entry.rank).map(|(place, _)| place)
    }

    /// Returns the places of the exits to try, in order: the exit in use, then the others.
    pub(crate) fn order(&self, now: Instant) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.entries.len())
            .filter(|place| self.entries.get(*place).is_some_and(|entry| entry.may_accept(now)))
            .collect();
        let is_avoided = |place| {
            self.avoided.iter().any(|(avoided, until)| *until > now && self.is_same_exit(*avoided, place))
        };
        // The sort is stable, so endpoints of one exit stay in the roster's order.
        order.sort_by_key(|place| {
            (is_avoided(*place), !self.is_same_exit(*place, self.current), self.rank_of(*place))
        });
        order
    }

    /// Returns the places of the exits that are preferred to the one in use, in order: those that the profile lists before it, or
    /// the user has asked for.
    pub(crate) fn preferred(&self, now: Instant) -> Vec<usize> {
        let mut places = self.before(self.current);
        let may_return = |entry: &Entry| !entry.is_gone && !entry.has_refused_within(RETURN_AFTER, now);
        places.retain(|place| self.entries.get(*place).is_some_and(may_return));
        places
    }

    /// Whether no exit is preferred to the one at a place.
    pub(crate) fn is_home(&self, place: usize) -> bool {
        self.before(place).is_empty()
    }

    /// Returns the places that are preferred to this one. Empty if the client chooses its exit, because a move back would then
    /// cost more than it gains.
    fn before(&self, place: usize) -> Vec<usize> {
        let rank = self.rank_of(place);
        let is_before = |other: &usize| {
            self.entries.get(*other).is_some_and(|entry| entry.is_listed && entry.rank < rank)
        };
        let mut places: Vec<usize> =
            (0..self.entries.len()).filter(|other| !self.chooses && is_before(other)).collect();
        places.sort_by_key(|other| self.rank_of(*other));
        places
    }

    fn rank_of(&self, place: usize) -> usize {
        self.entries.get(place).map_or(usize::MAX, |entry| entry.rank)
    }

    /// Stores the addresses that a look-up found. If it found none, the earlier addresses stay.
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

    /// Returns the addresses that certainly belong to an exit: those in the profile, and those at which an exit has proven its
    /// key. Other addresses of a name do not count, because the owner of a name can make it resolve to any address.
    pub(crate) fn known(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let entries = self.entries.iter().filter(|entry| !entry.is_gone);
        entries.flat_map(|entry| {
            let addresses = entry.addresses.last_good.into_iter().chain(entry.literal());
            addresses.map(|address| address.ip())
        })
    }

    /// Records that an exit has proven its key at an address.
    pub(crate) fn works(&mut self, way: Way) {
        if let Some(entry) = self.entries.get_mut(way.exit) {
            entry.addresses.last_good = Some(way.remote);
        }
    }

    /// Adds an exit's known addresses to a race that began at `begun`. An exit with a higher `rank` in the order starts later.
    /// The address `but` is not added.
    pub(crate) fn enter(
        &self,
        race: &mut Race<Way>,
        place: usize,
        rank: usize,
        begun: Instant,
        but: Option<Way>,
    ) {
        let Some(entry) = self.entries.get(place) else { return };
        // Each exit starts one head start after the one before it. `u32::MAX` is never used, because there are never that many
        // exits.
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
    /// An exit of the profile.
    fn new(exit: RemoteExit, rank: usize) -> Self {
        let mut entry = Self {
            exit,
            addresses: Addresses::default(),
            refused: None,
            member: None,
            is_listed: true,
            rank,
            is_gone: false,
        };
        // An address needs no look-up, so the first race can begin at once.
        entry.addresses.known.extend(entry.literal());
        entry
    }

    /// The exit's address, if its endpoint is not a name.
    fn literal(&self) -> Option<SocketAddr> {
        let endpoint = &self.exit.endpoint;
        Some(SocketAddr::new(endpoint.host().parse().ok()?, endpoint.port()))
    }

    fn may_accept(&self, now: Instant) -> bool {
        !self.is_gone && !self.has_refused_within(ASK_AGAIN_AFTER, now)
    }

    fn has_refused_within(&self, time: Duration, now: Instant) -> bool {
        self.refused.is_some_and(|at| now.saturating_duration_since(at) < time)
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
            // The known addresses of an IP version that is missing in the answer stay. An answer that comes through the tunnel lacks
            // the IPv6 address that an IPv6-only network makes of an IPv4 address (NAT64), and only that address works there.
            Ok(addresses) if !addresses.is_empty() => {
                let has = |ipv4| addresses.iter().any(|address| address.is_ipv4() == ipv4);
                let others = self.known.iter().copied().filter(|known| !has(known.is_ipv4()));
                self.known = addresses.iter().copied().chain(others).collect();
                Ok(())
            }
            Ok(_) if self.known.is_empty() => Err(format!("{host} has no address; check the name")),
            Err(error) if self.known.is_empty() => Err(error),
            // If the resolver fails or finds nothing, the known addresses stay in use.
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
        // The list is reversed, because `pop` below takes elements from the end.
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
    fn addresses_of_an_ip_version_that_an_answer_lacks_stay() {
        let mut addresses = Addresses::default();
        addresses.learn(Ok(parse(&["[64:ff9b::c000:201]:443", "192.0.2.1:443"])), "x").unwrap();
        addresses.learn(Ok(parse(&["192.0.2.2:443"])), "x").unwrap();
        assert_eq!(addresses.known, parse(&["192.0.2.2:443", "[64:ff9b::c000:201]:443"]));
        addresses.learn(Ok(parse(&["[2001:db8::1]:443", "192.0.2.3:443"])), "x").unwrap();
        assert_eq!(addresses.known, parse(&["[2001:db8::1]:443", "192.0.2.3:443"]));
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
        assert_eq!((exits.preferred(now), exits.is_home(0), exits.is_home(1)), (vec![0], true, false));
        exits.avoid_current(now);
        assert_eq!(exits.order(now), [0, 2, 1]);
        assert_eq!(exits.order(now + AVOIDED_FOR), [1, 0, 2]);
        assert!(exits.refused(now));
        assert_eq!(exits.order(now), [0, 2]);
        assert!(exits.refused(now));
        assert!(!exits.refused(now));
        assert!(exits.order(now).is_empty());
        exits.forgive(now);
        assert_eq!(exits.order(now + AVOIDED_FOR), [0, 1, 2]);
    }

    #[test]
    fn exit_that_has_refused_is_tried_again_after_a_while() {
        let mut exits = Exits::at(&["192.0.2.1:443", "192.0.2.2:443"]);
        let start = Instant::now();
        assert!(exits.refused(start));
        let just_before = start + ASK_AGAIN_AFTER - Duration::from_millis(1);
        assert_eq!((exits.current(), exits.order(just_before)), (1, vec![1]));

        // The other exit is down, and the exit that refused comes into question again.
        assert_eq!(exits.order(start + ASK_AGAIN_AFTER), [1, 0]);
        // It refuses once more, and is left alone for the same time.
        let again = start + ASK_AGAIN_AFTER;
        exits.use_exit(0);
        assert!(exits.refused(again));
        assert_eq!((exits.current(), exits.order(again)), (1, vec![1]));
        assert_eq!(exits.order(again + ASK_AGAIN_AFTER), [1, 0]);
        // Once both refuse within that time, no exit is left.
        assert!(!exits.refused(again));
    }

    #[test]
    fn client_returns_to_an_exit_that_has_refused_but_rarely() {
        let mut exits = Exits::at(&["192.0.2.1:443", "192.0.2.2:443"]);
        let start = Instant::now();
        assert!(exits.refused(start));
        assert!(exits.preferred(start).is_empty());
        assert!(exits.preferred(start + ASK_AGAIN_AFTER).is_empty(), "the session that works would end");
        assert_eq!(exits.preferred(start + RETURN_AFTER), [0]);
    }
}
