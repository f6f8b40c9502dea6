//! Runs `docs/ten-minutes.md` as written: from Debian systems without Warren to traffic through the exit. Then runs the
//! commands of the documents that continue from it.

use super::debian::{self, Package, typed};
use crate::support::daemon::repository;
use crate::support::{HostState, Net, Systemd, eventually, flows, seconds};

#[test]
#[ignore = "takes a minute and a download of Debian"]
fn the_ten_minute_guide_leads_to_traffic_through_the_exit_that_survives_a_reboot() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let start = std::time::Instant::now();
    let guide = Guide::read("docs/ten-minutes.md");
    // The guide's own command builds the binary. This test uses the one that is already built.
    assert_eq!(guide.blocks("build"), ["scripts/package\n"]);
    let package = Package::of_this_build("1.0-1");
    let [exit, client] = [&net.exit, &net.client].map(|host| debian::boot(host, &[&package]));
    let before = HostState::of(&net.client);

    guide.follow(&exit, &client);
    assert_through_the_exit(&client);
    println!(
        "measured: {} s from two Debian systems to traffic, installation included",
        start.elapsed().as_secs()
    );
    for document in ["docs/clients.md", "docs/routes.md"] {
        Guide::read(document).follow(&exit, &client);
        assert_through_the_exit(&client);
    }

    let (exit_files, client_files) = (exit.cut_power(), client.cut_power());
    // A freshly booted kernel does not forward.
    net.exit.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0").ok();
    let _exit = Systemd::boot(&net.exit, exit_files);
    let client = Systemd::boot(&net.client, client_files);
    eventually(seconds(30), "the tunnel is up again", || client.is_active("warren@laptop"));
    assert_through_the_exit(&client);
    typed(&client, "warren down").ok();
    before.assert_same(&HostState::of(&net.client));
}

#[track_caller]
fn assert_through_the_exit(client: &Systemd<'_>) {
    let from =
        |internet, port| flows::seen_from(client.host, internet, port).map(|seen| seen.ip().to_string());
    assert_eq!(from(Net::INTERNET_V4, 20_000).as_deref(), Some(Net::EXIT_V4));
    assert_eq!(from(Net::INTERNET_V6, 20_001).as_deref(), Some(Net::EXIT_V6));
    client.sh("curl -sS --fail --retry 3 http://www.example.org/").ok();
}

/// A document's shell blocks in order, each with the machine that its fence names: "```sh exit".
struct Guide(Vec<(String, String)>);

impl Guide {
    fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(repository().join(path)).unwrap();
        let mut blocks = Vec::new();
        for part in text.split("\n```sh ").skip(1) {
            let (place, rest) = part.split_once('\n').unwrap();
            let (block, _) = rest.split_once("```").unwrap();
            blocks.push((place.to_owned(), block.to_owned()));
        }
        Self(blocks)
    }

    /// Runs every block on its machine. Each must succeed.
    fn follow(&self, exit: &Systemd<'_>, client: &Systemd<'_>) {
        let mut invitation = String::new();
        for (place, block) in &self.0 {
            match place.as_str() {
                "exit" => {
                    let said = typed(exit, block).ok();
                    if block.contains("exit init") {
                        debian::allow_internet(exit);
                    }
                    let line = said.lines().find(|line| line.starts_with("warren join "));
                    invitation = line.map_or(invitation, str::to_owned);
                }
                // The invitation is the only text that the document cannot contain.
                "client" => drop(typed(client, &block.replace("warren join warren1:...", &invitation)).ok()),
                _ => {}
            }
        }
    }

    fn blocks(&self, place: &str) -> Vec<&str> {
        self.0.iter().filter(|(other, _)| other == place).map(|(_, block)| block.as_str()).collect()
    }
}
