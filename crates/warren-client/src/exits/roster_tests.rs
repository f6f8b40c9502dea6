//! Tests of the roster's exits among all exits.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Instant, UNIX_EPOCH};

use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::client::KeptFleet;
use warren_session::roster::{ExitState, FleetKey, FollowedFleet, RosterExit, begin};

use super::*;
use warren_config::load_profile;
use warren_daemon::directories::followed_fleet;

const PINNED: &str = "192.0.2.1:443";

#[test]
fn roster_s_keys_are_believed_for_its_endpoints_and_those_of_the_profile_stay() {
    let world = World::new(&[PINNED]);
    let [of_first, of_second] = [public(), public()];
    let mut exits = world.exits();
    exits.follow(
        &world.profile,
        &world.learnt(),
        &world.fleet(&[("a", PINNED, of_first), ("b", "192.0.2.2:443", of_second)]),
    );
    assert_eq!(exits.exit(0).public_keys, [world.pinned, of_first]);
    assert_eq!(exits.exit(1).public_keys, [of_second]);
    assert!(exits.accepts(1, of_second) && !exits.accepts(1, world.pinned) && !exits.accepts(0, of_second));
    assert_eq!((exits.member(0), exits.member(1), exits.count()), (Some("a"), Some("b"), 2));
    assert!(exits.have("192.0.2.2:443".parse().unwrap()) && !exits.have("192.0.2.2:444".parse().unwrap()));

    // The second exit leaves the roster, and the first exit gets another key.
    let other = public();
    exits.use_exit(1);
    exits.follow(
        &world.profile,
        &world.learnt(),
        &world.fleet(&[("a", PINNED, other), ("c", "192.0.2.3:443", of_first)]),
    );
    assert_eq!(exits.exit(0).public_keys, [world.pinned, other]);
    assert!(!exits.accepts(1, of_second) && !exits.has(1) && !exits.have("192.0.2.2:443".parse().unwrap()));
    assert_eq!(exits.exit(2).endpoint.to_string(), "192.0.2.3:443", "each exit keeps its place");
    assert_eq!(exits.order(Instant::now()).len(), 2);
    exits.follow(&world.profile, &world.learnt(), &world.no_fleet());
    assert_eq!((exits.exit(0).public_keys.clone(), exits.count()), (vec![world.pinned], 1));
}

#[test]
fn exit_that_the_roster_knows_by_another_endpoint_is_the_same_exit() {
    let world = World::new(&["exit.example.net:443"]);
    let mut exits = world.exits();
    exits.follow(&world.profile, &world.learnt(), &world.fleet(&[("a", PINNED, world.pinned)]));
    assert!(exits.is_same_exit(0, 1));
    assert_eq!((exits.member(0), exits.exit(0).public_keys.clone()), (Some("a"), vec![world.pinned]));
}

#[test]
fn a_client_can_move_without_a_gap_only_between_exits_of_its_fleet() {
    let world = World::new(&[PINNED, "192.0.2.9:443"]);
    let mut exits = world.exits();
    let now = Instant::now();
    assert!(!exits.has_sibling(now) && exits.other_members(now).is_empty(), "both are in the profile alone");

    exits.follow(&world.profile, &world.learnt(), &world.fleet(&[("a", PINNED, public())]));
    assert!(!exits.has_sibling(now), "its fleet has no other exit");

    let members = [("a", PINNED, public()), ("b", "192.0.2.2:443", public())];
    exits.follow(&world.profile, &world.learnt(), &world.fleet(&members));
    assert!(exits.has_sibling(now));
    assert_eq!(exits.other_members(now), [2]);
    exits.use_exit(1);
    assert!(!exits.has_sibling(now), "the profile's second exit is not of the fleet");
}

#[test]
fn every_endpoint_of_a_roster_is_an_endpoint_here() {
    for text in
        ["192.0.2.1:443", "[2001:db8::1]:8443", "ams2.example.net:51820", "a_b.example:1", "exit:65535"]
    {
        let endpoint: warren_session::roster::RosterEndpoint = text.parse().unwrap();
        let here: warren_config::Endpoint = endpoint.as_str().parse().unwrap();
        assert_eq!(here.to_string(), text);
    }
}

#[test]
fn profile_with_several_exits_keeps_its_order_and_goes_back_to_it() {
    let world = World::new(&[PINNED, "192.0.2.2:443"]);
    let mut exits = world.exits();
    let fleet = world.fleet(&[("c", "192.0.2.3:443", public()), ("b", "192.0.2.2:443", public())]);
    exits.follow(&world.profile, &world.learnt(), &fleet);
    assert!(!exits.chooses());
    assert_eq!(exits.order(Instant::now()), [0, 1, 2]);
    exits.use_exit(2);
    assert_eq!(exits.order(Instant::now()), [2, 0, 1]);
    assert_eq!((exits.preferred(Instant::now()), exits.is_home(0)), (vec![0, 1], true));
}

#[test]
fn profile_with_one_exit_chooses_and_does_not_go_back_for_the_sake_of_it() {
    let world = World::new(&[PINNED]);
    let mut exits = world.exits();
    let members =
        [("a", PINNED, public()), ("b", "192.0.2.2:443", public()), ("c", "192.0.2.3:443", public())];
    let mut fleet = world.fleet(&members);
    fleet.measured(
        &[("b", 9_u64), ("c", 20), ("a", 30)]
            .map(|(name, milliseconds)| (name.to_owned(), Some(Duration::from_millis(milliseconds)))),
    );
    exits.follow(&world.profile, &world.learnt(), &fleet);
    exits.use_first(Instant::now());
    assert!(exits.chooses() && exits.best_member(Instant::now()) == Some("b"));
    assert_eq!(exits.order(Instant::now()), [1, 2, 0]);
    exits.use_exit(2);
    assert!(exits.preferred(Instant::now()).is_empty() && exits.is_home(2));
    // The client does not choose if the user has asked for an exit.
    exits.ask_for(Some("c".to_owned()));
    exits.follow(&world.profile, &world.learnt(), &fleet);
    exits.use_first(Instant::now());
    assert_eq!((exits.current(), exits.chooses()), (2, false));
    exits.use_exit(1);
    assert_eq!(exits.preferred(Instant::now()), [2, 0]);
}

#[test]
fn endpoints_of_one_exit_are_tried_together_and_refuse_together() {
    let world = World::new(&[PINNED]);
    let mut exits = world.exits();
    let endpoints = ["192.0.2.2:443", "[2001:db8::2]:443"];
    let exit = RosterExit {
        endpoints: endpoints.map(|text| text.parse().unwrap()).to_vec(),
        ..member("b", endpoints[0], public())
    };
    world.write(vec![exit]);
    let fleet = Fleet::load(world.state.path(), &world.profile);
    exits.follow(&world.profile, &world.learnt(), &fleet);
    assert_eq!(exits.with_ranks(&[0, 1, 2]), [(0, 0), (1, 1), (2, 1)]);
    assert!(exits.is_same_exit(1, 2) && !exits.is_same_exit(0, 1));
    exits.use_exit(2);
    assert!(exits.refused(Instant::now()));
    assert_eq!(exits.order(Instant::now()), [0]);
}

#[test]
fn damaged_file_and_a_profile_that_pins_others_have_no_fleet() {
    let world = World::new(&[PINNED]);
    world.fleet(&[("a", PINNED, public())]);
    let file = followed_fleet(world.state.path(), "home");
    let text = std::fs::read(&file).unwrap();
    for length in [0, 1, text.len() / 2, text.len() - 2] {
        std::fs::write(&file, &text[..length]).unwrap();
        assert!(Fleet::load(world.state.path(), &world.profile).roster().is_none(), "{length} bytes");
    }
    std::fs::write(&file, &text).unwrap();
    assert!(Fleet::load(world.state.path(), &world.profile).roster().is_some(), "the control");
    let other = World::new(&[PINNED]);
    assert!(
        Fleet::load(world.state.path(), &other.profile).roster().is_none(),
        "its profile has another key"
    );
}

struct World {
    state: tempfile::TempDir,
    profile: ClientProfile,
    pinned: PublicKey,
    key: FleetKey,
}

impl World {
    /// A profile that pins one key at these endpoints.
    fn new(endpoints: &[&str]) -> Self {
        let (state, pinned) = (tempfile::tempdir().unwrap(), public());
        let own = PrivateKey::generate().unwrap();
        let mut text = format!("[client]\nprivate_key = \"{}\"\n", own.to_base64().as_str());
        for endpoint in endpoints {
            text += &format!("[[exit]]\nendpoint = \"{endpoint}\"\npublic_key = \"{pinned}\"\n");
        }
        let profile = state.path().join("home.toml");
        std::fs::write(&profile, text).unwrap();
        std::fs::set_permissions(&profile, std::fs::Permissions::from_mode(0o600)).unwrap();
        let profile = load_profile(&profile).unwrap();
        Self { state, profile, pinned, key: FleetKey::generate().unwrap() }
    }

    fn exits(&self) -> Exits {
        Exits::of(&self.profile)
    }

    fn learnt(&self) -> LearntKeys {
        LearntKeys::load(self.state.path(), "home")
    }

    fn fleet(&self, members: &[(&str, &str, PublicKey)]) -> Fleet {
        self.write(members.iter().map(|(name, endpoint, key)| member(name, endpoint, *key)).collect());
        Fleet::load(self.state.path(), &self.profile)
    }

    fn no_fleet(&self) -> Fleet {
        Fleet::load(Path::new("/nonexistent"), &self.profile)
    }

    fn write(&self, members: Vec<RosterExit>) {
        let roster = begin("acme".parse().unwrap(), members, &self.key, UNIX_EPOCH).unwrap();
        let kept = KeptFleet {
            name: "acme".to_owned(),
            serial: 1,
            roster: FollowedFleet::begin(roster),
            vouched_by: vec![self.pinned],
            round_trips: BTreeMap::new(),
            lot: None,
        };
        let file = followed_fleet(self.state.path(), "home");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, serde_json::to_string_pretty(&kept).unwrap()).unwrap();
    }
}

fn member(name: &str, endpoint: &str, key: PublicKey) -> RosterExit {
    RosterExit {
        name: name.to_owned(),
        public_keys: vec![key],
        endpoints: vec![endpoint.parse().unwrap()],
        region: String::new(),
        weight: 1,
        state: ExitState::Serving,
    }
}

fn public() -> PublicKey {
    PrivateKey::generate().unwrap().public()
}
