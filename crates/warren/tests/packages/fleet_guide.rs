//! Runs `docs/fleet.md` as written: three Debian systems without Warren become a fleet, and the first of them already has a client.
//! Then the test follows the document's steps for backup, restore and leaving the fleet.

use std::time::{Duration, Instant};

use super::debian::{self, Package, typed};
use crate::support::daemon::repository;
use crate::support::{Namespace, Net, Systemd, eventually, seconds};

/// For each exit: its name, its address in the document, and its address in the test.
const EXITS: [(&str, &str, &str); 3] = [
    ("ams1", "192.0.2.1", "192.0.10.2"),
    ("fra1", "192.0.2.2", "192.0.11.2"),
    ("nyc1", "192.0.2.3", "192.0.12.2"),
];

#[test]
#[ignore = "takes minutes and a download of Debian"]
fn the_fleet_guide_makes_a_fleet_of_three_hosts_and_keeps_the_clients_through_a_lost_store_and_back() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let Some(fleet) = Package::of_fleet("1.0-1") else { return };
    let packages = [Package::of_this_build("1.0-1"), fleet];
    let (namespaces, own) = (net.clients_beside(3), net.second_client());
    let hosts = Hosts::boot(&namespaces, &own, &net.client, &packages);
    let guide = blocks("docs/fleet.md");
    let start = Instant::now();

    for (place, block) in guide.iter().take_while(|(place, _)| place != "backup") {
        hosts.follow(place, block);
        if place == "exit" {
            hosts.enrol_before_the_fleet();
        }
    }
    hosts.wait_until_all_have_heard();
    let took = start.elapsed();
    println!("measured: {} s from Debian systems to a fleet of three with a signed roster", took.as_secs());
    assert!(took < Duration::from_secs(15 * 60), "{took:?}");
    hosts.assert_the_client_has_moved_along();

    let block = |wanted: &str| {
        let found = guide.iter().find(|(place, _)| place == wanted);
        found.unwrap_or_else(|| panic!("docs/fleet.md has no block {wanted}")).1.as_str()
    };
    hosts.follow("ams1", block("backup"));
    hosts.lose_the_store();
    hosts.follow("mine", block("users"));
    hosts.assert_the_store_is_not_used();
    hosts.follow("ams1", block("recover"));
    hosts.wait_until_all_have_heard();
    hosts.assert_nothing_is_lost();

    hosts.follow("nyc1", block("leave"));
    hosts.assert_nyc1_is_alone();
    hosts.let_nyc1_join_again();
}

struct Hosts<'net> {
    exits: Vec<Systemd<'net>>,
    /// The operator's own machine.
    mine: Systemd<'net>,
    client: Systemd<'net>,
}

impl<'net> Hosts<'net> {
    fn boot(
        exits: &'net [Namespace],
        own: &'net Namespace,
        client: &'net Namespace,
        packages: &[Package; 2],
    ) -> Self {
        let packages = packages.each_ref();
        let hosts = Self {
            exits: exits.iter().map(|host| debian::boot(host, &packages)).collect(),
            mine: debian::boot(own, &packages),
            client: debian::boot(client, &packages),
        };
        let names: String =
            EXITS.iter().map(|(name, _, address)| format!("{address} {name}.example.net\n")).collect();
        for host in hosts.exits.iter().chain([&hosts.mine, &hosts.client]) {
            debian::write(host, "/etc/hosts", &format!("127.0.0.1 localhost\n{names}"));
        }
        typed(&hosts.client, &format!("apt-get -q install -y ./{}", packages[0].name())).ok();
        hosts
    }

    fn exit(&self, name: &str) -> Option<&Systemd<'net>> {
        let place = EXITS.iter().position(|(other, ..)| *other == name)?;
        self.exits.get(place)
    }

    /// Runs a block of commands on the hosts that `place` stands for.
    fn follow(&self, place: &str, block: &str) {
        let block = here(block);
        match place {
            "everywhere" => {
                self.exits.iter().chain([&self.mine]).for_each(|host| drop(typed(host, &block).ok()));
            }
            "mine" => drop(typed(&self.mine, &block).ok()),
            "copy" => block.lines().for_each(|line| self.copy(line)),
            "each" => {
                let (first, rest) = block.split_once('\n').unwrap();
                assert!(first.starts_with("name=ams1 address=192.0.10.2 "), "{first}");
                for ((name, _, address), host) in EXITS.iter().zip(&self.exits) {
                    typed(host, &format!("name={name} address={address}\n{rest}")).ok();
                }
            }
            "exit" => drop(typed(&self.exits[0], &block).ok()),
            "look" => {
                let shown = typed(&self.mine, &format!("cd ~/fleet; {block}"));
                assert!(!shown.succeeded() && shown.stderr.contains(&self.key(0)), "{shown:?}");
            }
            "sign" => {
                for (place, (name, ..)) in EXITS.iter().enumerate() {
                    let line = block
                        .replace("admit ams1", &format!("admit {name}"))
                        .replace("KEY", &self.key(place));
                    typed(&self.mine, &format!("cd ~/fleet; {line}")).ok();
                }
            }
            name => drop(typed(self.exit(name).unwrap_or_else(|| panic!("there is no {name}")), &block).ok()),
        }
    }

    /// `scp FILES root@HOST:`, from the operator's machine or from another host.
    fn copy(&self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["scp", files @ .., to] = words.as_slice() else { panic!("no scp: {line}") };
        let host = |address: &str| {
            let address = address.trim_start_matches("root@");
            let place = EXITS.iter().position(|(.., here)| *here == address);
            &self.exits[place.unwrap_or_else(|| panic!("no host {address}"))]
        };
        let to = host(to.trim_end_matches(':'));
        for file in files {
            let (from, path) = match file.split_once(':') {
                Some((address, path)) => (host(address), path.to_owned()),
                None => (&self.mine, format!("fleet/{file}")),
            };
            let text = typed(from, &format!("cat {path}; echo .")).ok();
            let name = path.rsplit('/').next().unwrap();
            debian::write(to, &format!("/root/{name}"), text.trim_end().trim_end_matches('.'));
        }
    }

    fn key(&self, place: usize) -> String {
        let status = typed(&self.exits[place], "warren status exit --json").ok();
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["public_key"].as_str().unwrap().to_owned()
    }

    /// `ams1` is an exit with a connected client before there is a fleet.
    fn enrol_before_the_fleet(&self) {
        let ams1 = &self.exits[0];
        typed(ams1, "systemctl start warren-exit").ok();
        let invitation = typed(ams1, "warren exit invite laptop").ok();
        typed(&self.client, &invitation).ok();
        typed(&self.client, "warren up laptop").ok();
    }

    fn wait_until_all_have_heard(&self) {
        let status = || typed(&self.exits[0], "warren fleet status").stdout;
        eventually(seconds(60), "all exits serve and have heard", || {
            let status = status();
            status.matches("serving").count() == 3 && status.matches("applied").count() == 3
        });
    }

    /// The client was enrolled at the exit before there was a fleet. Its session has come back without a command, and it knows
    /// all exits.
    fn assert_the_client_has_moved_along(&self) {
        eventually(seconds(60), "the client has learnt the roster", || {
            let exits = typed(&self.client, "warren exits laptop").stdout;
            EXITS.iter().all(|(name, ..)| exits.contains(&format!("{name}.example.net")))
        });
        for exit in &self.exits {
            assert!(typed(exit, "warren exit client list").ok().contains("laptop"));
            let lying_about = exit.sh("find /root -name '*.key' -o -name '*.ticket'").ok();
            assert_eq!(lying_about, "", "keys and tickets are left");
            let status = typed(exit, "warren fleet status").ok();
            assert!(
                status.contains("certificates: ca 3649, client 3649, server 192.0.10.2:2379 3649"),
                "{status}"
            );
        }
        let moved = typed(&self.client, "warren down laptop && warren up laptop --exit fra1");
        assert!(moved.succeeded(), "the client uses an exit where nobody has enrolled it: {moved:?}");
        // After the restore, the removed key must still be known.
        typed(
            &self.exits[2],
            "warren exit client add tablet >tablet.toml && warren exit client remove tablet",
        )
        .ok();
    }

    /// Deletes the data of all members of etcd.
    fn lose_the_store(&self) {
        for exit in &self.exits {
            typed(exit, "systemctl stop etcd; rm -rf /var/lib/etcd/default").ok();
        }
        for exit in &self.exits {
            typed(exit, "systemctl restart --no-block etcd").ok();
        }
    }

    /// The control: without `recover`, no client is enrolled.
    fn assert_the_store_is_not_used(&self) {
        let refused = typed(&self.exits[1], "warren exit invite phone");
        assert!(!refused.succeeded() && refused.stderr.contains("nothing was changed"), "{refused:?}");
        assert!(
            typed(&self.exits[1], "warren exit client list").ok().contains("laptop"),
            "it serves meanwhile"
        );
    }

    fn assert_nothing_is_lost(&self) {
        for exit in &self.exits {
            assert!(typed(exit, "warren exit client list").ok().contains("laptop"));
            assert!(typed(exit, "warren exit client list --removed").ok().contains("tablet"));
        }
        eventually(seconds(30), "invitations are made again", || {
            typed(&self.exits[1], "warren exit invite phone").succeeded()
        });
        // The next roster's serial number must continue from the old one.
        let line = format!(
            "warren fleet admit fra1 --fleet-key fleet.key --public-key '{}' --config-dir .",
            self.key(1)
        );
        let signed = typed(&self.mine, &format!("cd ~/fleet; {line}")).ok();
        assert!(signed.contains("Roster 4 has"), "{signed}");
    }

    fn assert_nyc1_is_alone(&self) {
        let [ams1, _, nyc1] = self.exits.as_slice() else { panic!("there are three exits") };
        assert!(
            typed(nyc1, "warren exit client list").ok().contains("laptop"),
            "no client has to enrol again"
        );
        assert!(
            !nyc1.sh("ls /etc/warren/fleet /etc/warren/fleet.toml").succeeded(),
            "the credentials are gone"
        );
        let left =
            nyc1.sh("find /var/lib/warren/fleet /var/lib/warren/exit/roster -type f ! -name lock").stdout;
        assert_eq!(left, "", "the copy and the roster are gone");
        eventually(seconds(30), "its etcd user is removed", || {
            !typed(ams1, "warren fleet status").ok().contains("nyc1")
        });
        assert!(typed(ams1, "warren fleet status").ok().contains("fra1"));
        typed(ams1, "warren exit client remove laptop").ok();
        std::thread::sleep(seconds(3));
        assert!(typed(nyc1, "warren exit client list").ok().contains("laptop"), "nothing is shared any more");
        // The control.
        assert!(!typed(&self.exits[1], "warren exit client list").ok().contains("laptop"));
    }

    /// The host comes back with a new ticket, and takes over the fleet's clients.
    fn let_nyc1_join_again(&self) {
        let [ams1, _, nyc1] = self.exits.as_slice() else { panic!("there are three exits") };
        self.copy("scp nyc1.pem nyc1.key root@192.0.10.2:");
        typed(ams1, "warren fleet ticket nyc1 --certificate nyc1.pem --key nyc1.key > nyc1.ticket").ok();
        self.copy("scp root@192.0.10.2:nyc1.ticket root@192.0.12.2:");
        let join = "warren fleet join @nyc1.ticket && printf '\n[fleet]\nname = \"nyc1\"\n' >> /etc/warren/exit.toml \
                    && systemctl restart warren-exit && systemctl enable --now warren-fleet";
        typed(nyc1, join).ok();
        self.wait_until_all_have_heard();
        assert!(!typed(nyc1, "warren exit client list").ok().contains("laptop"), "it was removed meanwhile");
    }
}

/// A block with the addresses of this test's hosts.
fn here(block: &str) -> String {
    EXITS.iter().fold(block.to_owned(), |block, (_, there, here)| block.replace(there, here))
}

/// The document's shell blocks in order, each with the place that its fence names. Blocks of lists are indented.
fn blocks(path: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(repository().join(path)).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let Some(place) = line.trim_start().strip_prefix("```sh ") else { continue };
        let block = lines.by_ref().take_while(|line| line.trim() != "```");
        let block: Vec<&str> = block.map(|line| line.get(indent..).unwrap_or_default()).collect();
        blocks.push((place.to_owned(), block.join("\n") + "\n"));
    }
    assert!(blocks.len() > 15, "{blocks:#?}");
    blocks
}
