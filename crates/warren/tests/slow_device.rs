//! An exit that cannot keep up with a client: the effects, and the fate of each packet.
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test code"
)]

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::{Congestion, Driver, TransportSettings};

use crate::support::library_client::{LibraryClient, runtime, udp};
use crate::support::memory::rss_kib;
use crate::support::{Client, Exit, Net, OpenMetrics, eventually, seconds};

const PORT: u16 = 5_400;
/// Payload bytes of a packet, so many that no two packets fit into one datagram.
const LENGTH: usize = 1_000;
/// The allowed growth of memory: a connection's limit for received datagrams (`TransportSettings::datagram_receive_buffer`), and
/// a tolerance.
const ROOM_KIB: u64 = 8 * 1024 + 4 * 1024;

/// Scorecard B11.
#[test]
#[ignore = "a measurement; `scripts/torture bounds` runs it"]
fn what_an_exit_that_stands_still_has_no_room_for_is_counted_to_the_packet() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let pid = exit.daemon().pid();
    swallow(&net, 0);
    let flooder = Flooder::start(&net, &exit);

    // The control: a load that the exit can handle.
    flooder.send(Load { packets: 300, per_second: 3_000 });
    let calm = Account::settled(&net, &exit, || flooder.sent());
    assert_eq!((calm.written, calm.socket_full), (300, 0), "{calm:?}");
    calm.assert_whole();

    let base = rss_kib(pid);
    exit.daemon().signal(Signal::STOP);
    flooder.send(Load { packets: 12_000, per_second: u64::MAX });
    exit.daemon().signal(Signal::CONT);
    let account = Account::settled(&net, &exit, || flooder.sent());
    let grown = rss_kib(pid).saturating_sub(base);
    println!(
        "measured: of {} packets {} written, {} dropped by the full socket and {} while the exit caught up; {grown} KiB more",
        account.sent.packets, account.written, account.socket_full, account.intake_full
    );
    assert!(account.socket_full > 1_000 && account.written > 1_000, "{account:?}");
    account.assert_whole();
    assert!(grown <= ROOM_KIB, "{grown} KiB");
    flooder.end();
}

/// Scorecard B11: other clients are not affected.
#[test]
#[ignore = "a measurement; `scripts/torture bounds` runs it"]
fn a_flood_beyond_what_a_slow_device_takes_costs_its_sender_alone() {
    const FLOOD: Load = Load { packets: 100_000, per_second: 20_000 };
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let second = net.second_client();
    let honest = Client::on(&second, &exit.enrol("laptop"));
    honest.up();
    let flooder = Flooder::start(&net, &exit);
    let pid = exit.daemon().pid();
    let flooded = |rules| {
        swallow(&net, rules);
        let (before, base) = (exit.status(), rss_kib(pid));
        let pinging = second.start(&["ping", "-q", "-i", "0.02", "-W", "2", Net::INTERNET_V4]);
        flooder.send(FLOOD);
        pinging.signal(Signal::INT);
        eventually(seconds(20), "ping prints its summary", || pinging.output().contains("packet loss"));
        let grown = rss_kib(pid).saturating_sub(base);
        let (after, pings) = (exit.status(), Pings::of(&pinging.output()));
        let more = |pointer: &str| after.number(pointer) - before.number(pointer);
        let dropped = more("/transport_drops/intake_full");
        let full = more("/transport_drops/socket_buffer_full");
        println!(
            "measured: behind {rules} rules: of {} packets {} written, {dropped} dropped as the flooder's and {full} by the full socket, \
             {grown} KiB more; of another client's {} pings {} answered, in {} ms on average",
            FLOOD.packets,
            more("/totals/tun_written_packets"),
            pings.sent,
            pings.answered,
            pings.mean
        );
        assert!(grown <= ROOM_KIB, "{grown} KiB");
        (dropped + full, pings)
    };

    // The control: a fast device.
    let (dropped, _) = flooded(0);
    assert!(dropped < FLOOD.packets / 10, "{dropped}");
    let (dropped, pings) = flooded(6_000);
    assert!(dropped > FLOOD.packets / 10, "{dropped}");
    assert!(pings.sent > 100 && pings.lost() * 100 <= pings.sent && pings.mean <= 50.0, "{pings:?}");
    flooder.end();
    honest.down();
}

/// The summary of a ping run.
#[derive(Debug)]
struct Pings {
    sent: u64,
    answered: u64,
    /// In milliseconds.
    mean: f64,
}

impl Pings {
    fn of(output: &str) -> Self {
        let line =
            |what| output.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{output}"));
        let mut counts = line("packet loss").split_whitespace().filter_map(|word| word.parse().ok());
        let mean = line("rtt").split('/').nth(4).unwrap().parse().unwrap();
        Self { sent: counts.next().unwrap(), answered: counts.next().unwrap(), mean }
    }

    /// Lost pings, not counting the last one, which may have been in flight.
    fn lost(&self) -> u64 {
        (self.sent - self.answered).saturating_sub(1)
    }
}

/// Drops the flood's packets when they leave the exit's TUN, after `rules` other rules. The rules slow down writes to the TUN,
/// because a write returns only after the kernel's receive path.
fn swallow(net: &Net, rules: usize) {
    let rules = "meta mark 0xdead accept; ".repeat(rules);
    let table = format!(
        "table inet slow; flush table inet slow; table inet slow {{ chain slow {{ {rules} drop; }}; \
         chain in {{ type filter hook prerouting priority raw; udp dport {PORT} jump slow; }}; }}"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules");
    std::fs::write(&file, table).unwrap();
    net.exit.sh(&format!("nft -f {}", file.display())).ok();
}

/// How many packets to send, and the maximum rate.
#[derive(Clone, Copy)]
struct Load {
    packets: u64,
    per_second: u64,
}

/// The numbers of packets and datagrams that a client has sent since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sent {
    packets: u64,
    udp_datagrams: u64,
}

/// An enrolled client on the first host, which ignores loss and congestion.
struct Flooder {
    orders: Sender<Option<Load>>,
    answers: Receiver<Sent>,
    thread: JoinHandle<()>,
}

impl Flooder {
    /// Returns once the client is connected.
    fn start(net: &Net, exit: &Exit<'_>) -> Self {
        let key = PrivateKey::generate().unwrap();
        exit.enrol_key("flooder", &key.public().to_string());
        let exit_key = exit.status().text("/public_key").parse().unwrap();
        let ((orders, ordered), (answer, answers)) = (channel(), channel());
        let thread = net.client.enter(move || runtime().block_on(flood(key, exit_key, &ordered, &answer)));
        answers.recv_timeout(seconds(30)).unwrap();
        Self { orders, answers, thread }
    }

    /// Sends the load, and returns once the last packet has left. The result covers all packets since the start.
    fn send(&self, load: Load) -> Sent {
        self.orders.send(Some(load)).unwrap();
        self.answers.recv_timeout(seconds(60)).unwrap()
    }

    /// Returns the numbers since the start.
    fn sent(&self) -> Sent {
        self.send(Load { packets: 0, per_second: 0 })
    }

    fn end(self) {
        self.orders.send(None).unwrap();
        self.thread.join().unwrap();
    }
}

async fn flood(
    key: PrivateKey,
    exit_key: PublicKey,
    ordered: &Receiver<Option<Load>>,
    answer: &Sender<Sent>,
) {
    // GSO is limited to one datagram per send, because the kernel counts a dropped batch as one.
    let settings = TransportSettings {
        driver: Driver::Warren,
        congestion: Congestion::Off.into(),
        udp_gso: false,
        ..TransportSettings::default()
    };
    let mut client = LibraryClient::start_with(key, exit_key, 1, settings);
    client.until("the client is up", |client| client.attached() == 1).await;
    let source = client.welcome().unwrap().ipv4.unwrap().0;
    let internet: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
    // Each packet has its own flow, so that the exit cannot merge them into one write.
    let packets: Vec<Vec<u8>> =
        (0..1_000).map(|port| udp(source, (internet, PORT), 30_000 + port, &[7; LENGTH])).collect();
    let mut next = packets.iter().cycle();
    let mut load = None;
    let say = |client: &LibraryClient| {
        let packets = client.stats().datagrams_sent;
        answer.send(Sent { packets, udp_datagrams: client.socket_stats().datagrams_sent() }).unwrap();
    };
    say(&client);
    loop {
        assert_eq!(client.attached(), 1, "{:?}", client.state());
        match &mut load {
            None => match ordered.try_recv() {
                Ok(Some(order)) => load = Some((order, Instant::now(), 0)),
                Ok(None) | Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            },
            Some((Load { packets, per_second }, start, sent)) => {
                let due = (start.elapsed().as_secs_f64() * *per_second as f64) as u64;
                while *sent < due.min(*packets) && client.send(next.next().unwrap()) {
                    *sent += 1;
                }
                let stats = client.stats();
                if sent == packets && stats.datagrams_sent == stats.datagrams_accepted {
                    say(&client);
                    load = None;
                }
            }
        }
        client.run(Duration::from_millis(1)).await;
    }
}

/// What the client has sent to the exit, and what became of it, both since their start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Account {
    sent: Sent,
    /// In UDP datagrams.
    received: u64,
    socket_full: u64,
    intake_full: u64,
    /// In packets.
    quic_received: u64,
    quic_full: u64,
    written: u64,
    dropped: u64,
}

impl Account {
    /// Reads the account once nothing is in flight.
    fn settled(net: &Net, exit: &Exit<'_>, sent: impl Fn() -> Sent) -> Self {
        let observe = || Self::now(net, exit, sent());
        let mut last = observe();
        eventually(seconds(60), "every sent packet is received or dropped", || {
            // The exit updates its metrics page twice a second.
            std::thread::sleep(Duration::from_millis(600));
            let waiting =
                net.exit.sh("ss -Huan 'sport = :443' | awk '{ waiting += $2 } END { print waiting }'").ok();
            let now = observe();
            std::mem::replace(&mut last, now) == now && waiting.trim() == "0"
        });
        last
    }

    fn now(net: &Net, exit: &Exit<'_>, sent: Sent) -> Self {
        let metrics = OpenMetrics::scrape(net);
        let status = exit.status();
        Self {
            sent,
            received: metrics.samples["warren_datagrams_per_receive_sum"] as u64,
            socket_full: status.number("/transport_drops/socket_buffer_full"),
            intake_full: status.number("/transport_drops/intake_full"),
            quic_received: status.number("/totals/quic_datagrams_received"),
            quic_full: status.number("/transport_drops/receive_buffer_full"),
            written: status.number("/totals/tun_written_packets"),
            dropped: status.drops("tun"),
        }
    }

    /// Asserts that every datagram and every packet sent is received or counted as a drop.
    #[track_caller]
    fn assert_whole(&self) {
        assert_eq!(self.sent.udp_datagrams, self.received + self.socket_full, "{self:?}");
        assert_eq!(self.quic_received, self.written + self.dropped + self.quic_full, "{self:?}");
        // Some dropped datagrams contain no packet, but only acknowledgements or probes.
        let without = self.sent.udp_datagrams - self.sent.packets;
        let lost = self.sent.packets - self.quic_received;
        assert!((lost..=lost + without).contains(&(self.socket_full + self.intake_full)), "{self:?}");
    }
}
