//! The exits of the fleet's roster among all exits: their accepted keys, and the order in which they are tried.

use std::time::Instant;

use warren_session::roster::RosterExit;

use super::{Entry, Exits, Way};
use crate::fleet::Fleet;
use crate::learnt_keys::LearntKeys;
use warren_config::{ClientProfile, RemoteExit};

impl Exits {
    /// Adds the exits of the fleet's roster. For an endpoint from the roster, only that exit's key in the roster is accepted. For
    /// the profile's exits, learnt keys are also accepted.
    pub(crate) fn follow(&mut self, profile: &ClientProfile, learnt: &LearntKeys, fleet: &Fleet) {
        let of_profile = profile.exits().count();
        let members = fleet.roster().into_iter().flat_map(|roster| &roster.exits);
        let mut endpoints: Vec<(&RosterExit, RemoteExit)> = Vec::new();
        for member in members {
            let readable = member.endpoints.iter().filter_map(|endpoint| endpoint.as_str().parse().ok());
            endpoints.extend(readable.map(|endpoint| {
                let public_keys = member.public_keys.clone();
                (member, RemoteExit { endpoint, public_keys, server_name: None })
            }));
        }
        for (place, entry) in self.entries.iter_mut().enumerate() {
            let of_roster = endpoints.iter().find(|(_, exit)| exit.endpoint == entry.exit.endpoint);
            let pinned = profile.exits().nth(place).map(|exit| learnt.accepted(exit)).unwrap_or_default();
            // The roster may list an exit of the profile with another endpoint. Both are the same exit if they have the same key.
            let has_its_key =
                |(member, _): &&(&RosterExit, _)| member.public_keys.iter().any(|key| pinned.contains(key));
            let member = of_roster.or_else(|| endpoints.iter().find(has_its_key));
            entry.member = member.map(|(member, _)| member.name.clone());
            let keys = of_roster.map(|(_, exit)| exit.public_keys.as_slice()).unwrap_or_default();
            let others = keys.iter().filter(|key| !pinned.contains(key));
            entry.exit.public_keys = pinned.iter().chain(others).copied().collect();
            entry.is_gone = place >= of_profile && of_roster.is_none();
        }
        for (member, exit) in endpoints {
            if !self.entries.iter().any(|entry| entry.exit.endpoint == exit.endpoint) {
                let rank = self.entries.len();
                let entry = Entry::new(exit, rank);
                self.entries.push(Entry { member: Some(member.name.clone()), is_listed: false, ..entry });
            }
        }
        self.chooses = of_profile == 1 && fleet.roster().is_some() && !self.is_asked;
        self.rank(of_profile, &fleet.order());
    }

    /// Records that the user has asked for an exit, so that the client does not choose one. `member` is the exit's name
    /// in the roster, or `None` for an exit of the profile.
    pub(crate) fn ask_for(&mut self, member: Option<String>) {
        self.is_asked = true;
        self.asked_for = member;
    }

    /// Sets the order in which exits are tried. `members` are the names of the roster's exits in the order of choice.
    fn rank(&mut self, of_profile: usize, members: &[String]) {
        let (asked_for, chooses) = (self.asked_for.as_ref(), self.chooses);
        for (place, entry) in self.entries.iter_mut().enumerate() {
            let is_asked_for = asked_for.is_some() && entry.member.as_ref() == asked_for;
            entry.is_listed = place < of_profile || is_asked_for;
            let of_member =
                entry.member.as_ref().and_then(|name| members.iter().position(|other| other == name));
            entry.rank = match of_member {
                _ if is_asked_for => 0,
                Some(choice) if chooses => 1 + choice,
                // An exit of the profile that is not in the roster may be out of service, so it is tried last.
                None if chooses => 1 + members.len(),
                _ if place < of_profile => 1 + place,
                other => 1 + of_profile + other.unwrap_or(members.len()),
            };
        }
    }

    /// Whether the client chooses among the roster's exits.
    pub(crate) fn chooses(&self) -> bool {
        self.chooses
    }

    /// The places of a roster's exit.
    pub(crate) fn places_of(&self, member: &str) -> Vec<usize> {
        let is_of = |place: &usize| self.member(*place) == Some(member);
        (0..self.entries.len()).filter(is_of).collect()
    }

    /// Whether the exit in use and at least one other belong to the fleet. This client has the same addresses at both.
    pub(crate) fn has_sibling(&self, now: Instant) -> bool {
        let is_other = |place: &usize| {
            let entry = self.entries.get(*place);
            self.member(*place).is_some() && entry.is_some_and(|entry| entry.may_accept(now))
        };
        self.member(self.current).is_some()
            && (0..self.entries.len())
                .any(|place| is_other(&place) && !self.is_same_exit(place, self.current))
    }

    /// The places of the roster's other exits, in the order in which they are tried.
    pub(crate) fn other_members(&self, now: Instant) -> Vec<usize> {
        let mut places = self.order(now);
        places.retain(|place| self.member(*place).is_some() && !self.is_same_exit(*place, self.current));
        places
    }

    /// The roster's exit that comes first in the order.
    pub(crate) fn best_member(&self, now: Instant) -> Option<&str> {
        self.member(self.first(now)?)
    }

    /// Returns one way to each endpoint of the roster's exits whose address is known.
    pub(crate) fn ways_of_members(&self) -> Vec<Way> {
        let way = |(exit, entry): (usize, &Entry)| {
            let remote = entry.addresses.in_order().first().copied().or_else(|| entry.literal())?;
            Some(Way { exit, remote }).filter(|_| !entry.is_gone && entry.member.is_some())
        };
        (0..).zip(&self.entries).filter_map(way).collect()
    }

    /// The places of the roster's endpoints whose names have to be looked up.
    pub(crate) fn members_without_address(&self) -> Vec<usize> {
        let known: Vec<usize> = self.ways_of_members().iter().map(|way| way.exit).collect();
        let is_unknown =
            |place: &usize| self.has(*place) && self.member(*place).is_some() && !known.contains(place);
        (0..self.entries.len()).filter(is_unknown).collect()
    }
}
