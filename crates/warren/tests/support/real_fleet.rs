//! A fleet of three real exits. `warren-fleet` links each of them to a real etcd of three members, which are on the exits' hosts or on
//! hosts of their own.

use std::net::SocketAddr;

use rustix::process::Signal;

use super::etcd::{Etcd, program};
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
        let etcd = program("etcd")?;
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let members = (0..NAMES.len()).map(|number| member(&etcd, hosts, number, directory.path())).collect();
        let mut fleet = Self { exits: Vec::new(), links: Vec::new(), members, directory };
        fleet.begin(&hosts[0], ipv4, clients, "--store http://127.0.0.1:2379");
        for (number, host) in hosts.iter().enumerate().skip(1) {
            fleet.join(host, number, "");
        }
        for exit in &fleet.exits {
            exit.configure(|config| {
                config.with("metrics", "clients", true).with("web", "listen", "127.0.0.1:9467")
            });
        }
        fleet.run(&|_| Default::default());
        Some(fleet)
    }

    /// Sets up three exits without clients at a store elsewhere. They do not run yet.
    pub fn at(hosts: &'net [Namespace], etcd: &Etcd<'_>) -> Self {
        Self::with_pool(hosts, "10.66.0.0/16", etcd)
    }

    /// Does [`Self::at`] with another network for the clients.
    pub fn with_pool(hosts: &'net [Namespace], ipv4: &str, etcd: &Etcd<'_>) -> Self {
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let mut fleet = Self { exits: Vec::new(), links: Vec::new(), members: Vec::new(), directory };
        fleet.begin(&hosts[0], ipv4, "client = []\n", &etcd.init_options());
        for (number, name) in NAMES.iter().enumerate().skip(1) {
            fleet.join(&hosts[number], number, &etcd.ticket_options(name));
        }
        fleet
    }

    fn begin(&mut self, host: &'net Namespace, ipv4: &str, clients: &str, store: &str) {
        let options =
            ExitOptions { endpoint: endpoint(0).to_string(), ipv4: ipv4.into(), ..ExitOptions::default() };
        let first = Exit::init_on(host, &options);
        let file = first.warren.write("many.toml", 0o600, clients);
        first.warren.run(&format!("exit client import {}", file.display())).ok();
        let begin = format!("fleet init --exit {} {store}", NAMES[0]);
        eventually(seconds(60), "the store has taken the clients", || first.warren.run(&begin).succeeded());
        let config = first.warren.config("exit.toml");
        let section = format!("\n[fleet]\nname = \"{}\"\n", NAMES[0]);
        std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + &section).unwrap();
        self.exits.push(first);
    }

    fn join(&mut self, host: &'net Namespace, number: usize, options: &str) {
        let line = format!("fleet ticket {} {options}", NAMES[number]);
        let ticket = self.exits[0].warren.run(&line).ok();
        let ticket = ticket.split_whitespace().last().unwrap();
        self.exits.push(Exit::join(host, &endpoint(number).to_string(), ticket));
    }

    /// Starts the exits and their links. `variables` names the environment that an exit and its link have, by the exit's number.
    pub fn run(&mut self, variables: &dyn Fn(usize) -> [Vec<String>; 2]) {
        for (number, exit) in self.exits.iter_mut().enumerate() {
            let [of_exit, of_link] = variables(number);
            let under = |variables: &[String]| [&["env".to_owned()], variables].concat();
            let [of_exit, of_link] = [under(&of_exit), under(&of_link)];
            exit.run_under(&of_exit.iter().map(String::as_str).collect::<Vec<_>>());
            let of_link: Vec<&str> = of_link.iter().map(String::as_str).collect();
            self.links.push(exit.warren.start_under(&of_link, "fleet run"));
        }
        for exit in &self.exits {
            eventually(seconds(60), "the exit has the store's clients", || store_of(exit) == "reachable");
        }
    }

    /// Signs a roster of all exits, and waits until each exit has it.
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

    /// Kills an exit, so that it sends no Goodbye to its clients.
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

/// Starts a member on an exit's host. Only programs on this host can connect to it as clients, so it needs no certificates.
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
