//! Tests of the commands for clients of a stopped exit, from enrolment to removal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use warren_quic::key::{PrivateKey, PublicKey};

use super::*;
use crate::cli::args::exit::ClientNameArgs;
use crate::cli::args::{ClientAddArgs, ClientExportArgs, ClientImportArgs, ExitInitArgs};
use crate::cli::exit_init;
use warren_config::{load_clients, load_profile, lock_clients};
use warren_control::{
    AddressChoice, ClientView, ImportSummary, InvitationView, LiveView, NewClient, Page, RemovedView,
};

/// A directory with an exit that was just set up.
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
            ipv4: Some("10.66.0.0/24".parse().unwrap()),
            ipv6: Some("fd66::/64".parse().unwrap()),
            fleet: None,
        };
        exit_init::run(&directories, &init).unwrap();
        Self { directory, directories }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn add(&self, name: &str, output: &str) -> ClientAddArgs {
        ClientAddArgs {
            name: name.to_owned(),
            public_key: None,
            allow_removed: false,
            wireguard: false,
            ipv4: None,
            ipv6: None,
            prefixes: Vec::new(),
            rate_limit: None,
            output: Some(self.path(output)),
        }
    }

    fn run(&self, command: &ExitClientCommand) -> Result<(), String> {
        let state = self.directories.state.clone();
        run(&self.directories, command, |config| Ok(Box::new(StoppedExit::new(config, &state))))
            .map_err(|error| output::sentence(&error))
    }

    fn store(&self) -> PathBuf {
        self.directories.state.join("exit/clients.store")
    }

    fn stopped(&self) -> StoppedExit {
        let config = load_exit(&self.directories.config.join("exit.toml")).unwrap();
        StoppedExit::new(&config, &self.directories.state)
    }

    fn names(&self) -> Vec<String> {
        let registry = load_clients(&self.directories.state.join("exit/clients.toml")).unwrap();
        registry.iter().map(|client| client.name.clone()).collect()
    }
}

fn remove_command(name: &str) -> ExitClientCommand {
    ExitClientCommand::Remove(ClientNameArgs { name: name.to_owned() })
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn profile_of_an_enrolled_client_is_one_that_up_takes() {
    let exit = Exit::new();
    let add = ClientAddArgs {
        ipv4: Some("10.66.0.9".parse().unwrap()),
        ipv6: Some("fd66::9".parse().unwrap()),
        ..exit.add("laptop", "laptop.toml")
    };
    exit.run(&ExitClientCommand::Add(add)).unwrap();

    let profile = load_profile(&exit.path("laptop.toml")).unwrap();
    let config = load_exit(&exit.directories.config.join("exit.toml")).unwrap();
    assert_eq!(profile.exit.endpoint.to_string(), "exit.example.net:8443");
    assert_eq!(profile.exit.public_keys, [config.keys.current.public()]);
    assert!(profile.ineffective.is_empty());
    assert_eq!(mode_of(&exit.path("laptop.toml")), 0o600);

    let registry = load_clients(&config.clients_path(&exit.directories.state)).unwrap();
    let client = registry.by_name("laptop").unwrap();
    assert_eq!(client.public_key.0, profile.private_key.public().0);
    assert_eq!(
        (client.ipv4, client.ipv6),
        (Some("10.66.0.9".parse().unwrap()), Some("fd66::9".parse().unwrap()))
    );
    assert_eq!(mode_of(&exit.directories.state.join("exit")), 0o700);
    assert_eq!(mode_of(&exit.store()), 0o600);
}

#[test]
fn client_with_a_key_of_its_own_gets_a_profile_without_one() {
    let exit = Exit::new();
    let key = PrivateKey::generate().unwrap();
    let add = ClientAddArgs { public_key: Some(key.public()), ..exit.add("server", "server.toml") };
    exit.run(&ExitClientCommand::Add(add)).unwrap();

    let error = load_profile(&exit.path("server.toml")).unwrap_err().to_string();
    assert!(error.contains("server.key") && error.contains("no such file"), "{error}");
    warren_config::storage::create_new(&exit.path("server.key"), key.to_base64().as_bytes(), 0o600).unwrap();
    assert_eq!(load_profile(&exit.path("server.toml")).unwrap().private_key.public(), key.public());
}

#[test]
fn removed_client_is_gone_and_its_name_is_free() {
    let exit = Exit::new();
    exit.run(&ExitClientCommand::Add(exit.add("laptop", "one.toml"))).unwrap();
    let remove = remove_command("laptop");
    exit.run(&remove).unwrap();
    assert!(exit.names().is_empty());
    assert!(exit.run(&remove).unwrap_err().contains("there is no client \"laptop\""));
    exit.run(&ExitClientCommand::Add(exit.add("laptop", "two.toml"))).unwrap();
    assert_eq!(exit.names(), ["laptop"]);
}

#[test]
fn refused_client_leaves_no_profile_and_no_enrolment() {
    let exit = Exit::new();
    exit.run(&ExitClientCommand::Add(exit.add("laptop", "laptop.toml"))).unwrap();
    let before = fs::read_to_string(exit.path("laptop.toml")).unwrap();
    let new = |name: &str| exit.add(name, "new.toml");
    let own = load_exit(&exit.directories.config.join("exit.toml")).unwrap().keys.current.public();
    let cases = [
        (new("laptop"), "there is a client \"laptop\" already"),
        (new("Upper"), "cannot be a client's name"),
        (new(""), "cannot be a client's name"),
        (exit.add("new", "laptop.toml"), "laptop.toml exists already; name another file, or remove this one"),
        (
            exit.add("new", "nowhere/new.toml"),
            "cannot be written: no such file or directory; name another file",
        ),
        (exit.add("new", "exit.toml"), "is the exit's own; rename the file"),
        (ClientAddArgs { ipv4: Some("10.66.0.1".parse().unwrap()), ..new("new") }, "is not free for clients"),
        (
            ClientAddArgs { ipv4: Some("10.67.0.1".parse().unwrap()), ..new("new") },
            "is outside the exit's prefix",
        ),
        (
            ClientAddArgs { ipv6: Some("fd67::9".parse().unwrap()), ..new("new") },
            "is outside the exit's prefix",
        ),
        (ClientAddArgs { public_key: Some(own), ..new("new") }, "--public-key is the exit's own"),
    ];
    for (add, expected) in cases {
        let error = exit.run(&ExitClientCommand::Add(add)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(exit.names(), ["laptop"]);
    assert!(!exit.path("new.toml").exists());
    assert_eq!(fs::read_to_string(exit.path("laptop.toml")).unwrap(), before);
}

#[test]
fn change_with_which_the_exit_could_not_start_is_refused() {
    let exit = Exit::new();
    exit.run(&ExitClientCommand::Add(exit.add("laptop", "laptop.toml"))).unwrap();
    let path = exit.store();
    let before = fs::read(&path).unwrap();
    let set = |ipv4: Option<&str>, prefixes: &[&str]| {
        ExitClientCommand::Set(ClientSetArgs {
            name: "laptop".to_owned(),
            ipv4: ipv4.map(|address| AddressChoice::Fixed(address.parse().unwrap())),
            ipv6: None,
            prefixes: prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect(),
            no_prefixes: false,
            rate_limit: None,
            public_key: None,
            allow_removed: false,
        })
    };
    for (command, part) in [
        (set(Some("192.0.2.1"), &[]), "192.0.2.1"),
        (set(Some("10.66.0.1"), &[]), "10.66.0.1"),
        (set(None, &["10.66.0.128/25"]), "overlaps the exit's inner network 10.66.0.0/24"),
        (set(None, &["0.0.0.0/0"]), "a client cannot be an exit"),
        (set(None, &["198.18.0.1/16"]), "write 198.18.0.0/16"),
    ] {
        let error = exit.run(&command).unwrap_err();
        assert!(error.contains(part), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before, "nothing was written");
    }
    exit.run(&set(Some("10.66.0.9"), &["198.18.0.0/16"])).unwrap();
}

#[test]
fn registry_of_a_running_exit_is_not_written_behind_its_back() {
    let exit = Exit::new();
    fs::create_dir(&exit.directories.state).unwrap();
    let held =
        lock_clients(&exit.directories.state.join("exit/clients.toml"), std::time::Duration::ZERO).unwrap();
    let error = exit.run(&ExitClientCommand::Add(exit.add("laptop", "laptop.toml"))).unwrap_err();
    assert!(error.contains("is held by a running exit or another command"), "{error}");
    assert!(!exit.path("laptop.toml").exists());
    drop(held);
}

#[test]
fn profile_is_withdrawn_when_a_running_exit_refuses() {
    struct Refusing;
    impl ClientStore for Refusing {
        fn add(&mut self, _: &NewClient) -> anyhow::Result<()> {
            bail!("refused by the exit")
        }
        fn add_all(&mut self, _: &[NewClient]) -> anyhow::Result<()> {
            bail!("refused by the exit")
        }
        fn clients(&mut self, _: &PageQuery) -> anyhow::Result<Page<ClientView>> {
            Ok(Page { rows: Vec::new(), next: None })
        }
        fn show(&mut self, _: &str) -> anyhow::Result<ClientView> {
            bail!("refused by the exit")
        }
        fn invite(&mut self, _: &warren_session::clients::Invitation) -> anyhow::Result<()> {
            bail!("refused by the exit")
        }
        fn invitations(&mut self, _: &PageQuery) -> anyhow::Result<Page<InvitationView>> {
            Ok(Page { rows: Vec::new(), next: None })
        }
        fn is_invited(&mut self, _: &str) -> anyhow::Result<bool> {
            Ok(false)
        }
        fn removed(&mut self, _: &PageQuery) -> anyhow::Result<Page<RemovedView>> {
            Ok(Page { rows: Vec::new(), next: None })
        }
        fn remove(&mut self, _: &str) -> anyhow::Result<Option<CutOff>> {
            bail!("refused by the exit")
        }
        fn change(&mut self, _: &str, _: &ClientChange) -> anyhow::Result<Option<CutOff>> {
            bail!("refused by the exit")
        }
        fn serves_wireguard(&mut self, _: PublicKey) -> anyhow::Result<bool> {
            Ok(true)
        }
        fn import(&mut self, _: bool) -> anyhow::Result<ImportSummary> {
            bail!("refused by the exit")
        }
    }
    let exit = Exit::new();
    let command = ExitClientCommand::Add(exit.add("laptop", "laptop.toml"));
    let error = run(&exit.directories, &command, |_| Ok(Box::new(Refusing))).unwrap_err();
    assert_eq!(output::sentence(&error), "refused by the exit");
    assert!(!exit.path("laptop.toml").exists());
}

#[test]
fn exit_without_an_endpoint_cannot_write_a_profile() {
    let exit = Exit::new();
    let path = exit.directories.config.join("exit.toml");
    let text = fs::read_to_string(&path).unwrap();
    let without = text.lines().filter(|line| !line.starts_with("endpoint")).collect::<Vec<_>>().join("\n");
    fs::write(&path, without).unwrap();
    let error = exit.run(&ExitClientCommand::Add(exit.add("laptop", "laptop.toml"))).unwrap_err();
    assert!(error.contains("exit.toml: endpoint is missing in [exit]"), "{error}");
}

#[test]
fn views_survive_the_control_socket_and_read_well() {
    let exit = Exit::new();
    let add = ClientAddArgs { ipv4: Some("10.66.0.9".parse().unwrap()), ..exit.add("laptop", "laptop.toml") };
    exit.run(&ExitClientCommand::Add(add)).unwrap();
    let clients = exit.stopped().clients(&PageQuery::default()).unwrap().rows;

    let again: Vec<ClientView> = serde_json::from_str(&serde_json::to_string(&clients).unwrap()).unwrap();
    assert_eq!(again, clients);
    let now = humantime::parse_rfc3339("2026-11-26T12:00:00Z").unwrap();
    let table = view::table(&clients, "", now);
    assert_eq!(
        table,
        "NAME    STATE     ADDRESSES  LIMIT  RECEIVED  SENT  LAST SEEN\n\
         laptop  enrolled  10.66.0.9  -      -         -     never\n"
    );
    let text = view::text(clients.first().unwrap(), now);
    assert!(text.contains("state:      enrolled\n") && text.contains("prefixes:   -\n"), "{text}");
    assert!(view::table(&[], "warren exit client add", now).contains("warren exit client add NAME"));
}

#[test]
fn a_running_exits_clients_have_limit_traffic_and_relative_times() {
    let exit = Exit::new();
    let limited =
        ClientAddArgs { rate_limit: Some("20mbit".parse().unwrap()), ..exit.add("laptop", "a.toml") };
    exit.run(&ExitClientCommand::Add(limited)).unwrap();
    let mut clients = exit.stopped().clients(&PageQuery::default()).unwrap().rows;
    for client in &mut clients {
        client.last_seen = Some("2026-11-26T11:59:48Z".to_owned());
        client.created = "2026-11-01T00:00:00Z".to_owned();
        client.live = Some(LiveView {
            takes_updates: None,
            connected: true,
            remote: None,
            received_bytes: 1_500_000,
            sent_bytes: 2_300_000_000,
            rate_limited_packets: 0,
            forwards_not_in_force: Vec::new(),
        });
    }
    let now = humantime::parse_rfc3339("2026-11-26T12:00:00Z").unwrap();

    let table = view::table(&clients, "", now);
    let text = view::text(clients.first().unwrap(), now);

    assert!(table.ends_with("laptop  connected  -          20mbit  1.5 MB    2.3 GB  12 s ago\n"), "{table}");
    for line in [
        "created:    2026-11-01 00:00:00 UTC (25 days ago)",
        "last seen:  2026-11-26 11:59:48 UTC (12 s ago)",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn open_invitations_are_listed_and_removed_by_name() {
    let exit = Exit::new();
    let config = load_exit(&exit.directories.config.join("exit.toml")).unwrap();
    let mut store = StoppedExit::new(&config, &exit.directories.state);
    let arguments = InviteArgs { name: "laptop".to_owned(), expires: std::time::Duration::from_secs(60) };
    invite(&exit.directories, &arguments, |_| {
        Ok(Box::new(StoppedExit::new(&config, &exit.directories.state)))
    })
    .unwrap();

    let open = store.invitations(&PageQuery::default()).unwrap().rows;

    assert_eq!(open.iter().map(|invitation| invitation.name.as_str()).collect::<Vec<_>>(), ["laptop"]);
    let told = view::invited(&open, SystemTime::now());
    assert!(told.starts_with("laptop is invited until 2") && told.ends_with(" s\n"), "{told}");
    exit.run(&remove_command("laptop")).unwrap();
    assert!(exit.stopped().invitations(&PageQuery::default()).unwrap().rows.is_empty());
    exit.run(&ExitClientCommand::Add(exit.add("laptop", "laptop.toml"))).unwrap();
    let taken = invite(&exit.directories, &arguments, |config| {
        Ok(Box::new(StoppedExit::new(config, &exit.directories.state)))
    });
    assert!(taken.unwrap_err().to_string().contains("there is a client \"laptop\" already"));
}

#[test]
fn lists_are_read_in_pages_and_by_part_of_a_name() {
    let exit = Exit::new();
    let names: Vec<String> = (0..7).map(|number| format!("host-{number}")).collect();
    for name in &names {
        exit.run(&ExitClientCommand::Add(exit.add(name, &format!("{name}.toml")))).unwrap();
    }
    exit.run(&ExitClientCommand::Add(exit.add("laptop", "laptop.toml"))).unwrap();
    let mut stopped = exit.stopped();
    let mut listed = |query: PageQuery| {
        let page =
            all(&query, |page| stopped.clients(&PageQuery { limit: Some(2), ..page.clone() })).unwrap();
        (page.rows.into_iter().map(|client| client.name).collect::<Vec<_>>(), page.next)
    };

    assert_eq!(listed(PageQuery::default()).0.len(), 8);
    let named = PageQuery { name: Some("ost-".to_owned()), ..PageQuery::default() };
    assert_eq!(listed(named.clone()), (names.clone(), None));
    let after = PageQuery { after: Some("host-4".to_owned()), ..named };
    assert_eq!(listed(after).0, ["host-5", "host-6"]);
    let limited = PageQuery { limit: Some(4), ..PageQuery::default() };
    assert_eq!(listed(limited), (names[..4].to_vec(), Some("host-3".to_owned())));
}

#[test]
fn edited_export_is_imported_and_says_what_it_changes() {
    let exit = Exit::new();
    for name in ["laptop", "phone", "tablet"] {
        exit.run(&ExitClientCommand::Add(exit.add(name, &format!("{name}.toml")))).unwrap();
    }
    let file = exit.path("clients.toml");
    exit.run(&ExitClientCommand::Export(ClientExportArgs { file: Some(file.clone()) })).unwrap();
    assert_eq!(mode_of(&file), 0o600);
    let text = fs::read_to_string(&file).unwrap().replace("\"phone\"", "\"mobile\"");
    let (kept, _) = text.split_once("[[client]]\nname = \"tablet\"").unwrap();
    fs::write(&file, kept).unwrap();
    let import =
        |dry_run| exit.run(&ExitClientCommand::Import(ClientImportArgs { file: file.clone(), dry_run }));

    import(true).unwrap();
    assert_eq!(exit.names(), ["laptop", "phone", "tablet"]);
    import(false).unwrap();
    assert_eq!(exit.names(), ["laptop", "mobile"]);
    // Importing an older file does not bring back a removed client.
    fs::write(&file, text).unwrap();
    assert!(import(false).unwrap_err().contains("was taken from \"tablet\" for good"));
    fs::write(&file, "").unwrap();
    assert!(import(false).unwrap_err().contains("names no client"));
    assert_eq!(exit.names(), ["laptop", "mobile"]);
    let left: Vec<_> = fs::read_dir(exit.directories.state.join("exit"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(!left.iter().any(|name| name == "clients.toml.import"), "{left:?}");
}

#[test]
fn clients_of_an_earlier_version_are_imported_once() {
    let exit = Exit::new();
    exit.run(&ExitClientCommand::Add(exit.add("laptop", "laptop.toml"))).unwrap();
    let earlier = exit.directories.state.join("exit/clients.toml");
    exit.run(&ExitClientCommand::Export(ClientExportArgs { file: Some(earlier.clone()) })).unwrap();
    fs::remove_file(exit.store()).unwrap();
    assert_eq!(exit.names(), ["laptop"], "a list reads the earlier file");
    assert!(earlier.exists());

    exit.run(&ExitClientCommand::Add(exit.add("phone", "phone.toml"))).unwrap();

    assert_eq!(exit.names(), ["laptop", "phone"]);
    assert!(!earlier.exists() && exit.directories.state.join("exit/clients.toml.imported").exists());
}
