//! Whatever peers and strangers send, an exit uses only limited resources of its host.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::counters::HEADERS;
use crate::support::forged::{Forger, answered, stranger, swallow_answers};
use crate::support::hostile::{Attempts, attempts};
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::memory::{forget_peak, peak_kib, rss_kib};
use crate::support::{Client, Exit, ExitOptions, Net, Status, asked, eventually, peer, seconds};

/// For rows B2 and R6 of the scorecard (docs/torture.md), run this test and the next with `WARREN_HOSTILE=200000`.
#[test]
fn hostile_datagrams_cost_an_exit_no_answer_no_room_no_tunnel_and_few_lines_of_log() {
    bombard(true);
}

/// Unlike a silent exit, an exit that answers strangers passes every datagram to the QUIC library.
#[test]
fn hostile_datagrams_cost_an_exit_that_answers_strangers_no_room_no_tunnel_and_few_lines_of_log() {
    bombard(false);
}

/// Sends an exit hostile datagrams while a tunnel is in use. First come arbitrary bytes from forged addresses. Then a real
/// address adds connection attempts that are properly encrypted but have hostile content. These attempts create connections,
/// whose memory the allocator keeps for later ones. That memory is bounded and stops growing after a while.
fn bombard(silent: bool) {
    let Some(net) = Net::new() else { return };
    let hostile: Option<u32> = asked("WARREN_HOSTILE");
    let count = hostile.unwrap_or(10_000);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("access", "silent", silent));
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    swallow_answers(&net);
    let exit_key: PublicKey = exit.status().text("/public_key").parse().unwrap();
    let mut noise = Noise::new(
        [peer::first_flight_of_plain_quic(), peer::first_flight_of_a_client(exit_key)],
        peer::first_flights_of_plain_quic(HANDSHAKES),
    );
    let strangers = net.second_client();
    let forger = Forger::on(&strangers);
    let (before, lines) = (exit.status(), exit.daemon().output().lines().count());
    let pid = exit.daemon().pid();
    let peak_before = forget_peak(pid);
    let pinging = net.client.start(&["ping", "-q", "-i", "0.05", "-W", "5", Net::INTERNET_V4]);
    let (start, mut forged_bytes) = (Instant::now(), 0);
    let mut send = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let (from, datagram) = noise.next(number);
            forger.send(from, &datagram);
            forged_bytes += HEADERS + datagram.len() as u64;
            // The sender must not be faster than the exit reads datagrams from its socket.
            if number.is_multiple_of(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };

    send(0..count / 2);
    let alone = peak_kib(pid) - peak_before;
    let over = Arc::new(AtomicBool::new(false));
    let sealed = attempts(&strangers, silent.then_some(exit_key), over.clone());
    send(count / 2..count / 4 * 3);
    let soon = peak_kib(pid);
    send(count / 4 * 3..count);
    over.store(true, SeqCst);
    let sealed = sealed.join().unwrap();
    let took = start.elapsed();
    let (peak, later) = (peak_kib(pid) - peak_before, peak_kib(pid) - soon);
    let more = || rss_kib(pid).saturating_sub(peak_before);

    pinging.signal(rustix::process::Signal::INT);
    client.sh("ping -c 1 -W 5 203.0.113.2");
    let quiet = Instant::now();
    let busy = exit.status();
    std::thread::sleep(seconds(1));
    let after = exit.status();
    let cpu = |status: &Status| status.0["process"]["cpu_seconds"].as_f64().unwrap();
    let idle = (cpu(&after) - cpu(&busy)) / quiet.elapsed().as_secs_f64();
    let grown = |field: &str| after.number(field).saturating_sub(before.number(field));
    let descriptors = grown("/process/fds");
    let lines = exit.daemon().output().lines().count() - lines;
    let turned = |reasons: &[&str]| -> u64 {
        reasons.iter().map(|reason| grown(&format!("/strangers/{reason}"))).sum()
    };
    let refused = turned(&["no_proof", "replayed_proof"]);
    let put_off = turned(&["address_unproven"]);
    eventually(seconds(10), "ping prints its summary", || pinging.output().contains("packet loss"));
    if hostile.is_some() {
        // A remaining difference comes from the capacity of tables, and from pages that contain a longer-lived allocation.
        eventually(seconds(60), "the exit is as small as it was", || more() <= 2_048);
    }
    let pings = pinging.output().lines().find(|line| line.contains("packet loss")).unwrap().to_owned();
    let (datagrams, bytes) = answered(&net);
    let Attempts { made, retried, answered } = sealed;
    println!(
        "measured: {count} hostile datagrams in {took:.1?} at an exit that {}: {refused} were refused as strangers' datagrams, {put_off} \
         were put off, and the exit sent {datagrams} answers of {bytes} bytes in all and grew by {alone} KiB; in the second half there \
         were {made} sealed attempts, of which {answered} were processed and {retried} proved their address, and the exit grew by at \
         most {peak} KiB, by {later} KiB in the last quarter, and by {} KiB in the end; {lines} lines of log, {descriptors} more \
         descriptors, {:.0} % of a core afterwards; {pings}",
        if silent { "is silent" } else { "answers strangers" },
        more(),
        idle * 100.0
    );
    assert!(exit.daemon().is_running());
    assert!(lines as u64 <= 10 * took.as_secs().max(1), "{lines} lines in {took:?}");
    assert!(descriptors <= 2, "{descriptors}");
    assert!(peak <= 32 * 1024, "{peak} KiB");
    assert!(answered * 2 > made, "{sealed:?}");
    if silent {
        assert!(alone <= 2_048, "{alone} KiB");
        assert!(refused > u64::from(count) / 4, "{refused} of {count} were refused");
        // A few answers are allowed: a replayed packet whose original sender knew the exit's key may start a handshake.
        assert!(datagrams <= u64::from(count) / 100, "{datagrams} answers");
    } else {
        assert!(put_off > 0 && retried > 0, "{put_off}, {sealed:?}");
        // The anti-amplification limit of RFC 9000 section 8.1 applies to all answers.
        assert!(bytes <= 3 * forged_bytes, "{bytes} bytes in answer to {forged_bytes}");
    }
    if hostile.is_some() {
        assert!(later <= 2_048, "{later} KiB in the last quarter");
        assert!(idle < 0.1, "{idle}");
        let lost: f64 =
            pings.split_whitespace().find_map(|word| word.strip_suffix('%')).unwrap().parse().unwrap();
        assert!(lost <= 1.0, "{pings}");
    }
    client.down();
}

/// The second part of row R6 of the scorecard (docs/torture.md). An enrolled client may open any number of sessions, one after
/// another.
#[test]
fn sessions_that_come_and_go_without_end_fill_no_log() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("restless", &key.public().to_string());
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let lines = |exit: &mut Exit<'_>| {
        let output = exit.daemon().output();
        output.lines().filter(|line| line.contains("session opened")).count()
    };
    let start = Instant::now();

    let sessions = net.client.enter(move || {
        runtime().block_on(async move {
            let mut sessions = 0;
            while sessions < 250 {
                let mut client = LibraryClient::start(key.clone(), exit_key, 1);
                client.until("the client is up", |client| client.attached() == 1).await;
                sessions += 1;
            }
            sessions
        })
    });
    let sessions: usize = sessions.join().unwrap();

    let allowed = 100 + 2 * usize::try_from(start.elapsed().as_secs()).unwrap() + 2;
    let said = lines(&mut exit);
    println!(
        "measured: {sessions} sessions in {:.1?}, of which {said} lines say that they opened",
        start.elapsed()
    );
    assert!((100..=allowed).contains(&said), "{said} lines");
    // After a pause, the next log line reports how many lines were suppressed.
    std::thread::sleep(seconds(1));
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    assert!(exit.daemon().output().contains("lines like the next one were left out"));
    client.down();
}

/// Hostile datagrams, the same sequence in each run.
struct Noise {
    flights: [Vec<Vec<u8>>; 2],
    /// First flights of handshakes that never continue.
    begun: Vec<Vec<Vec<u8>>>,
    state: u64,
}

/// More handshakes than an exit accepts without address validation.
const HANDSHAKES: usize = 300;

impl Noise {
    fn new(flights: [Vec<Vec<u8>>; 2], begun: Vec<Vec<Vec<u8>>>) -> Self {
        Self { flights, begun, state: 0x9e37_79b9_7f4a_7c15 }
    }

    fn next(&mut self, number: u32) -> (SocketAddrV4, Vec<u8>) {
        if number.is_multiple_of(31) {
            let place = number / 31;
            let begun = &self.begun[usize::try_from(place).unwrap() % HANDSHAKES];
            return (stranger(place), begun[0].clone());
        }
        let mut datagram = match number % 8 {
            // Arbitrary bytes: without a header, with a long header, and with a short header.
            0 => self.bytes(1_472),
            1 => [vec![0xc0 | self.byte() >> 2, 0, 0, 0, 1], self.bytes(1_200)].concat(),
            2 => [vec![0x40 | self.byte() >> 2], self.bytes(300)].concat(),
            3 => Vec::new(),
            // An unknown QUIC version, with and without room for an answer.
            4 => [vec![0xc3], self.bytes(1_400)].concat(),
            // A client's first flight, complete or truncated, with bytes changed anywhere. `spoilt(1)` uses the flight of a
            // client that knows the exit's key.
            5 | 6 => self.spoilt(0),
            _ => self.spoilt(1),
        };
        if number.is_multiple_of(11) {
            // Two packets in one datagram.
            let other = self.spoilt(0);
            datagram.extend(other);
            datagram.truncate(1_472);
        }
        // Clients that know the key all send from one address.
        let from = if number % 8 == 7 { stranger(0) } else { stranger(number) };
        (from, datagram)
    }

    fn spoilt(&mut self, whose: usize) -> Vec<u8> {
        let place = self.below(2);
        let mut datagram = self.flights[whose][place].clone();
        // Only bytes after the token are changed, or bytes anywhere.
        let from = if self.below(2) == 0 { 0 } else { 80 };
        for _ in 0..self.below(4) {
            let at = from + self.below(datagram.len() - from);
            datagram[at] = self.byte();
        }
        if self.below(3) == 0 {
            datagram.truncate(self.below(1_200));
        }
        datagram
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most);
        (0..length).map(|_| self.byte()).collect()
    }

    fn byte(&mut self) -> u8 {
        self.random().to_le_bytes()[4]
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.random() >> 32).unwrap() % most
    }

    /// The next pseudo-random number (xorshift).
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}
