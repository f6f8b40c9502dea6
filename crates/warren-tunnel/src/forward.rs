//! Decides which session a packet belongs to and whether it may pass, by plain rules over addresses.

mod prefixes;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use warren_packet::flow_step::FlowStep;
use warren_packet::ip::IpPacket;
use warren_packet::reason::DropReason;
use warren_packet::tuple::FiveTuple;
use warren_quic::driver::ConnectionId;
use warren_session::exit::SessionId;

use self::prefixes::Prefixes;
use super::client_limit::ClientLimit;
use super::moving::Moving;

/// The rules of one role.
#[derive(Debug, Clone)]
pub enum Forwarding {
    /// One session. Every packet from the TUN goes to this session, and only packets for its addresses are accepted from it.
    Client,
    /// Many sessions, distinguished by inner address.
    Exit {
        /// Networks from which addresses are leased. A destination in them belongs to another client.
        pools: Vec<IpNet>,
        /// The exit's own inner addresses, which clients reach despite isolation.
        gateways: Vec<IpAddr>,
        /// Whether clients are kept from reaching each other.
        isolation: bool,
    },
}

/// A session's inner addresses and the number of its connections.
#[derive(Debug, Clone)]
pub struct SessionRoute {
    /// The client's inner IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// The client's inner IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Networks behind the client, granted by the exit.
    pub prefixes: Vec<IpNet>,
    /// The number of connections over which flows are spread (N).
    pub connections: u32,
    /// At an exit: the limits on the client's sending and receiving.
    pub limit: Option<Arc<ClientLimit>>,
    /// Whether both sides repair: numbered datagrams are put in order, and lost ones are sent again.
    pub repair: bool,
}

impl SessionRoute {
    /// Whether the session may send from this address and receive at it.
    pub fn owns(&self, address: IpAddr) -> bool {
        let leased = match address {
            IpAddr::V4(address) => self.ipv4 == Some(address),
            IpAddr::V6(address) => self.ipv6 == Some(address),
        };
        leased || self.prefixes.iter().any(|prefix| prefix.contains(&address))
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }
}

/// The sessions that a worker can reach, by inner address.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_id: HashMap<SessionId, Session>,
    by_address: HashMap<IpAddr, SessionId>,
    by_prefix: Prefixes,
    /// The move of a client to another exit. During the move, the client has two sessions.
    moving: Option<Arc<Moving>>,
}

#[derive(Debug)]
struct Session {
    route: SessionRoute,
    /// For each index, the place of the connection; `None` while the connection is lost.
    slots: Vec<Option<Place>>,
    /// Every connection that was attached and not detached since, even if a newer connection has its index.
    attached: Vec<Place>,
    /// Connections without answers. Their flows use other connections while there are any.
    silent: Vec<Place>,
}

/// The worker and slot of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this worker: the pump with this number.
    Here(usize),
    /// On this worker: the WireGuard peer with this number.
    Peer(usize),
    /// On another worker.
    There(ConnectionId),
}

impl Sessions {
    /// Adds a session, or replaces one of the same id and keeps its connections.
    pub(crate) fn open(&mut self, id: SessionId, route: SessionRoute) {
        let old = self.by_id.remove(&id);
        if let Some(old) = &old {
            self.forget_addresses(id, &old.route);
        }
        for address in route.addresses() {
            // A newer session takes the address over from one that has not ended yet.
            self.by_address.insert(address, id);
        }
        for prefix in &route.prefixes {
            self.by_prefix.insert(*prefix, id);
        }
        let (mut slots, attached, silent) =
            old.map(|old| (old.slots, old.attached, old.silent)).unwrap_or_default();
        slots.resize(route.connections as usize, None);
        self.by_id.insert(id, Session { route, slots, attached, silent });
    }

    /// Returns the session if there is exactly one. During a client's move, returns the new session, or the old one until the new
    /// one is known.
    pub(crate) fn only(&self) -> Option<SessionId> {
        let newest = || self.moving.as_ref().map(|moving| moving.newest());
        self.by_id.keys().next().copied().filter(|_| self.by_id.len() == 1).or_else(newest)
    }

    /// Sets the move whose rules choose between a client's two sessions, or ends it.
    pub(crate) fn set_move(&mut self, moving: Option<Arc<Moving>>) {
        self.moving = moving;
    }

    /// The client's move that is under way.
    pub(crate) fn moving(&self) -> Option<&Moving> {
        self.moving.as_deref()
    }

    /// As [`Self::place_for`], for a client that moves to another exit.
    ///
    /// # Errors
    /// The reason under which to count the packet if there is no connection.
    pub(crate) fn place_during(
        &self,
        moving: &Moving,
        flow: &FiveTuple,
        packet: &IpPacket<'_>,
        now: Instant,
    ) -> Result<Place, DropReason> {
        let choice = moving.choose(flow, FlowStep::of(packet), now);
        let place = |id: SessionId| self.by_id.get(&id)?.place_for(flow);
        // A session whose exit has just gone must not swallow packets that the other session can carry.
        place(choice.right).or_else(|| place(choice.other?)).ok_or(DropReason::NoConnection)
    }

    /// Whether both sides of a session repair.
    pub(crate) fn repairs(&self, id: SessionId) -> bool {
        self.by_id.get(&id).is_some_and(|session| session.route.repair)
    }

    /// Removes a session. Returns its connections, which stay open without a session.
    pub(crate) fn end(&mut self, id: SessionId) -> Vec<Place> {
        let Some(session) = self.by_id.remove(&id) else { return Vec::new() };
        self.forget_addresses(id, &session.route);
        session.attached
    }

    /// Gives a session's connection `index` a place. Returns false when there is no such session or index.
    pub(crate) fn attach(&mut self, id: SessionId, index: u32, place: Place) -> bool {
        let Some(session) = self.by_id.get_mut(&id) else { return false };
        let Some(slot) = session.slots.get_mut(index as usize) else { return false };
        *slot = Some(place);
        if !session.attached.contains(&place) {
            session.attached.push(place);
        }
        true
    }

    /// Removes a place from the session, whichever connection index has it.
    pub(crate) fn detach(&mut self, id: SessionId, place: Place) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        // Only this place is removed, because a newer connection may have the index already.
        for slot in session.slots.iter_mut().filter(|slot| **slot == Some(place)) {
            *slot = None;
        }
        session.attached.retain(|attached| *attached != place);
        session.silent.retain(|silent| *silent != place);
    }

    /// Records whether a session's connection is unanswered.
    pub(crate) fn set_silent(&mut self, id: SessionId, place: Place, silent: bool) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        session.silent.retain(|other| *other != place);
        if silent {
            session.silent.push(place);
        }
    }

    /// Checks a packet that arrived on one of a session's connections. Returns the limit that it counts against.
    ///
    /// # Errors
    /// The reason under which to count the packet if it must not reach the TUN.
    pub(crate) fn check_from_carrier(
        &self,
        forwarding: &Forwarding,
        session: SessionId,
        source: IpAddr,
        destination: IpAddr,
    ) -> Result<Option<&ClientLimit>, DropReason> {
        let Some(session) = self.by_id.get(&session) else { return Err(DropReason::NotAttached) };
        match forwarding {
            // The source may be anybody on the internet, so a client checks the destination alone.
            Forwarding::Client if session.route.owns(destination) => Ok(None),
            Forwarding::Client => Err(DropReason::WrongDestination),
            Forwarding::Exit { .. } if !session.route.owns(source) => Err(DropReason::SpoofedSource),
            Forwarding::Exit { pools, gateways, isolation } => {
                // A closure, because only isolation needs the search through the networks.
                let to_client = || {
                    pools.iter().any(|pool| pool.contains(&destination))
                        || self.by_prefix.owner_of(destination).is_some()
                };
                if *isolation && !gateways.contains(&destination) && to_client() {
                    return Err(DropReason::Isolated);
                }
                Ok(session.route.limit.as_deref())
            }
        }
    }

    /// Returns the place of the connection for a packet from the TUN, and the limit that the packet counts against.
    /// Each flow has its own connection. While that connection is lost or silent, the whole flow uses one other
    /// connection of the session.
    ///
    /// # Errors
    /// The reason under which to count the packet if there is no connection.
    pub(crate) fn place_for(
        &self,
        forwarding: &Forwarding,
        flow: &FiveTuple,
    ) -> Result<(Place, Option<&ClientLimit>), DropReason> {
        let session = match forwarding {
            // A client has one session at most.
            Forwarding::Client => self.by_id.values().next().ok_or(DropReason::NoConnection)?,
            Forwarding::Exit { .. } => self
                .session_of(flow.destination)
                .and_then(|id| self.by_id.get(&id))
                .ok_or(DropReason::NoRoute)?,
        };
        let place = session.place_for(flow).ok_or(DropReason::NoConnection)?;
        Ok((place, session.route.limit.as_deref()))
    }

    /// Counts drops of packets that a session's client sent.
    pub(crate) fn count_drops_of(&self, session: SessionId, reason: DropReason, packets: u64) {
        if let Some(limit) = self.limit_of(session) {
            limit.count_drops(reason, packets);
        }
    }

    /// Counts drops of packets from the TUN at the client that holds their destination.
    pub(crate) fn count_drops_to(&self, destination: IpAddr, reason: DropReason, packets: u64) {
        if let Some(session) = self.session_of(destination) {
            self.count_drops_of(session, reason, packets);
        }
    }

    /// The limit of a session's client.
    pub(crate) fn limit_of(&self, session: SessionId) -> Option<&Arc<ClientLimit>> {
        self.by_id.get(&session)?.route.limit.as_ref()
    }

    fn session_of(&self, address: IpAddr) -> Option<SessionId> {
        self.by_address.get(&address).copied().or_else(|| self.by_prefix.owner_of(address))
    }

    /// Forgets the addresses and networks of a session's route, except those that another session has by now.
    fn forget_addresses(&mut self, id: SessionId, route: &SessionRoute) {
        for address in route.addresses() {
            if self.by_address.get(&address) == Some(&id) {
                self.by_address.remove(&address);
            }
        }
        for prefix in &route.prefixes {
            self.by_prefix.remove(*prefix, id);
        }
    }
}

impl Session {
    fn place_for(&self, flow: &FiveTuple) -> Option<Place> {
        let count = u32::try_from(self.slots.len()).ok()?;
        let own = self.slots.get(flow.connection_index(count) as usize).copied().flatten();
        if let Some(place) = own.filter(|place| !self.silent.contains(place)) {
            return Some(place);
        }
        // The hash's high bits chose the lost connection, so its low bits spread that connection's flows over the others.
        let spread = |places: &mut dyn Iterator<Item = Place>, count: usize| {
            let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
            places.nth((flow.symmetric_hash() % count) as usize)
        };
        let answered = || self.slots.iter().flatten().copied().filter(|place| !self.silent.contains(place));
        let live = || self.slots.iter().flatten().copied();
        // If all are silent, the flow stays on its own connection, which may still deliver.
        spread(&mut answered(), answered().count()).or(own).or_else(|| spread(&mut live(), live().count()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(destination: &str, port: u16) -> FiveTuple {
        FiveTuple {
            source: address("203.0.113.7"),
            destination: address(destination),
            protocol: 6,
            source_port: 443,
            destination_port: port,
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn route(ipv4: &str, connections: u32) -> SessionRoute {
        SessionRoute {
            ipv4: Some(ipv4.parse().unwrap()),
            ipv6: None,
            prefixes: Vec::new(),
            connections,
            limit: None,
            repair: false,
        }
    }

    fn exit_rules(isolation: bool) -> Forwarding {
        Forwarding::Exit {
            pools: vec!["10.66.0.0/16".parse().unwrap()],
            gateways: vec![address("10.66.0.1")],
            isolation,
        }
    }

    fn sessions() -> Sessions {
        let mut sessions = Sessions::default();
        sessions.open(SessionId(1), route("10.66.0.2", 4));
        sessions.open(SessionId(2), route("10.66.0.3", 4));
        sessions
    }

    #[test]
    fn a_session_is_the_only_one_until_there_is_another() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.only(), None);
        sessions.open(SessionId(7), route("10.66.0.2", 4));
        assert_eq!(sessions.only(), Some(SessionId(7)));
        sessions.open(SessionId(8), route("10.66.0.3", 4));
        assert_eq!(sessions.only(), None);
    }

    #[test]
    fn a_moving_client_uses_the_other_session_while_the_right_one_has_no_connection() {
        let (old, new) = (SessionId(1), SessionId(2));
        let mut sessions = Sessions::default();
        let now = Instant::now();
        let moving = Arc::new(Moving::begin(old, now));
        sessions.set_move(Some(moving.clone()));
        for id in [old, new] {
            // The client has the same address at both exits.
            sessions.open(id, route("10.66.0.2", 1));
        }
        assert_eq!(sessions.only(), Some(old), "there is no grant yet");
        moving.prove(new, None);
        assert_eq!(sessions.only(), Some(new));
        let ping = [
            &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 66, 0, 2, 203, 0, 113, 7][..],
            &[8, 0, 0, 0, 0, 9, 0, 0],
        ]
        .concat();
        let ping = IpPacket::parse(&ping).unwrap();
        let place = |sessions: &Sessions| sessions.place_during(&moving, &FiveTuple::of(&ping), &ping, now);
        sessions.attach(new, 0, Place::Here(2));
        assert_eq!(place(&sessions), Ok(Place::Here(2)), "the old session has no connection");
        sessions.attach(old, 0, Place::Here(1));
        assert_eq!(place(&sessions), Ok(Place::Here(1)));
        moving.switch();
        assert_eq!(place(&sessions), Ok(Place::Here(2)));
        sessions.end(new);
        assert_eq!(place(&sessions), Ok(Place::Here(1)));
        sessions.end(old);
        assert_eq!(place(&sessions), Err(DropReason::NoConnection));
    }

    #[test]
    fn nothing_is_left_of_a_thousand_moves() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        sessions.open(SessionId(0), route("10.66.0.2", 4));
        for number in 1..=1_000 {
            let (old, new) = (SessionId(number - 1), SessionId(number));
            let moving = Arc::new(Moving::begin(old, now));
            sessions.set_move(Some(moving.clone()));
            sessions.open(new, route("10.66.0.2", 4));
            (0..4).for_each(|index| assert!(sessions.attach(new, index, Place::Here(index as usize))));
            moving.prove(new, None);
            moving.switch();
            assert_eq!(sessions.end(old).len(), if number == 1 { 0 } else { 4 });
            sessions.set_move(None);
            assert_eq!(Arc::strong_count(&moving), 1, "its tables are freed with it");
        }
        assert_eq!((sessions.by_id.len(), sessions.by_address.len()), (1, 1));
        assert!(sessions.moving().is_none());
    }

    #[test]
    fn exit_refuses_a_source_that_is_not_the_sessions() {
        let (sessions, rules) = (sessions(), exit_rules(true));
        let outside = address("203.0.113.7");
        let check =
            |source| sessions.check_from_carrier(&rules, SessionId(1), address(source), outside).map(drop);
        assert_eq!(check("10.66.0.2"), Ok(()));
        assert_eq!(check("10.66.0.3"), Err(DropReason::SpoofedSource));
        assert_eq!(check("10.66.0.1"), Err(DropReason::SpoofedSource));
        assert_eq!(check("fd00::1"), Err(DropReason::SpoofedSource));
    }

    #[test]
    fn isolation_keeps_clients_from_each_other_but_not_from_the_gateway() {
        let sessions = sessions();
        let source = address("10.66.0.2");
        let check = |isolation, destination| {
            let rules = exit_rules(isolation);
            sessions.check_from_carrier(&rules, SessionId(1), source, address(destination)).map(drop)
        };
        assert_eq!(check(true, "10.66.0.3"), Err(DropReason::Isolated));
        assert_eq!(check(false, "10.66.0.3"), Ok(()));
        assert_eq!(check(true, "10.66.0.1"), Ok(()));
    }

    #[test]
    fn client_takes_only_packets_for_its_own_addresses() {
        let sessions = sessions();
        let check = |destination| {
            let source = address("203.0.113.7");
            let rules = Forwarding::Client;
            sessions.check_from_carrier(&rules, SessionId(1), source, address(destination)).map(drop)
        };
        assert_eq!(check("10.66.0.2"), Ok(()));
        assert_eq!(check("192.168.1.1"), Err(DropReason::WrongDestination));
    }

    #[test]
    fn granted_prefixes_may_be_sent_from_and_to() {
        let mut sessions = sessions();
        let behind =
            SessionRoute { prefixes: vec!["192.168.7.0/24".parse().unwrap()], ..route("10.66.0.4", 1) };
        sessions.open(SessionId(3), behind);
        sessions.attach(SessionId(3), 0, Place::Here(9));
        let rules = exit_rules(true);
        let from = address("192.168.7.20");
        assert!(sessions.check_from_carrier(&rules, SessionId(3), from, address("203.0.113.7")).is_ok());
        assert_eq!(sessions.place_for(&rules, &flow("192.168.7.20", 77)).unwrap().0, Place::Here(9));
    }

    #[test]
    fn flow_keeps_its_connection_and_only_a_lost_one_moves_its_flows() {
        // Every other connection is on another worker.
        let place = |index: u32| match index % 2 {
            0 => Place::Here(10 + index as usize),
            _ => Place::There(ConnectionId(index.into())),
        };
        let (mut sessions, rules) = (sessions(), exit_rules(true));
        for index in 0..4 {
            assert!(sessions.attach(SessionId(1), index, place(index)));
        }
        let carrier =
            |sessions: &Sessions, port| sessions.place_for(&rules, &flow("10.66.0.2", port)).unwrap().0;
        let before: Vec<_> = (0..64).map(|port| carrier(&sessions, port)).collect();
        sessions.detach(SessionId(1), place(3));
        for (port, before) in (0..64).zip(before) {
            let now = carrier(&sessions, port);
            if before == place(3) {
                assert_ne!(now, before);
            } else {
                assert_eq!(now, before);
            }
        }
    }

    #[test]
    fn flows_of_a_silent_connection_move_while_another_answers_and_return() {
        let (mut sessions, rules) = (sessions(), exit_rules(true));
        let (here, there) = (Place::Here(10), Place::There(ConnectionId(11)));
        sessions.attach(SessionId(1), 0, here);
        sessions.attach(SessionId(1), 1, there);
        let carrier =
            |sessions: &Sessions, port| sessions.place_for(&rules, &flow("10.66.0.2", port)).unwrap().0;
        let before: Vec<_> = (0..32).map(|port| carrier(&sessions, port)).collect();
        sessions.set_silent(SessionId(1), here, true);
        assert!((0..32).all(|port| carrier(&sessions, port) == there));
        sessions.set_silent(SessionId(1), there, true);
        assert_eq!(
            (0..32).map(|port| carrier(&sessions, port)).collect::<Vec<_>>(),
            before,
            "nowhere better"
        );
        sessions.set_silent(SessionId(1), here, false);
        assert!((0..32).all(|port| carrier(&sessions, port) == here));
        sessions.detach(SessionId(1), here);
        assert!(
            (0..32).all(|port| carrier(&sessions, port) == there),
            "a silent connection is better than none"
        );
        sessions.set_silent(SessionId(1), there, false);
        sessions.attach(SessionId(1), 0, here);
        assert_eq!((0..32).map(|port| carrier(&sessions, port)).collect::<Vec<_>>(), before);
    }

    #[test]
    fn unknown_destinations_and_sessions_without_connections_have_their_own_reasons() {
        let (sessions, rules) = (sessions(), exit_rules(true));
        assert_eq!(sessions.place_for(&rules, &flow("10.66.0.9", 1)).err(), Some(DropReason::NoRoute));
        assert_eq!(sessions.place_for(&rules, &flow("10.66.0.2", 1)).err(), Some(DropReason::NoConnection));
    }

    #[test]
    fn ended_session_is_unreachable() {
        let (mut sessions, rules) = (sessions(), exit_rules(true));
        sessions.attach(SessionId(1), 0, Place::Here(5));
        sessions.end(SessionId(1));
        assert_eq!(sessions.place_for(&rules, &flow("10.66.0.2", 1)).err(), Some(DropReason::NoRoute));
    }
}
