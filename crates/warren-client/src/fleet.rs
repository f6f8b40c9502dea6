//! The fleet that a profile's daemon follows: its key, its newest roster, and the round-trip times to its exits.
//!
//! The profile belongs to its owner, so the daemon stores what it learns in the state directory. The fleet's key comes only from
//! an exit that the profile pins, on a connection that has proven the exit's key. The fleet's key is valid only while the profile
//! pins the key of the exit from which it came.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use warren_host::read_plain;
use warren_session::client::choice::{self, Candidate, Lot};
use warren_session::client::{KeptFleet, SessionGrant};
use warren_session::message::ExitLoad;
use warren_session::roster::{
    ExitState, FleetName, FollowedFleet, MAX_ROSTER_EXITS, MAX_ROSTER_LENGTH, Roster, RosterExit, RosterNews,
    RosterRefusal, SignedRoster,
};

use warren_config::{ClientProfile, RemoteExit, describe};
use warren_control::status::FollowedFleetStatus;
use warren_daemon::directories::followed_fleet;

/// The shortest time between two log messages about refused rosters. An exit may send refused rosters all the time.
const COMPLAIN_EVERY: Duration = Duration::from_secs(3_600);

/// How many rosters are read within [`READ_PERIOD`]. Each costs a few signatures and perhaps a durable write.
const MOST_READ: u32 = 16;
const READ_PERIOD: Duration = Duration::from_secs(60);

/// Maximum size of a file in bytes: the roster in base64, and a few figures for each exit.
const LONGEST: u64 = 4 * MAX_ROSTER_LENGTH as u64;

/// The fleet as a profile's daemon knows it.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// Whether the profile wants to follow a fleet.
    is_wanted: bool,
    known: Option<KeptFleet>,
    is_unsaved: bool,
    /// The client's lot, which decides among exits that are equally good.
    lot: Lot,
    /// The loads that exits report, by the exits' names.
    loads: BTreeMap<String, u32>,
    /// Why the latest roster was refused.
    problem: Option<String>,
    complained: Option<Instant>,
    /// When the current [`READ_PERIOD`] began, and how many rosters were read in it.
    read: Option<(Instant, u32)>,
}

impl Fleet {
    /// Reads the fleet's file.
    pub(crate) fn load(state_dir: &Path, profile: &ClientProfile) -> Self {
        let known = if profile.follows_fleet { load(state_dir, profile) } else { None };
        let lot = known.as_ref().and_then(|known| known.lot).unwrap_or_else(random_lot);
        Self { is_wanted: profile.follows_fleet, known, lot, ..Self::default() }
    }

    /// Whether the profile wants to follow a fleet.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// The newest roster.
    pub(crate) fn roster(&self) -> Option<&Roster> {
        self.known.as_ref().map(|known| known.roster.roster())
    }

    /// The fleet's name and the roster's serial number, for the Hello to an exit.
    pub(crate) fn hello(&self) -> Option<(FleetName, u64)> {
        self.roster().map(|roster| (roster.fleet.clone(), roster.serial))
    }

    /// The endpoints of the roster that are addresses.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let endpoints =
            self.roster().into_iter().flat_map(|roster| &roster.exits).flat_map(|exit| &exit.endpoints);
        endpoints.filter_map(|endpoint| Some(SocketAddr::new(endpoint.address()?, endpoint.port()))).collect()
    }

    /// Whether an exit of the roster is given by a name, which must be looked up.
    pub(crate) fn has_names(&self) -> bool {
        let mut exits = self.roster().into_iter().flat_map(|roster| &roster.exits);
        exits.any(|exit| exit.endpoints.iter().any(|endpoint| endpoint.address().is_none()))
    }

    /// The exit of the roster to which a text refers. The text is the exit's name, an endpoint, or the host
    /// of an endpoint.
    pub(crate) fn find(&self, called: &str) -> Option<&RosterExit> {
        self.roster()?.exits.iter().find(|exit| exit.name == called || has_endpoint(exit, called))
    }

    /// Forgets the fleet if the profile no longer wants it, or no longer pins the exit that vouched for it.
    pub(crate) fn follow_profile(&mut self, profile: &ClientProfile) {
        self.is_wanted = profile.follows_fleet;
        self.known = self.known.take().filter(|known| profile.follows_fleet && is_vouched(known, profile));
    }

    /// Handles a roster that an exit has sent. `by` is the exit as the profile lists it, if the profile pins it and the
    /// connection has proven its key. Returns whether the roster is new.
    pub(crate) fn take(&mut self, now: Instant, signed: &[u8], by: Option<&RemoteExit>) -> bool {
        let is_known = self.known.as_ref().is_some_and(|known| known.roster.signed().as_bytes() == signed);
        if !self.is_wanted || is_known || !self.may_read(now) {
            return false;
        }
        match self.taken(signed, by) {
            Ok(news) => {
                self.problem = None;
                self.is_unsaved = true;
                self.log(news);
                true
            }
            Err(reason) => {
                let sentence = format!("a roster is refused: {reason}");
                if self.complained.is_none_or(|last| now.saturating_duration_since(last) >= COMPLAIN_EVERY) {
                    self.complained = Some(now);
                    tracing::warn!("{sentence}");
                }
                self.problem = Some(sentence);
                false
            }
        }
    }

    /// Computes this client's lot from the addresses that an exit has granted, because no other client of the fleet has the same
    /// addresses.
    pub(crate) fn take_addresses(&mut self, welcome: &SessionGrant) {
        let address = |(ipv4, _)| ipv4;
        let Some(lot) = Lot::of(welcome.ipv4.map(address), welcome.ipv6.map(|(ipv6, _)| ipv6)) else {
            return;
        };
        self.lot = lot;
        if let Some(known) = &mut self.known {
            self.is_unsaved |= known.lot != Some(lot);
            known.lot = Some(lot);
        }
    }

    /// Records the loads that exits report. These figures are not signed, so they only help to choose among the roster's exits.
    pub(crate) fn take_loads(&mut self, loads: &[ExitLoad]) {
        if !loads.is_empty() {
            let loads = loads.iter().take(MAX_ROSTER_EXITS);
            self.loads = loads.map(|load| (load.exit.clone(), load.permille.min(1_000))).collect();
        }
    }

    /// Records measured round-trip times, by the exits' names. `None` for an exit that did not answer.
    pub(crate) fn measured(&mut self, round_trips: &[(String, Option<Duration>)]) {
        let Some(known) = &mut self.known else { return };
        let before = known.round_trips.clone();
        for (name, round_trip) in round_trips {
            match round_trip {
                Some(time) => {
                    known
                        .round_trips
                        .insert(name.clone(), u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
                }
                None => {
                    known.round_trips.remove(name);
                }
            }
        }
        // Saving each measurement would cost a durable write, so only a considerable change is saved.
        let differs =
            |(name, new): (&String, &u32)| before.get(name).is_none_or(|old| old.abs_diff(*new) > old / 5);
        self.is_unsaved |= before.len() != known.round_trips.len() || known.round_trips.iter().any(differs);
    }

    /// The latest round-trip time to an exit.
    pub(crate) fn round_trip(&self, name: &str) -> Option<Duration> {
        let micros = self.known.as_ref()?.round_trips.get(name)?;
        Some(Duration::from_micros((*micros).into()))
    }

    /// The names of the roster's exits in the order in which to use them.
    pub(crate) fn order(&self) -> Vec<String> {
        let exits = self.roster().map_or(&[][..], |roster| roster.exits.as_slice());
        let candidate = |exit: &RosterExit| Candidate {
            round_trip: self.round_trip(&exit.name),
            load: self.loads.get(&exit.name).copied(),
            weight: exit.weight,
            is_draining: exit.state == ExitState::Draining,
        };
        let candidates: Vec<Candidate> = exits.iter().map(candidate).collect();
        let order = choice::order(&candidates, self.lot);
        order.into_iter().filter_map(|place| exits.get(place)).map(|exit| exit.name.clone()).collect()
    }

    /// The name of another exit, if it is so much nearer than the current one that moving there is worth its cost.
    pub(crate) fn nearer_than<'a>(&self, current: &str, other: &'a str) -> Option<&'a str> {
        let is_worth = choice::is_worth_moving(self.round_trip(current)?, self.round_trip(other)?);
        Some(other).filter(|_| is_worth && current != other)
    }

    /// Whether the round-trip time of any exit is known.
    pub(crate) fn is_measured(&self) -> bool {
        self.known.as_ref().is_some_and(|known| !known.round_trips.is_empty())
    }

    /// The content to save, if it has changed since the last call.
    pub(crate) fn unsaved(&mut self) -> Option<KeptFleet> {
        let is_unsaved = std::mem::take(&mut self.is_unsaved);
        self.known.clone().filter(|_| is_unsaved)
    }

    /// Returns the fleet for `warren status`. `exit` is the name of the exit in use.
    pub(crate) fn status(&self, exit: Option<String>) -> Option<FollowedFleetStatus> {
        let roster = self.roster()?;
        Some(FollowedFleetStatus {
            name: roster.fleet.to_string(),
            serial: roster.serial,
            public_key: roster.signer.to_string(),
            exits: roster.exits.len(),
            exit,
        })
    }

    /// Why the latest roster was refused, as a warning.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }

    fn taken(&mut self, signed: &[u8], by: Option<&RemoteExit>) -> Result<RosterNews, String> {
        if let Some(known) = &mut self.known {
            let news = known.roster.take(signed).map_err(|refusal| refused(&refusal))?;
            let roster = known.roster.roster();
            known.serial = roster.serial;
            known.round_trips.retain(|name, _| roster.exit(name).is_some());
            return Ok(news);
        }
        let Some(by) = by else {
            return Err("it comes from an exit that the profile does not pin; only an exit that the profile pins may name the \
                        key of a fleet"
                .to_owned());
        };
        let first = SignedRoster::decode(signed).map_err(|error| refused(&RosterRefusal::Invalid(error)))?;
        let roster = FollowedFleet::begin(first);
        self.known = Some(KeptFleet {
            name: roster.roster().fleet.to_string(),
            serial: roster.roster().serial,
            vouched_by: by.public_keys.clone(),
            round_trips: BTreeMap::new(),
            lot: Some(self.lot),
            roster,
        });
        Ok(RosterNews::NewKey)
    }

    fn log(&self, news: RosterNews) {
        let Some(roster) = self.roster() else { return };
        let exits: Vec<&str> = roster.exits.iter().map(|exit| exit.name.as_str()).collect();
        let (fleet, serial, exits) = (&roster.fleet, roster.serial, exits.join(", "));
        if news == RosterNews::NewKey {
            tracing::info!("following the fleet {fleet} by the key {}", roster.signer);
        }
        tracing::info!("roster {serial} of the fleet {fleet} has the exits {exits}");
    }

    fn may_read(&mut self, now: Instant) -> bool {
        let (begun, count) = self
            .read
            .filter(|(begun, _)| now.saturating_duration_since(*begun) < READ_PERIOD)
            .unwrap_or((now, 0));
        self.read = Some((begun, count + 1));
        if count >= MOST_READ {
            tracing::debug!("an exit sends too many rosters; this one is not read");
        }
        count < MOST_READ
    }
}

/// Returns a random lot, for a client that has not been granted addresses yet. If the random source fails, clients are only
/// spread less evenly, so that is not an error.
fn random_lot() -> Lot {
    let mut bytes = [0; 8];
    let _ = getrandom::fill(&mut bytes);
    Lot::random(u64::from_ne_bytes(bytes))
}

/// Explains a refused roster to the user.
fn refused(refusal: &RosterRefusal) -> String {
    match refusal {
        RosterRefusal::OtherSigner { .. } | RosterRefusal::OtherFleet { .. } => format!(
            "{refusal}; if the fleet was really set up from scratch, remove the profile's file below fleets in the state directory and \
             run `warren down` and `warren up`"
        ),
        RosterRefusal::Invalid(_) | RosterRefusal::Older { .. } | RosterRefusal::Conflicting { .. } => {
            format!("{refusal}; tell the exits' operator")
        }
    }
}

fn has_endpoint(exit: &RosterExit, called: &str) -> bool {
    exit.endpoints.iter().any(|endpoint| {
        let host = endpoint.as_str().rsplit_once(':').map_or("", |(host, _)| host);
        endpoint.as_str() == called || host.trim_matches(['[', ']']) == called
    })
}

fn load(state_dir: &Path, profile: &ClientProfile) -> Option<KeptFleet> {
    let file = followed_fleet(state_dir, profile.name.as_str());
    let consequence = "the client learns the fleet again from the profile's exits";
    let text = match read_plain(&file, LONGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!("{} cannot be read: {}; {consequence}", file.display(), describe(&error));
            return None;
        }
    };
    let known: KeptFleet = match serde_json::from_slice(&text) {
        Ok(known) => known,
        Err(error) => {
            tracing::warn!("{} is damaged: {error}; {consequence}; delete the file", file.display());
            return None;
        }
    };
    if !is_vouched(&known, profile) {
        tracing::warn!(
            "ignoring {}: the exit that confirmed the fleet {} is no longer in the profile; {consequence}",
            file.display(),
            known.name
        );
        return None;
    }
    Some(known)
}

/// Whether the profile still pins a key that has vouched for the fleet.
fn is_vouched(known: &KeptFleet, profile: &ClientProfile) -> bool {
    profile.exits().flat_map(|exit| &exit.public_keys).any(|key| known.vouched_by.contains(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;
    use warren_quic::key::{PrivateKey, PublicKey};
    use warren_session::roster::{FleetKey, RosterChange, begin, change};

    #[test]
    fn fleet_key_comes_only_from_an_exit_that_the_profile_pins() {
        let (key, now) = (FleetKey::generate().unwrap(), Instant::now());
        let roster = first(&key);
        let mut fleet = fleet();
        assert!(!fleet.take(now, roster.as_bytes(), None));
        assert!(fleet.problem().unwrap().contains("does not pin") && fleet.unsaved().is_none());
        let pinned = pinned(public());
        assert!(fleet.take(now, roster.as_bytes(), Some(&pinned)));
        assert_eq!((fleet.problem(), fleet.hello()), (None, Some(("acme".parse().unwrap(), 1))));
        assert_eq!(fleet.unsaved().unwrap().vouched_by, pinned.public_keys);
        // Once the fleet's key is known, only a roster's signature counts, no matter which exit sends the roster.
        let second = admit(&roster, 2, &key);
        assert!(fleet.take(now, second.as_bytes(), None));
        assert!(!fleet.take(now, second.as_bytes(), None), "it is known");
    }

    #[test]
    fn older_roster_and_another_signer_are_refused_and_shown() {
        let (key, other, now) =
            (FleetKey::generate().unwrap(), FleetKey::generate().unwrap(), Instant::now());
        let pinned = pinned(public());
        let mut fleet = fleet();
        let second = admit(&first(&key), 2, &key);
        assert!(fleet.take(now, second.as_bytes(), Some(&pinned)));
        fleet.unsaved();
        for (roster, why) in [
            (first(&key), "its serial is 1, but 2 is known already"),
            (admit(&admit(&first(&other), 2, &other), 3, &other), "has signed it, but the fleet's key is"),
        ] {
            assert!(!fleet.take(now, roster.as_bytes(), Some(&pinned)));
            assert!(fleet.problem().unwrap().contains(why), "{:?}", fleet.problem());
            assert_eq!((fleet.roster().unwrap().serial, fleet.unsaved()), (2, None));
        }
    }

    #[test]
    fn profile_that_does_not_follow_takes_nothing() {
        let key = FleetKey::generate().unwrap();
        let mut fleet = Fleet { is_wanted: false, ..fleet() };
        assert!(!fleet.take(Instant::now(), first(&key).as_bytes(), Some(&pinned(public()))));
        assert_eq!((fleet.hello(), fleet.problem()), (None, None));
    }

    #[test]
    fn exit_that_sends_rosters_all_the_time_is_not_read_all_the_time() {
        let (key, now) = (FleetKey::generate().unwrap(), Instant::now());
        let mut fleet = fleet();
        let mut roster = first(&key);
        assert!(fleet.take(now, roster.as_bytes(), Some(&pinned(public()))));
        let mut read = 1;
        for number in 0..40 {
            roster = admit(&roster, number, &key);
            read += u32::from(fleet.take(now, roster.as_bytes(), None));
        }
        assert_eq!(read, MOST_READ);
        assert!(fleet.take(now + READ_PERIOD, roster.as_bytes(), None));
    }

    #[test]
    fn only_round_trip_times_that_differ_are_kept_again() {
        let key = FleetKey::generate().unwrap();
        let mut fleet = fleet();
        fleet.take(Instant::now(), first(&key).as_bytes(), Some(&pinned(public())));
        fleet.unsaved();
        let mut keeps = |milliseconds: Option<u64>| {
            fleet.measured(&[("exit1".to_owned(), milliseconds.map(Duration::from_millis))]);
            fleet.unsaved().is_some()
        };
        assert_eq!(
            [Some(20), Some(21), Some(30), None, None].map(&mut keeps),
            [true, false, true, true, false]
        );
    }

    fn fleet() -> Fleet {
        Fleet { is_wanted: true, ..Fleet::default() }
    }

    fn first(key: &FleetKey) -> SignedRoster {
        begin("acme".parse().unwrap(), Vec::new(), key, UNIX_EPOCH).unwrap()
    }

    fn admit(old: &SignedRoster, number: u8, key: &FleetKey) -> SignedRoster {
        let exit = RosterExit {
            name: format!("exit{number}"),
            public_keys: vec![public()],
            endpoints: vec![format!("192.0.2.{}:443", number + 1).parse().unwrap()],
            region: String::new(),
            weight: 1,
            state: ExitState::Serving,
        };
        change(old, RosterChange::Admit(exit), key, UNIX_EPOCH).unwrap()
    }

    fn public() -> PublicKey {
        PrivateKey::generate().unwrap().public()
    }

    fn pinned(key: PublicKey) -> RemoteExit {
        RemoteExit {
            endpoint: "exit.example:443".parse().unwrap(),
            public_keys: vec![key],
            server_name: None,
        }
    }
}
