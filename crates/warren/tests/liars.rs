//! Authenticated peers that send false or malformed packets. These packets are dropped and counted, take bounded memory, and do
//! not affect others.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

mod liar;
mod lies;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use warren_quic::key::PrivateKey;
use warren_session::message::{Message, Welcome, encode};

use self::liar::Liar;
use self::lies::{Ends, Fate, Kind, honest, left_to_kernel, malformed, spoofed, to_others};
use crate::support::counters::packets_of_one;
use crate::support::lying_exit::{self, LyingExit};
use crate::support::memory::{forget_peak, peak_kib};
use crate::support::{Client, Exit, ExitOptions, Namespace, Net, Status, asked, eventually, seconds};

/// Returns how many lies of each kind are told. For row B3 of the scorecard (docs/torture.md), set `WARREN_LIES=2000`.
fn each() -> u16 {
    asked("WARREN_LIES").unwrap_or(200)
}

/// Number of honest packets per IP version, by which the test shows that the counters work.
const HONEST: u16 = 50;
/// Maximum number of lies in flight. It is less than the capacity of every buffer on the path.
const UNDER_WAY: usize = 200;
/// Limits on the growth of a daemon's memory: for all messages of a peer together, and for one kind of lie (scorecard B8).
const ROOM_KIB: u64 = 8 * 1024;
const ROOM_OF_ONE_KIB: u64 = 1024;

#[test]
#[ignore = "uses slow pure-Python cryptography; `scripts/torture --release wires` runs it"]
fn a_client_that_breaks_the_protocols_is_closed_with_the_reason_and_costs_others_nothing() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let honest = Client::with(&net, &exit.enrol("laptop"));
    honest.up();
    let line = exit.warren.run("exit invite liar").ok();
    let invitation = line.strip_prefix("warren join ").unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/liar.py");
    let second = net.second_client();

    let pinging = net.client.start(&["ping", "-q", "-i", "0.1", "-W", "5", Net::INTERNET_V4]);
    let mut room = Room::of(&exit.status());
    let mut lying = second.start(&["python3", "-u", "-B", script, invitation]);
    let mut told = 0;
    loop {
        let ended = !lying.is_running();
        // When a lie ends, the script prints its result and starts the next lie.
        let text = lying.output();
        let lines = text.matches('\n').count();
        if lines > told {
            room.take(text.lines().nth(told).unwrap());
            told = lines;
        }
        if ended {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    pinging.signal(rustix::process::Signal::INT);

    let text = lying.output();
    println!("{text}");
    assert!(lying.wait(seconds(1)) == Some(0) && text.contains("measured: "), "{text}");
    eventually(seconds(10), "ping prints its summary", || pinging.output().contains("packet loss"));
    let sum = pinging.output();
    let line = sum.lines().find(|line| line.contains("packets transmitted")).unwrap();
    let numbers: Vec<u64> = line
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    // One missing answer is allowed, because the last ping may have been in flight.
    assert!(numbers[0] - numbers[1] <= 1, "{sum}");
    room.assert_bounded_by(ROOM_OF_ONE_KIB);
    honest.down();
}

#[test]
fn what_a_lying_client_sends_reaches_nobody_and_is_counted() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("liar", &key.public().to_string());
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let second = net.second_client();
    let liar = Liar::start(&second, key, exit_key);
    let [to_v4, to_v6] = [Net::INTERNET_V4, Net::INTERNET_V6];
    let ends = Ends { ipv4: [liar.ipv4, to_v4.parse().unwrap()], ipv6: [liar.ipv6, to_v6.parse().unwrap()] };
    // Counts all packets that leave the exit apart from its carrier, and all packets that reach the internet.
    let carrier = format!("ip saddr {} udp sport 443 accept", Net::EXIT_V4);
    let left = witness(&net.router, "to-exit", &carrier);
    let arrived = witness(&net.internet.host, "eth0", "");
    let mut kinds = malformed(ends, each());
    kinds.extend(spoofed(ends, each()));
    kinds.extend(left_to_kernel(ends, each()));
    let begun = exit.status();
    let mut room = Room::of(&begun);

    for kind in &kinds {
        say_and_count(&exit, &liar, kind);
        room.take(kind.name);
    }

    let lies: u64 = kinds.iter().map(|kind| kind.packets).sum();
    let refused = exit.status().drops("tun") - begun.drops("tun");
    println!(
        "measured: of {lies} lies of {} kinds {refused} counted, {} left to the kernel, {} passed on",
        kinds.len(),
        lies - refused,
        left()
    );
    assert_eq!((left(), arrived()), (0, 0), "packets left the exit, or arrived");
    room.assert_bounded_by(ROOM_OF_ONE_KIB);

    // The control: honest packets, with the sender's own addresses.
    liar.say(&honest(ends, HONEST));
    let sent = 2 * u64::from(HONEST);
    eventually(seconds(10), "honest packets pass", || arrived() >= sent);
    assert_eq!((left(), arrived()), (sent, sent));
    eventually(seconds(10), "the liar gets an answer", || {
        liar.has_heard(|packet| packet.len() == 33 && packet[9] == 17)
    });
    let other = Client::with(&net, &exit.enrol("laptop"));
    other.up();
    other.sh("ping -c 1 -W 5 203.0.113.2");
    other.down();
    liar.end();
}

#[test]
fn what_a_lying_exit_sends_reaches_no_program_and_its_connection_is_closed() {
    let Some(net) = Net::new() else { return };
    let key = PrivateKey::generate().unwrap();
    // The real exit is used only for its profile. A lying exit listens in its place.
    let profile = Exit::init(&net, &ExitOptions::default()).enrol("laptop");
    let client = Client::with(&net, &profile.with_exit("public_key", key.public().to_string()));
    let ends = Ends {
        ipv4: [lying_exit::GATEWAY, lying_exit::LEASE],
        // The lying exit has not assigned these addresses.
        ipv6: ["fd99::1", "fd99::2"].map(|address| address.parse::<Ipv6Addr>().unwrap()),
    };
    let mut kinds = malformed(ends, each());
    kinds.extend(to_others(ends, each()));
    let mut datagrams: Vec<Vec<u8>> = kinds.iter().flat_map(|kind| kind.datagrams.clone()).collect();
    datagrams.extend(honest(ends, HONEST).into_iter().take(HONEST.into()));
    let exit = LyingExit::start(&net, key, datagrams, encode(&Message::Welcome(Welcome::default())));
    let _daemon = client.run("info");
    // Replies to the client's own echo requests to its exit are not counted.
    let answers = format!("ip saddr {} icmp type echo-reply accept", lying_exit::GATEWAY);
    let came_out = witness(&net.client, "warren0", &answers);
    let before = client.status();
    let mut room = Room::of(&before);

    exit.lie(seconds(60));

    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for kind in &kinds {
        let Fate::Refused(reason) = kind.fate else { panic!("{} is not a lie to a client", kind.name) };
        *expected.entry(reason).or_default() += kind.packets;
    }
    let lies: u64 = expected.values().sum();
    let refused = |status: &Status| status.drops("tun") - before.drops("tun");
    let mut after = client.status();
    eventually(seconds(20), "the lies are counted", || {
        after = client.status();
        refused(&after) >= lies && after.number("/totals/assemblies_pending") == 0
    });
    let added = |reason: &str| after.drop("tun", reason) - before.drop("tun", reason);
    // Fragments that were pending when the connection ended count as lost with it, not as timed out.
    *expected.get_mut("fragment_timeout").unwrap() -= added("connection_lost");
    let counted: BTreeMap<&str, u64> = expected.keys().map(|reason| (*reason, added(reason))).collect();
    println!("measured: of {lies} lies of {} kinds {} counted", kinds.len(), refused(&after));
    assert_eq!(counted, expected);
    assert_eq!(refused(&after), lies);
    // Only the honest packets have left the tunnel.
    assert_eq!(came_out(), u64::from(HONEST));
    room.take("all kinds together");
    room.assert_bounded_by(ROOM_KIB);
    // The lying exit then sends a second Welcome.
    eventually(seconds(20), "the connection is closed because of the second Welcome", || {
        client.status().number("/totals/connections_ended") > before.number("/totals/connections_ended")
    });
}

/// Sends all lies of one kind, and fails unless each packet is counted under its reason.
#[track_caller]
fn say_and_count(exit: &Exit<'_>, liar: &Liar, kind: &Kind) {
    let before = exit.status();
    let mut after = before.clone();
    let mut said = 0;
    for datagrams in kind.datagrams.chunks(UNDER_WAY) {
        liar.say(datagrams);
        said += datagrams.len() as u64;
        eventually(seconds(20), kind.name, || {
            after = exit.status();
            let came = |status: &Status| status.number("/totals/carrier_received_datagrams");
            came(&after) - came(&before) >= said
        });
    }
    let added = |after: &Status, field: &str| after.number(field) - before.number(field);
    eventually(seconds(20), kind.name, || {
        after = exit.status();
        added(&after, "/totals/carrier_received_packets") >= kind.packets
            && after.number("/totals/assemblies_pending") == 0
    });
    let refused = after.drops("tun") - before.drops("tun");
    let written = added(&after, "/totals/tun_written_packets");
    let (as_it_is, expected) = match kind.fate {
        Fate::Refused(reason) => {
            (added(&after, &format!("/drops_to_tun/{reason}")), (kind.packets, kind.packets, 0))
        }
        Fate::LeftToKernel => (0, (0, 0, kind.packets)),
    };
    assert_eq!(
        (as_it_is, refused, written),
        expected,
        "{}: drops under its reason, drops in all, packets written",
        kind.name
    );
    assert_eq!(added(&after, "/totals/carrier_received_packets"), kind.packets, "{}", kind.name);
}

/// Counts every packet that a host receives on a device, except neighbour discovery and what `rules` accept.
fn witness<'host>(host: &'host Namespace, device: &str, rules: &str) -> impl Fn() -> u64 + use<'host> {
    let neighbours = "ether type arp accept; icmpv6 type { 131, 132, 133, 134, 135, 136, 143 } accept;";
    let hook = format!("type filter hook ingress device \"{device}\" priority 0;");
    let table =
        format!("table netdev witness {{ chain received {{ {hook} {neighbours} {rules}; counter; }}; }}");
    host.sh(&format!("nft '{table}'")).ok();
    move || packets_of_one(&host.sh("nft list table netdev witness").ok())
}

/// The peak memory of a daemon, for each lie.
struct Room {
    pid: i32,
    first_kib: u64,
    before_kib: u64,
    /// The growth of the peak memory for each lie.
    added: Vec<(u64, String)>,
    most_kib: u64,
}

impl Room {
    fn of(daemon: &Status) -> Self {
        let pid = i32::try_from(daemon.number("/pid")).unwrap();
        let now_kib = forget_peak(pid);
        Self { pid, first_kib: now_kib, before_kib: now_kib, added: Vec::new(), most_kib: 0 }
    }

    /// Records the growth since the last call under `lie`.
    fn take(&mut self, lie: &str) {
        let peak = peak_kib(self.pid);
        self.most_kib = self.most_kib.max(peak);
        self.added.push((peak.saturating_sub(self.before_kib), lie.to_owned()));
        self.before_kib = forget_peak(self.pid);
    }

    #[track_caller]
    fn assert_bounded_by(&self, one_kib: u64) {
        let (most, lie) = self.added.iter().max().unwrap();
        let all = self.most_kib.saturating_sub(self.first_kib);
        println!("measured: {all} KiB more at most, {most} during {lie}");
        assert!(*most <= one_kib, "{:?}", self.added);
        assert!(all <= ROOM_KIB, "{:?}", self.added);
    }
}
