//! Warren: the binary that this repository ships, set up with the commands that users type, and with the settings of the peer.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::Value;
use toml::Table;

use super::{
    install,
    peer::Peer,
    tunnel::{EXIT, Start, Tunnel, Turn, UP},
};
use crate::{
    interrupt::Interrupt,
    namespace::Namespace,
    vpn::{
        load::first_reply,
        process::{self, Process},
        topology::{Topology, wait_for},
    },
};

/// Timeout for building the shipped binary, which takes minutes.
const BUILD: Duration = Duration::from_secs(30 * 60);
const COMMAND: Duration = Duration::from_secs(20);
const PROFILE: &str = "home";
/// The name of the setting for the exit's number of forwards.
const FORWARDS: &str = "forwards";
const FIRST_FORWARD: u16 = 10_001;
/// Settings that are not written to Warren's configuration.
const OWN_SETTINGS: [&str; 3] = ["binary", "name", FORWARDS];

/// Builds the binary that this repository ships, unless a setting names another one.
pub(super) fn find(peer: &Peer, interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    let program = match peer.setting("binary") {
        Some(path) => std::path::absolute(path).context("cannot make a path absolute")?,
        None => build(interrupt)?,
    };
    if !program.is_file() {
        bail!("there is no program {}", program.display());
    }
    let programs = vec![program];
    Ok((install::version(&programs, &["--version"], interrupt), programs))
}

fn build(interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    eprintln!("building warren (takes minutes the first time)");
    let built = process::run_to_success(&mut Command::new(root.join("scripts/build")), BUILD, interrupt)
        .context("cannot build warren")?;
    // The build script may warn that it built without profile-guided optimisation. The user must see this warning, because it
    // affects the figures.
    built
        .errors
        .lines()
        .filter(|line| line.starts_with("scripts/build:"))
        .for_each(|line| eprintln!("{line}"));
    let program = PathBuf::from(built.output.trim());
    program.canonicalize().with_context(|| format!("cannot find {}", program.display()))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    let Start { topology, .. } = start;
    let client = End::new(start, &topology.client, "client")?;
    let exit = Exit::start(start, "", &[])?;
    let mut profile = exit.client;
    // Some tests have servers on the client's host, so the client must accept incoming connections. Earlier builds do not have
    // this setting and always accept them.
    if exit.knows_forwards {
        profile.push_str("\n[forwards]\nallow = [\"tcp/1-65535\", \"udp/1-65535\"]\n");
    }

    start.write(&format!("client/config/{PROFILE}.toml"), &profile)?;
    client.change(&format!("{PROFILE}.toml"), "", &["transport", "tun", "dns", "routes"])?;
    // Setup time starts with `warren up` and does not include making the profile.
    let began = Instant::now();
    client.warren(&["up", PROFILE])?;
    first_reply(topology, EXIT, UP, start.interrupt)?;
    let setup = began.elapsed();

    let status = client.status()?;
    let address =
        status.pointer("/session/ipv4").and_then(Value::as_str).context("the client has no address")?;
    Ok(Tunnel {
        // In the status, the address has a prefix length, which is removed here.
        client_address: address.split('/').next().unwrap_or(address).to_owned(),
        exit_address: EXIT.to_owned(),
        // The daemon is not a child of the benchmark. It ends when the namespace's processes are ended.
        client_pids: vec![process_id(&status)?],
        exit_pids: vec![exit.daemon.id()],
        setup: Some(setup),
        _processes: vec![exit.daemon],
        _files: Vec::new(),
    })
}

/// A running exit with one client.
pub(super) struct Exit {
    pub(super) daemon: Process,
    /// The text of the client's profile, or of its WireGuard configuration.
    pub(super) client: String,
    knows_forwards: bool,
}

impl Exit {
    /// Starts an exit, and adds a client to it with `options`. `configuration` is appended to the exit's configuration.
    pub(super) fn start(start: &Start<'_>, configuration: &str, options: &[&str]) -> anyhow::Result<Self> {
        let exit = End::new(start, &start.topology.exit, "exit")?;
        let endpoint = format!("{}:443", Topology::EXIT);
        let networks = ["--ipv4", "10.98.0.0/24", "--ipv6", "fd98::/64"];
        exit.warren(&[&["exit", "init", "--endpoint", &endpoint], &networks[..]].concat())?;
        exit.change("exit.toml", configuration, &["transport"])?;
        let client = exit.warren(&[&["exit", "client", "add", "bench"], options].concat())?;
        let knows_forwards = exit.warren(&["exit", "client", "forward", "list"]).is_ok();
        let forwards = start.installed.peer.setting(FORWARDS).unwrap_or("0");
        let forwards: u16 = forwards.parse().context("forwards=N needs a number")?;
        // The forwards lead to additional clients, because one client can have at most 64 forwards. These clients never connect,
        // but their addresses are fixed, so the firewall rules exist.
        for number in 0..forwards {
            let (name, at) = (format!("other-{}", number / 50), 100 + number / 50);
            if number % 50 == 0 {
                let addresses = [format!("10.98.0.{at}"), format!("fd98::{at}")];
                let [ipv4, ipv6] = &addresses;
                exit.warren(&["exit", "client", "add", &name, "--ipv4", ipv4, "--ipv6", ipv6])?;
            }
            let port = format!("tcp/{}", FIRST_FORWARD + number);
            exit.warren(&["exit", "client", "forward", "add", &name, &port])?;
        }
        let mut daemon = Process::start(
            "warren-exit",
            start.topology.path(),
            exit.host.command(exit.program).args(exit.line(&["exit", "run"])),
        )?;
        // `status` fails until the exit is up.
        wait_for("the start of Warren's exit", UP, start.interrupt, || {
            daemon.check()?;
            Ok(exit.status().ok())
        })?;
        Ok(Self { daemon, client, knows_forwards })
    }
}

/// Takes the tunnel down and brings it up again.
pub(super) fn turn(start: &Start<'_>) -> anyhow::Result<Turn> {
    let client = End::new(start, &start.topology.client, "client")?;
    let began = Instant::now();
    client.warren(&["down", PROFILE])?;
    let down = began.elapsed();
    let began = Instant::now();
    client.warren(&["up", PROFILE])?;
    first_reply(start.topology, EXIT, UP, start.interrupt)?;
    Ok(Turn { up: began.elapsed(), down })
}

/// Warren on one host, with directories of its own.
struct End<'a> {
    start: &'a Start<'a>,
    host: &'a Namespace,
    program: &'a str,
    directory: PathBuf,
}

impl<'a> End<'a> {
    fn new(start: &'a Start<'a>, host: &'a Namespace, role: &str) -> anyhow::Result<Self> {
        let directory = start.topology.path().join(role);
        for name in ["config", "runtime", "state"] {
            std::fs::create_dir_all(directory.join(name)).context("cannot make a directory for Warren")?;
        }
        Ok(Self { start, host, program: start.installed.program(0)?, directory })
    }

    fn line(&self, arguments: &[&str]) -> Vec<String> {
        let option = |name: &str| format!("--{name}-dir={}", self.directory.join(name).display());
        let own = ["config", "runtime", "state"].map(option).into_iter();
        own.chain(arguments.iter().map(|&argument| argument.to_owned())).collect()
    }

    fn warren(&self, arguments: &[&str]) -> anyhow::Result<String> {
        process::run(
            self.host.command(self.program).args(self.line(arguments)),
            COMMAND,
            self.start.interrupt,
        )
    }

    fn status(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.warren(&["status", "--json"])?).context("warren status printed no JSON")
    }

    /// Adds lines and the peer's settings of these sections to a file that Warren has made.
    fn change(&self, file: &str, lines: &str, sections: &[&str]) -> anyhow::Result<()> {
        let path = self.directory.join("config").join(file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let changed = with_settings(&(text + lines), &self.start.installed.peer.settings, sections)?;
        // The file is overwritten in place, so it keeps its mode, and the key in it stays secret.
        std::fs::write(&path, changed).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns a configuration with the settings of these sections. A key without a section belongs to `[transport]`.
fn with_settings(text: &str, settings: &[(String, String)], sections: &[&str]) -> anyhow::Result<String> {
    let mut table: Table = text.parse().context("Warren's configuration is not TOML")?;
    if sections.contains(&"dns") {
        // The tests need no DNS, and the host's resolver configuration must not change.
        set(&mut table, "dns", "servers", toml::Value::Array(Vec::new()))?;
    }
    for (key, value) in settings.iter().filter(|(key, _)| !OWN_SETTINGS.contains(&key.as_str())) {
        let (section, key) = key.split_once('.').unwrap_or(("transport", key));
        if sections.contains(&section) {
            set(&mut table, section, key, toml_value(value))?;
        }
    }
    Ok(table.to_string())
}

fn set(table: &mut Table, section: &str, key: &str, value: toml::Value) -> anyhow::Result<()> {
    let entry = table.entry(section).or_insert_with(|| Table::new().into());
    let section = entry.as_table_mut().with_context(|| format!("{section} is not a section"))?;
    section.insert(key.to_owned(), value);
    Ok(())
}

/// Returns a number or a boolean if the text is one, or else a string.
fn toml_value(text: &str) -> toml::Value {
    match (text.parse::<i64>(), text.parse::<bool>()) {
        (Ok(number), _) => number.into(),
        (_, Ok(truth)) => truth.into(),
        _ => text.into(),
    }
}

fn process_id(status: &Value) -> anyhow::Result<u32> {
    let pid = status.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
    pid.context("warren status names no process")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn settings_go_to_their_sections_and_keep_their_types() {
        let text = "[client]\nprivate_key = \"x\"\n[transport]\nconnections = 4\n";
        let changes = settings(&[
            ("congestion", "bbr3"),
            ("connections", "1"),
            ("tun.mtu", "1400"),
            ("udp_gso", "false"),
        ]);
        let changed = with_settings(text, &changes, &["transport", "tun", "dns"]).unwrap();
        let table: Table = changed.parse().unwrap();
        assert_eq!(table["transport"]["congestion"].as_str(), Some("bbr3"));
        assert_eq!(table["transport"]["connections"].as_integer(), Some(1));
        assert_eq!(table["transport"]["udp_gso"].as_bool(), Some(false));
        assert_eq!(table["tun"]["mtu"].as_integer(), Some(1_400));
        assert_eq!(table["client"]["private_key"].as_str(), Some("x"));
        assert!(table["dns"]["servers"].as_array().unwrap().is_empty());
    }

    #[test]
    fn exit_gets_only_what_is_for_it() {
        let changes = settings(&[("tun.mtu", "1400"), ("binary", "/x"), ("name", "new"), ("driver", "noq")]);
        let table: Table = with_settings("[exit]\n", &changes, &["transport"]).unwrap().parse().unwrap();
        assert_eq!(table["transport"]["driver"].as_str(), Some("noq"));
        assert!(table.get("tun").is_none() && table.get("dns").is_none());
        assert_eq!(table["transport"].as_table().unwrap().len(), 1);
    }

    #[test]
    fn process_is_the_one_that_status_names() {
        assert_eq!(process_id(&serde_json::json!({"pid": 4711})).unwrap(), 4_711);
        assert!(process_id(&serde_json::json!({})).is_err());
    }
}
