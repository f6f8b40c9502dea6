//! After a forged packet from the address of an exit or a resolver, a program's packets look like answers to it. They must pass
//! neither the kill switch nor the DNS guard.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::cell::Cell;
use std::time::Duration;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, ExitOptions, Net, eventually, seconds};

/// Sends one datagram from any source address: FROM PORT ADDRESS PORT DEVICE.
const SEND: &str = "import socket, sys\n\
                    source, sport, address, port, device = sys.argv[1:]\n\
                    v6 = ':' in address\n\
                    sender = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)\n\
                    if device == 'forged': sender.setsockopt(41 if v6 else 0, 75 if v6 else 19, 1)\n\
                    elif device: sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())\n\
                    sender.bind((source, int(sport)))\n\
                    try: sender.sendto(b'x', (address, int(port)))\n\
                    except OSError: pass";
/// The addresses and ports of exit and resolver, each with this host's address of the same IP version.
const EXITS: [[&str; 3]; 2] = [[Net::CLIENT_V4, Net::EXIT_V4, "443"], [Net::CLIENT_V6, Net::EXIT_V6, "443"]];
const RESOLVERS: [[&str; 3]; 2] =
    [[Net::CLIENT_V4, Net::INTERNET_V4, "53"], [Net::CLIENT_V6, Net::INTERNET_V6, "53"]];

struct Forger<'net> {
    net: &'net Net,
    port: Cell<u16>,
}

impl<'net> Forger<'net> {
    fn on(net: &'net Net) -> Self {
        let table = "table netdev forged { counter arrived { }; chain received { \
                     type filter hook ingress device to-client priority -400; \
                     udp sport 20000-20999 counter name arrived; }; }";
        net.router.sh(&format!("nft '{table}'")).ok();
        net.client.sh("ping -c 1 -W 5 192.0.2.1; ping -c 1 -W 5 2001:db8:1::1").ok();
        Self { net, port: Cell::new(20_000) }
    }

    fn arrived(&self) -> u64 {
        packets_of_one(&self.net.router.sh("nft list counter netdev forged arrived").ok())
    }

    /// Whether an unprivileged program gets a packet to the `remote` end outside the tunnel. The program sends from a port that
    /// has received a forged packet from that end. Its socket is bound to `device`, or follows the routes if that is empty.
    fn gets_out(&self, [own, remote, remote_port]: [&str; 3], device: &str) -> bool {
        let port = self.port.replace(self.port.get() + 1).to_string();
        let forge = ["python3", "-c", SEND, remote, remote_port, own, &port, "forged"];
        let forged = crate::support::finished(&mut self.net.router.command(&forge));
        assert!(forged.succeeded(), "{forged:?}");
        std::thread::sleep(Duration::from_millis(50));
        let before = self.arrived();
        let without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
        let answer = ["python3", "-c", SEND, own, &port, remote, remote_port, device];
        let sent =
            crate::support::finished(&mut self.net.client.command(&[&without_rights[..], &answer].concat()));
        assert!(sent.succeeded(), "{sent:?}");
        (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            self.arrived() > before
        })
    }

    #[track_caller]
    fn assert_shut(&self, ends: &[[&str; 3]], when: &str) {
        for end in ends {
            for device in ["eth0", ""] {
                assert!(!self.gets_out(*end, device), "a packet got out to {end:?} by {device:?}, {when}");
            }
        }
    }
}

#[test]
fn a_forged_packet_from_an_exit_or_a_resolver_does_not_open_the_kill_switch() {
    let Some(net) = Net::new() else { return };
    let resolvers = format!("nameserver {}\nnameserver {}\n", Net::INTERNET_V4, Net::INTERNET_V6);
    std::fs::write(net.client.etc().join("resolv.conf"), resolvers).unwrap();
    let exit =
        Exit::start_with(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let forger = Forger::on(&net);
    let ends = [EXITS, RESOLVERS].concat();
    assert!(ends.iter().all(|end| forger.gets_out(*end, "eth0")), "before the kill switch is closed");

    let daemon = client.run("info");
    let rules = client.sh("nft list table inet warren-kill-switch_home");
    assert!(EXITS.iter().any(|[_, end, port]| rules.contains(&format!("{end} . {port}"))), "{rules}");
    forger.assert_shut(&ends, "up");

    drop(daemon);
    forger.assert_shut(&ends, "the daemon was killed");
    // The control: without the rule about answers, the packets leave. The daemon was killed, so it does not restore the table.
    client.sh(
        "h=$(nft -a list chain inet warren-kill-switch_home carrier | sed -n 's/.*ct mark .* return # handle //p'); \
         nft delete rule inet warren-kill-switch_home carrier handle $h",
    );
    assert!(ends.iter().any(|end| forger.gets_out(*end, "eth0")), "without the rule the packets get out");

    // The daemon's own packets can still leave, from any port.
    client.up();
    client.sh("ping -c 1 -W 5 203.0.113.2");
    client.down();
}

#[test]
fn a_forged_packet_from_a_resolver_lets_no_query_past_the_guard() {
    let Some(net) = Net::new() else { return };
    let exit =
        Exit::start_with(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    let client = Client::with(&net, &exit.enrol("laptop").with("dns", "servers", vec![Net::INTERNET_V4]));
    let forger = Forger::on(&net);
    assert!(RESOLVERS.iter().all(|end| forger.gets_out(*end, "eth0")), "before the tunnel is up");

    client.up();
    forger.assert_shut(&RESOLVERS, "up");
    // Answers to and from other ports leave through the device on which the forged packet came in.
    let others = RESOLVERS.map(|[own, end, _]| [own, end, "5300"]);
    assert!(others.iter().all(|end| forger.gets_out(*end, "")), "answers are routed outside");
    eventually(seconds(20), "the tunnel works", || net.client.sh("ping -c 1 -W 1 203.0.113.2").succeeded());
    client.down();
}
