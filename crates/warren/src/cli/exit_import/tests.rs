//! Tests of imports into a stopped exit, with real files.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::cli::args::ExitInitArgs;
use crate::cli::exit_client::StoppedExit;
use crate::cli::exit_init;
use warren_config::{load_clients, load_profile};

struct Exit {
    directory: tempfile::TempDir,
    directories: Directories,
}

impl Exit {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::below(directory.path());
        let init = ExitInitArgs {
            endpoint: Some("exit.example.net:8443".parse().unwrap()),
            ipv4: Some("10.8.0.0/24".parse().unwrap()),
            ipv6: Some("fd08::/64".parse().unwrap()),
            fleet: None,
        };
        exit_init::run(&directories, &init).unwrap();
        Self { directory, directories }
    }

    fn import(&self, text: &str, dry_run: bool) -> Result<(), String> {
        self.import_as(text, dry_run, false)
    }

    fn import_as(&self, text: &str, dry_run: bool, rename: bool) -> Result<(), String> {
        let args = ImportWireGuardArgs {
            file: self.write(text),
            output: Some(self.profiles()),
            rename,
            new_keys: false,
            dry_run,
        };
        let state = self.directories.state.clone();
        run(&self.directories, &args, |config| Ok(Box::new(StoppedExit::new(config, &state))))
            .map_err(|error| output::sentence(&error))
    }

    fn serve_wireguard(&self) {
        let path = self.directories.config.join("exit.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + "\n[wireguard]\nlisten = \"0.0.0.0:51820\"\n").unwrap();
    }

    fn write(&self, text: &str) -> PathBuf {
        let file = self.directory.path().join("wg0.conf");
        fs::write(&file, text).unwrap();
        file
    }

    fn profiles(&self) -> PathBuf {
        self.directory.path().join("profiles")
    }

    fn names(&self) -> Vec<String> {
        let registry = load_clients(&self.directories.state.join("exit/clients.toml")).unwrap();
        registry.iter().map(|client| client.name.clone()).collect()
    }

    fn files(&self) -> usize {
        fs::read_dir(self.profiles()).map_or(0, Iterator::count)
    }
}

#[test]
fn a_repeated_import_goes_on_with_the_peers_that_are_new_and_leaves_the_others() {
    let exit = Exit::new();
    exit.serve_wireguard();
    let key = |number: u8| warren_wireguard::PrivateKey::new([number; 32]);
    let peer = |name: &str, number: u8, address: u8| {
        format!("# {name}\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.8.0.{address}\n", key(number).public())
    };
    let server = format!("[Interface]\nPrivateKey = {}\nListenPort = 51820\n", *key(77).to_base64());
    let one = server.clone() + &peer("buero", 2, 2);
    exit.import(&one, false).unwrap();
    let config = load_exit(&exit.directories.config.join("exit.toml")).unwrap();
    let mut store = StoppedExit::new(&config, &exit.directories.state);
    store.change("buero", &warren_control::ClientChange::Rename { to: "anna".to_owned() }).unwrap();

    // A peer with the same key but another name counts as the same client.
    let two = one + &peer("phone", 3, 3);
    exit.import(&two, true).unwrap();
    assert_eq!(exit.names(), ["anna"]);
    exit.import(&two, false).unwrap();
    assert_eq!(exit.names(), ["anna", "phone"]);
    exit.import(&two, false).unwrap();
    assert_eq!(exit.names(), ["anna", "phone"]);

    // A peer with the client's address but another key counts as another client.
    let refused = exit.import(&(server.clone() + &peer("other", 4, 3)), false).unwrap_err();
    assert!(refused.contains("cannot have the address 10.8.0.3"), "{refused}");
    let twice = server + &peer("a", 5, 5) + &peer("b", 5, 6);
    let refused = exit.import(&twice, true).unwrap_err();
    assert!(
        refused.contains("wg0.conf:9: this peer has the same PublicKey as the one at line 5"),
        "{refused}"
    );
    store.remove("phone").unwrap();
    let refused = exit.import(&two, true).unwrap_err();
    assert!(refused.contains("was taken from client \"phone\"") && !refused.contains("keygen"), "{refused}");
}

#[test]
fn peers_that_are_there_already_are_counted_and_named() {
    let exit = Exit::new();
    exit.import(TWO, false).unwrap();
    let config = load_exit(&exit.directories.config.join("exit.toml")).unwrap();
    let enrolled =
        StoppedExit::new(&config, &exit.directories.state).clients(&PageQuery::default()).unwrap().rows;
    let mut server = read(Path::new("wg0.conf"), TWO.as_bytes()).unwrap();
    let present = Present::take(&mut server.peers, &enrolled, true, |peer| client_of(peer, &config));
    assert!(server.peers.is_empty());
    let text = "2 clients are enrolled with other keys, and keep them: laptop, peer-10-8-0-3\n";
    assert_eq!(present.text(), text);
    assert_eq!(
        Present { same: vec!["laptop".to_owned()], other_key: Vec::new() }.text(),
        "1 client is enrolled already, and stays as it is: laptop\n"
    );
}

const TWO: &str = "[Interface]\nAddress = 10.8.0.1/24\n\
                   # laptop\n[Peer]\nPublicKey = x\nAllowedIPs = 10.8.0.2/32, fd08::2/128\n\
                   [Peer]\nAllowedIPs = 10.8.0.3/32, 192.168.7.0/24\n";

#[test]
fn profile_with_a_removed_key_is_not_imported_again() {
    let exit = Exit::new();
    exit.import(TWO, false).unwrap();
    let config = load_exit(&exit.directories.config.join("exit.toml")).unwrap();
    let mut store = StoppedExit::new(&config, &exit.directories.state);
    for name in exit.names() {
        store.remove(&name).unwrap();
    }

    let refused = exit.import(TWO, false).unwrap_err();
    assert!(refused.contains("laptop.toml has the key of a client that was removed"), "{refused}");
    assert_eq!(exit.names().len(), 0);

    // As a control, without the old profiles, the same peers are enrolled with new keys.
    fs::remove_dir_all(exit.profiles()).unwrap();
    exit.import(TWO, false).unwrap();
    assert_eq!((exit.names().len(), exit.files()), (2, 2));
}

#[test]
fn peers_become_clients_with_their_names_and_addresses_and_profiles_that_up_takes() {
    let exit = Exit::new();
    exit.import(TWO, true).unwrap();
    assert_eq!((exit.names().len(), exit.files()), (0, 0), "a dry run changes nothing");

    exit.import(TWO, false).unwrap();

    assert_eq!(exit.names(), ["laptop", "peer-10-8-0-3"]);
    let registry = load_clients(&exit.directories.state.join("exit/clients.toml")).unwrap();
    let laptop = registry.by_name("laptop").unwrap();
    assert_eq!(laptop.ipv4, Some("10.8.0.2".parse().unwrap()));
    assert_eq!(laptop.ipv6, Some("fd08::2".parse().unwrap()));
    assert_eq!(registry.by_name("peer-10-8-0-3").unwrap().prefixes, ["192.168.7.0/24".parse().unwrap()]);
    let profile = load_profile(&exit.profiles().join("laptop.toml")).unwrap();
    assert_eq!(profile.private_key.public().0, laptop.public_key.0);
}

#[test]
fn a_clash_is_one_sentence_with_its_line_and_nothing_is_enrolled() {
    let peer = |name: &str, networks: &str| format!("# {name}\n[Peer]\nAllowedIPs = {networks}\n");
    let one = peer("laptop", "10.8.0.2");
    for (text, expected) in [
        (
            one.clone() + &peer("laptop", "10.8.0.3"),
            "wg0.conf:5: \"laptop\" at line 5 is also the name of the peer at line 2, \"laptop-2\" is free; add --rename",
        ),
        (
            one.clone() + &peer("phone", "10.8.0.2"),
            "wg0.conf:5: client \"phone\" cannot have the address 10.8.0.2",
        ),
        (
            one.clone() + &peer("phone", "10.9.0.2"),
            "wg0.conf:5: 10.9.0.2 is outside the exit's prefix 10.8.0.0/24",
        ),
        (one.clone() + &peer("phone", "10.8.0.1"), "wg0.conf:5: 10.8.0.1 is not free for clients"),
        (one.clone() + &peer("phone", "0.0.0.0/0"), "wg0.conf:5: 0.0.0.0/0 routes all traffic to this peer"),
        (
            peer("a", "192.168.0.0/16") + &peer("b", "192.168.7.0/24"),
            "wg0.conf:5: client \"b\" cannot have the prefix 192.168.7.0/24: it overlaps",
        ),
        (
            one.clone() + &peer("phone", "10.8.0.5/24"),
            "wg0.conf:5: client \"phone\": the prefix 10.8.0.0/24 overlaps",
        ),
        (one.clone() + &peer("phone", "127.0.0.0/8"), "wg0.conf:5: client \"phone\" cannot have the prefix"),
        (one.clone() + &peer("phone", "10.8.0.2"), "(\"laptop\" is the peer at line 2)"),
        (one.clone() + &peer("exit", "10.8.0.3"), "wg0.conf:5: the name \"exit\" is the exit's own"),
        (
            one + "AllowedIPs = no\n",
            "wg0.conf:4: AllowedIPs has \"no\", which is not a network; correct the line",
        ),
    ] {
        let exit = Exit::new();
        for dry_run in [true, false] {
            let refused = exit.import(&text, dry_run).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
        assert_eq!((exit.names().len(), exit.files()), (0, 0), "{text}");
    }
}

#[test]
fn clashing_names_are_proposed_anew_all_at_once_and_taken_on_request() {
    let peer = |name: &str, address: &str| format!("# {name}\n[Peer]\nAllowedIPs = {address}\n");
    let exit = Exit::new();
    exit.import(&peer("laptop", "10.8.0.2"), false).unwrap();
    let text = peer("laptop", "10.8.0.3") + &peer("phone", "10.8.0.4") + &peer("phone", "10.8.0.5");
    let text = text + &peer("laptop-2", "10.8.0.6");

    let refused = exit.import(&text, false).unwrap_err();

    for expected in [
        "wg0.conf:2: \"laptop\" at line 2 is also the name of an enrolled client, \"laptop-3\" is free",
        "\"phone\" at line 8 is also the name of the peer at line 5, \"phone-2\" is free",
    ] {
        assert!(refused.contains(expected), "{refused}");
    }
    assert_eq!(exit.names(), ["laptop"]);

    exit.import_as(&text, true, true).unwrap();
    assert_eq!(exit.names(), ["laptop"], "a dry run changes nothing");
    exit.import_as(&text, false, true).unwrap();
    assert_eq!(exit.names(), ["laptop", "laptop-2", "laptop-3", "phone", "phone-2"]);
    assert!(exit.profiles().join("phone-2.toml").is_file());
}

#[test]
fn a_second_import_and_a_profile_that_is_there_change_nothing() {
    let exit = Exit::new();
    fs::create_dir(exit.profiles()).unwrap();
    fs::write(exit.profiles().join("peer-10-8-0-3.toml"), "mine").unwrap();
    let refused = exit.import(TWO, false).unwrap_err();
    assert!(refused.contains("peer-10-8-0-3.toml exists already"), "{refused}");
    assert_eq!((exit.names().len(), exit.files()), (0, 1));
    fs::remove_dir_all(exit.profiles()).unwrap();

    exit.import(TWO, false).unwrap();
    let before = fs::read_to_string(exit.profiles().join("laptop.toml")).unwrap();
    exit.import(TWO, false).unwrap();
    assert_eq!(fs::read_to_string(exit.profiles().join("laptop.toml")).unwrap(), before);
    assert_eq!(exit.names().len(), 2);
}

#[test]
fn an_import_that_was_killed_is_gone_on_with() {
    let exit = Exit::new();
    exit.import(TWO, false).unwrap();
    // Restores the state of an import that was killed before it had written the last profile and enrolled the clients.
    fs::remove_file(exit.directories.state.join("exit/clients.store")).unwrap();
    fs::remove_file(exit.profiles().join("peer-10-8-0-3.toml")).unwrap();
    let before = fs::read_to_string(exit.profiles().join("laptop.toml")).unwrap();

    exit.import(TWO, true).unwrap();
    exit.import(TWO, false).unwrap();

    assert_eq!(fs::read_to_string(exit.profiles().join("laptop.toml")).unwrap(), before);
    assert_eq!((exit.names().len(), exit.files()), (2, 2));
    let registry = load_clients(&exit.directories.state.join("exit/clients.toml")).unwrap();
    for name in ["laptop", "peer-10-8-0-3"] {
        let profile = load_profile(&exit.profiles().join(format!("{name}.toml"))).unwrap();
        assert_eq!(profile.private_key.public().0, registry.by_name(name).unwrap().public_key.0);
    }
}

#[test]
fn a_profile_of_another_exit_is_not_taken_for_an_imports_own() {
    let (exit, other) = (Exit::new(), Exit::new());
    other.import(TWO, false).unwrap();
    fs::create_dir(exit.profiles()).unwrap();
    fs::copy(other.profiles().join("laptop.toml"), exit.profiles().join("laptop.toml")).unwrap();
    for dry_run in [true, false] {
        let refused = exit.import(TWO, dry_run).unwrap_err();
        assert!(refused.contains("laptop.toml exists already"), "{refused}");
    }
    assert_eq!((exit.names().len(), exit.files()), (0, 1));
}

#[test]
fn a_file_that_is_not_utf_8_is_refused_with_its_line() {
    let exit = Exit::new();
    let file = exit.write("");
    fs::write(&file, b"[Interface]\n# B\xfcro\n[Peer]\n").unwrap();
    let args = ImportWireGuardArgs {
        file,
        output: Some(exit.profiles()),
        rename: false,
        new_keys: false,
        dry_run: true,
    };
    let refused =
        run(&exit.directories, &args, |_| unreachable!("the file is read first")).unwrap_err().to_string();
    assert!(refused.ends_with("wg0.conf:2: is not UTF-8 text; save the file as UTF-8"), "{refused}");
}
