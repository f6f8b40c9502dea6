//! A fleet of three real exits. `warren-fleet` links each of them to a real etcd of three members, one on each exit's host.

use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::process::Signal;

use super::daemon::repository;
use super::{Exit, ExitOptions, Namespace, Running, eventually, seconds};

pub const NAMES: [&str; 3] = ["ams", "fra", "nyc"];

/// Three exits, their links, and the members of etcd. Dropping it ends all of them.
#[derive(Debug)]
pub struct RealFleet<'net> {
    pub exits: Vec<Exit<'net>>,
    pub links: Vec<Running>,
    pub members: Vec<Running>,
    directory: tempfile::TempDir,
}

impl<'net> RealFleet<'net> {
    /// Starts a fleet on the hosts of `Net::clients_beside(3)`. The first exit already has the clients of a `clients.toml`, and
    /// brings them into the fleet. Returns `None` without etcd.
    pub fn start(hosts: &'net [Namespace], ipv4: &str, clients: &str) -> Option<Self> {
        let etcd = etcd()?;
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let members = (0..NAMES.len()).map(|number| member(&etcd, hosts, number, directory.path())).collect();
        let mut fleet = Self { exits: Vec::new(), links: Vec::new(), members, directory };
        let options =
            ExitOptions { endpoint: endpoint(0).to_string(), ipv4: ipv4.into(), ..ExitOptions::default() };
        let first = Exit::init_on(&hosts[0], &options);
        first.configure(|config| {
            config.with("metrics", "clients", true).with("web", "listen", "127.0.0.1:9467")
        });
        let file = first.warren.write("many.toml", 0o600, clients);
        first.warren.run(&format!("exit client import {}", file.display())).ok();
        let begin = format!("fleet init --exit {} --store http://127.0.0.1:2379", NAMES[0]);
        eventually(seconds(60), "the store has taken the clients", || first.warren.run(&begin).succeeded());
        let config = first.warren.config("exit.toml");
        let section = format!("\n[fleet]\nname = \"{}\"\n", NAMES[0]);
        std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + &section).unwrap();
        fleet.exits.push(first);
        for (number, host) in hosts.iter().enumerate().skip(1) {
            let ticket = fleet.exits[0].warren.run(&format!("fleet ticket {}", NAMES[number])).ok();
            let ticket = ticket.split_whitespace().last()?;
            let exit = Exit::join(host, &endpoint(number).to_string(), ticket);
            exit.configure(|config| {
                config.with("metrics", "clients", true).with("web", "listen", "127.0.0.1:9467")
            });
            fleet.exits.push(exit);
        }
        for exit in &mut fleet.exits {
            exit.run();
            fleet.links.push(exit.warren.start("fleet run"));
        }
        for exit in &fleet.exits {
            eventually(seconds(60), "the exit has the store's clients", || store_of(exit) == "reachable");
        }
        Some(fleet)
    }

    /// Signs a roster with all exits, and waits until each of them has it.
    pub fn sign(&self) {
        let key = self.directory.path().join("fleet.key");
        let length = |exit: &Exit<'_>| exit.status().number("/fleet/roster_bytes");
        for (exit, name) in self.exits.iter().zip(NAMES) {
            let before = length(&self.exits[0]);
            let public = exit.status().text("/public_key").to_owned();
            let line = format!("fleet admit {name} --fleet-key {} --public-key {public}", key.display());
            self.exits[0].warren.run(&line).ok();
            eventually(seconds(10), "every exit has the roster", || {
                let lengths: Vec<u64> = self.exits.iter().map(length).collect();
                lengths.iter().all(|length| *length > before && *length == lengths[0])
            });
        }
    }

    /// Kills an exit, which then says goodbye to nobody.
    pub fn kill(&mut self, exit: usize) {
        self.exits[exit].stop(Signal::KILL);
    }
}

/// The state of the fleet's store, as an exit reports it.
pub fn store_of(exit: &Exit<'_>) -> String {
    exit.status().text("/fleet/store").to_owned()
}

/// Where clients reach an exit.
pub fn endpoint(number: usize) -> SocketAddr {
    format!("192.0.{}.2:443", 10 + number).parse().unwrap()
}

/// The real etcd: installed, or unpacked by `scripts/setup`.
pub fn etcd() -> Option<PathBuf> {
    let unpacked = repository().join("target/packages/etcd-server/usr/bin/etcd");
    let found = [unpacked, "/usr/bin/etcd".into()].into_iter().find(|path| path.exists());
    if found.is_none() {
        println!("skipped: this test needs etcd; scripts/setup unpacks it");
    }
    found
}

/// A member on an exit's host. Only the host itself reaches it as a client, so it needs no certificates.
fn member(
    etcd: &std::path::Path,
    hosts: &[Namespace],
    number: usize,
    directory: &std::path::Path,
) -> Running {
    let peer = |number: usize| format!("http://{}:2380", endpoint(number).ip());
    let cluster = NAMES.iter().enumerate().map(|(number, name)| format!("{name}={}", peer(number)));
    let cluster = cluster.collect::<Vec<_>>().join(",");
    let data = directory.join(NAMES[number]).display().to_string();
    let own = peer(number);
    hosts[number].start(&[
        etcd.to_str().unwrap(),
        "--name",
        NAMES[number],
        "--data-dir",
        &data,
        "--listen-client-urls",
        "http://127.0.0.1:2379",
        "--advertise-client-urls",
        "http://127.0.0.1:2379",
        "--listen-peer-urls",
        &own,
        "--initial-advertise-peer-urls",
        &own,
        "--initial-cluster",
        &cluster,
        "--initial-cluster-state",
        "new",
        "--logger",
        "zap",
        "--log-level",
        "error",
    ])
}
