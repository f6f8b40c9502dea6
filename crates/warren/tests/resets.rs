//! Forged ends of connections: stateless resets and closes that the peer never sent.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::HashSet;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_quic::driver::CloseReason;
use warren_quic::key::PrivateKey;

use crate::support::forged::{Forger, answered, stranger, swallow_answers};
use crate::support::tapped::{Id, TappedClient};
use crate::support::{Client, Exit, ExitOptions, Net, asked, eventually, seconds};

/// The length of a payload to the exit in bytes.
const LENGTH: usize = 300;

/// Scorecard B7.
#[test]
#[ignore = "takes a while; `scripts/torture forged` runs it"]
fn a_hundred_thousand_forged_ends_end_no_connection_and_next_to_nothing_is_said_to_them() {
    const EACH: u32 = 25_000;
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    swallow_answers(&net);
    let status = exit.status();
    let remotes: Vec<SocketAddrV4> = status
        .list("/connections")
        .iter()
        .map(|connection| connection["remote"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(remotes.len(), 4);
    let listener = SocketAddrV4::new(Net::EXIT_V4.parse().unwrap(), 443);
    let forger = Forger::on(&net.second_client());
    // Any 32 unpredictable bytes can be used.
    let secrets: Vec<Vec<u8>> =
        (0..64).map(|_| PrivateKey::generate().unwrap().public().0.repeat(LENGTH / 32 + 1)).collect();
    // There are two forms: one looks like a packet with a short header, as a stateless reset does; the other looks like a
    // Handshake packet with a close.
    let forged = |number: u32, long: bool| {
        let secret = &secrets[usize::try_from(number).unwrap() % secrets.len()];
        let mut datagram = secret[..LENGTH].to_vec();
        datagram[0] = if long { 0xe0 | datagram[0] & 3 } else { 0x40 | datagram[0] & 0x3f };
        if long {
            datagram[1..5].copy_from_slice(&1_u32.to_be_bytes());
            datagram[5] = 8;
        }
        datagram[20..24].copy_from_slice(&number.to_be_bytes());
        datagram
    };
    let pinging = net.client.start(&["ping", "-q", "-i", "0.05", "-W", "5", Net::INTERNET_V4]);
    let start = Instant::now();
    for number in 0..EACH {
        let remote = remotes[usize::try_from(number).unwrap() % remotes.len()];
        forger.send_to(listener, remote, &forged(number, false));
        forger.send_to(listener, remote, &forged(number, true));
        forger.send_to(remote, listener, &forged(number, number % 2 == 0));
        forger.send_to(stranger(number), listener, &forged(number, false));
        if number % 5 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let took = start.elapsed();
    pinging.signal(Signal::INT);
    eventually(seconds(10), "ping prints its summary", || pinging.output().contains("packet loss"));
    let pings = pinging.output().lines().find(|line| line.contains("packet loss")).unwrap().to_owned();
    let (resets, _) = answered(&net);
    let ended = |status: &crate::support::Status| status.number("/totals/connections_ended");
    println!(
        "measured: {} forged ends in {took:.1?}: {} connections ended, {resets} resets for packets of no connection; {pings}",
        4 * EACH,
        ended(&client.status()) + ended(&exit.status()),
    );
    assert_eq!((ended(&client.status()), ended(&exit.status())), (0, 0));
    // The exit has never issued any of these connection IDs.
    assert_eq!(resets, 0);
    let lost: f64 =
        pings.split_whitespace().find_map(|word| word.strip_suffix('%')).unwrap().parse().unwrap();
    assert!(lost <= 1.0, "{pings}");
    client.down();
}

/// Scorecard B7 with genuine resets: at most `WARREN_RESETS=50` per second.
#[test]
fn an_exit_that_was_killed_ends_old_connections_by_few_resets_each_shorter_than_what_it_answers() {
    // There are so many connections that each address of each worker gets more packets than it may answer in a second.
    const CONNECTIONS: usize = 64;
    const WORKERS: u8 = 2;
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("transport", "workers", i64::from(WORKERS)));
    exit.run();
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let (to_test, from_clients) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let clients = net.client.enter(move || {
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| TappedClient::connect(exit_key)).collect();
        to_test.send(()).unwrap();
        may_go_on.recv().unwrap();
        let mut last = clients.pop().unwrap();
        last.spoil(true);
        let end_by_spoilt = last.end(seconds(2));
        last.spoil(false);
        let end = last.end(seconds(5));
        let ids: Vec<Id> = clients.iter().map(TappedClient::id).collect();
        (end_by_spoilt, last.spoilt(), end, ids.clone(), Heard::by_repeating(&ids))
    });
    from_clients.recv().unwrap();
    exit.stop(Signal::KILL);
    exit.run();
    go_on.send(()).unwrap();
    let (end_by_spoilt, spoilt, end, ids, heard) = clients.join().unwrap();

    let most = heard.most_in_a_second();
    let longest = heard.resets.iter().map(|reset| reset.length).max().unwrap_or_default();
    println!(
        "measured: {} packets of {} connections of an earlier process, in {REPEATING:?}, got {} resets of at most {longest} bytes, at \
         most {most} in a second; a genuine reset ends a connection, {spoilt} resets with a wrong bit did not; IDs that were never \
         issued and packets that are too short got {} resets",
        heard.packets,
        ids.len(),
        heard.resets.len(),
        heard.undue,
    );
    assert!(spoilt > 0 && end_by_spoilt.is_none(), "{spoilt}, {end_by_spoilt:?}");
    assert_eq!(end, Some(CloseReason::Reset));
    let workers: HashSet<u8> = ids.iter().map(|id| id[0] % WORKERS).collect();
    assert_eq!(workers.len(), usize::from(WORKERS), "each worker has resets to send");
    assert!(heard.resets.iter().all(|reset| reset.length < reset.answers), "{:?}", heard.resets);
    assert_eq!(heard.undue, 0);
    assert!(heard.resets.len() > 40, "{}", heard.resets.len());
    assert!(most <= asked("WARREN_RESETS").unwrap_or(75), "{most} in a second");
}

/// Anybody who learns a connection's reset token can end the connection (RFC 9000 section 21.11).
#[test]
fn an_id_of_a_live_connection_is_answered_at_no_address_and_by_no_worker() {
    const CONNECTIONS: usize = 8;
    for driver in ["warren", "noq"] {
        let Some(net) = Net::new() else { return };
        let mut exit = Exit::init(&net, &ExitOptions::default());
        let listen = LISTENERS.map(|(_, address)| address.to_owned()).to_vec();
        exit.configure(|config| {
            config.with("exit", "listen", listen).with("transport", "workers", 2).with(
                "transport",
                "driver",
                driver,
            )
        });
        exit.run();
        let exit_key = exit.status().text("/public_key").parse().unwrap();
        let (to_test, asked) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel();
        let observer = net.second_client();
        let clients = net.client.enter(move || {
            let clients: Vec<_> = (0..CONNECTIONS).map(|_| TappedClient::connect(exit_key)).collect();
            to_test.send(clients.iter().map(TappedClient::id).collect::<Vec<Id>>()).unwrap();
            // Keeps the connections open until the test is done with them.
            may_go_on.recv().unwrap();
        });
        let ids = asked.recv().unwrap();
        let workers: HashSet<u8> = ids.iter().map(|id| id[0] % 2).collect();
        assert_eq!(workers.len(), 2, "each has connections");

        let observed = ids.clone();
        let of_live = observer.enter(move || answering(&observed)).join().unwrap();
        go_on.send(()).unwrap();
        clients.join().unwrap();
        assert_eq!(of_live, HashSet::new(), "{driver}");

        // The control: all listeners answer for connections of an earlier process.
        exit.stop(Signal::KILL);
        exit.run();
        let of_dead = observer.enter(move || answering(&ids)).join().unwrap();
        assert_eq!(of_dead.len(), LISTENERS.len(), "{driver}, {of_dead:?}");
    }
}

/// The exit's addresses in the test above, and the listener at each.
const LISTENERS: [((&str, u16), &str); 3] = [
    ((Net::EXIT_V4, 443), "0.0.0.0:443"),
    ((Net::EXIT_V6, 443), "[::]:443"),
    ((Net::EXIT_V4, 4443), "0.0.0.0:4443"),
];

/// Sends packets with these IDs to every listener for a while. Returns the listeners that answered.
fn answering(ids: &[Id]) -> HashSet<SocketAddr> {
    let mut heard = Heard::default();
    let mut answering = HashSet::new();
    let exits = LISTENERS.map(|((ip, port), _)| SocketAddr::new(ip.parse().unwrap(), port));
    let at = |exit| ids.iter().zip(LENGTHS).map(move |(id, length)| Repeater::new(exit, *id, length, true));
    let repeaters: Vec<Repeater> = exits.into_iter().flat_map(at).collect();
    let start = Instant::now();
    while start.elapsed() < REPEATING {
        for repeater in &repeaters {
            repeater.send();
            let before = heard.resets.len();
            repeater.listen(&mut heard);
            if heard.resets.len() > before {
                answering.insert(repeater.socket.peer_addr().unwrap());
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    answering
}

/// How long packets are repeated to all of the exit's addresses.
const REPEATING: Duration = seconds(3);

/// Lengths of packets that get an answer. The shortest reset has 21 bytes.
const LENGTHS: [usize; 8] = [22, 23, 30, 42, 60, 100, 300, 1_200];

/// The exit's answers to packets of unknown connections.
#[derive(Debug, Default)]
struct Heard {
    packets: usize,
    resets: Vec<Reset>,
    /// Answers that are not allowed.
    undue: usize,
}

#[derive(Clone, Copy, Debug)]
struct Reset {
    at: Instant,
    length: usize,
    /// The length of the answered packet.
    answers: usize,
}

/// Sends packets of one length with one connection ID.
struct Repeater {
    socket: UdpSocket,
    id: Id,
    length: usize,
    is_due: bool,
}

impl Heard {
    fn by_repeating(ids: &[Id]) -> Self {
        let mut foreign = ids[0];
        foreign[7] ^= 1;
        let mut repeaters = Vec::new();
        for address in [Net::EXIT_V4, Net::EXIT_V6] {
            let address = SocketAddr::new(address.parse().unwrap(), 443);
            let lengths = LENGTHS.into_iter().cycle();
            repeaters.extend(
                ids.iter().zip(lengths).map(|(id, length)| Repeater::new(address, *id, length, true)),
            );
            repeaters.push(Repeater::new(address, foreign, 300, false));
            repeaters.push(Repeater::new(address, ids[0], 21, false));
        }
        let mut heard = Self::default();
        let start = Instant::now();
        while start.elapsed() < REPEATING {
            heard.packets += repeaters.len();
            repeaters.iter().for_each(Repeater::send);
            repeaters.iter().for_each(|repeater| repeater.listen(&mut heard));
            // The order rotates, because otherwise the first repeaters would get all the answers.
            repeaters.rotate_left(1);
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(100));
        repeaters.iter().for_each(|repeater| repeater.listen(&mut heard));
        heard
    }

    /// The largest number of resets within a second, with a tolerance for jitter at both ends.
    fn most_in_a_second(&self) -> usize {
        let within = |from: Instant| {
            let second = from..from + Duration::from_millis(980);
            self.resets.iter().filter(|reset| second.contains(&reset.at)).count()
        };
        self.resets.iter().map(|reset| within(reset.at)).max().unwrap_or_default()
    }
}

impl Repeater {
    fn new(exit: SocketAddr, id: Id, length: usize, is_due: bool) -> Self {
        let any = if exit.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(exit).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, id, length, is_due }
    }

    /// Sends a packet. The exit has forgotten the keys, so it cannot distinguish the filler after the ID from ciphertext.
    fn send(&self) {
        let mut packet = vec![0x5a; self.length];
        packet[0] = 0x40;
        packet[1..=self.id.len()].copy_from_slice(&self.id);
        drop(self.socket.send(&packet));
    }

    fn listen(&self, heard: &mut Heard) {
        let mut buffer = [0; 2_048];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            heard.undue += usize::from(!self.is_due);
            heard.resets.push(Reset { at: Instant::now(), length, answers: self.length });
        }
    }
}
