//! Operations that must leave nothing behind, however often they happen.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use warren_quic::driver::{Endpoint, Event, Inbox};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::TransportSettings;

use crate::support::forged::{Forger, stranger, swallow_answers};
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::memory::{forget_peak, peak_kib};
use crate::support::{Exit, ExitOptions, Namespace, Net, eventually, peer, seconds};

/// Scorecard B6.
#[test]
#[ignore = "takes a minute; `scripts/torture bounds` runs it"]
fn handshakes_that_stop_halfway_and_keys_that_say_nothing_are_forgotten_in_seconds() {
    const COUNT: usize = 500;
    const BACK_WITHIN_KIB: u64 = 5 * 1024;
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("access", "silent", false));
    exit.run();
    swallow_answers(&net);
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let second = net.second_client();
    let forger = Forger::on(&second);
    let pid = exit.daemon().pid();
    let fresh = forget_peak(pid);
    let (connected, longest) = say_nothing(&net.client, exit_key, COUNT);
    let each = (peak_kib(pid) - fresh) / COUNT as u64;
    eventually(seconds(20), "the connections are gone", || connections(&exit) == 0);
    let is_back = |exit: &Exit<'_>| rss(exit) <= fresh + BACK_WITHIN_KIB;
    eventually(seconds(60), "their memory is free again", || is_back(&exit));
    let kept = rss(&exit).saturating_sub(fresh);

    let before = Handshakes::of(&exit);
    for (number, flight) in (0..).zip(peer::first_flights_of_plain_quic(COUNT)) {
        for datagram in flight {
            forger.send(stranger(number), &datagram);
        }
    }
    let start = Instant::now();
    let (mut most, mut stalled, mut gone) = (0, Duration::ZERO, Duration::ZERO);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| say_nothing(&net.client, exit_key, COUNT));
        // `stalled` is the time of the last sample in which all slots for forged handshakes are in use. `gone` is the time of the
        // first sample after which no sample has a handshake.
        while !others.is_finished() || gone <= stalled {
            assert!(start.elapsed() < seconds(60), "{:?}", Handshakes::of(&exit));
            let Handshakes { in_flight, .. } = Handshakes::of(&exit);
            most = most.max(in_flight);
            if in_flight >= FORGED_AT_ONCE {
                stalled = start.elapsed();
            }
            if in_flight > 0 {
                gone = Duration::ZERO;
            } else if gone.is_zero() {
                gone = start.elapsed();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    eventually(seconds(20), "the handshakes are gone", || connections(&exit) == 0);
    let took = start.elapsed();
    let peak = peak_kib(pid) - fresh;
    eventually(seconds(60), "their memory is free again, too", || is_back(&exit));
    let back = start.elapsed();
    let kept_again = rss(&exit).saturating_sub(fresh);
    let timed_out = Handshakes::of(&exit).timed_out - before.timed_out;

    println!(
        "measured: {connected} of {COUNT} silent keys connected; each was closed at most {longest:.1?} after its handshake, and took \
         {each} KiB; {kept} KiB of {} KiB were kept; of {COUNT} unfinished handshakes, {timed_out} were admitted, filled every place for \
         {stalled:.1?} and were gone after {gone:.1?}; with {COUNT} silent keys beside them, at most {most} were under way, and all were \
         over after {took:.1?}; {kept_again} KiB of {peak} KiB were kept {back:.0?} after the start",
        each * COUNT as u64,
    );
    assert_eq!(connected, COUNT);
    assert!(longest <= seconds(5), "{longest:?}");
    assert!(each <= 64, "{each} KiB");
    assert_eq!((before.in_flight, timed_out), (0, FORGED_AT_ONCE), "each admitted handshake timed out");
    assert!(most <= AT_ONCE, "{most}");
    assert!(stalled >= seconds(8) && gone <= HANDSHAKE_TIMEOUT + A_LOOK, "{stalled:?} {gone:?}");
    assert!(peak <= 2 * 64 * COUNT as u64, "{peak} KiB");
}

/// The most half-open handshakes of an exit, and the most among them from unproven addresses.
const AT_ONCE: u64 = 384;
const FORGED_AT_ONCE: u64 = 100;

/// The time after which an exit gives up a handshake, and the additional time in which the test must notice it.
const HANDSHAKE_TIMEOUT: Duration = seconds(10);
const A_LOOK: Duration = Duration::from_millis(500);

/// The counts of handshakes in an exit's status.
#[derive(Clone, Copy, Debug)]
struct Handshakes {
    in_flight: u64,
    timed_out: u64,
}

impl Handshakes {
    fn of(exit: &Exit<'_>) -> Self {
        let status = exit.status();
        let number = |name: &str| status.number(&format!("/handshakes_{name}"));
        Self { in_flight: number("in_flight"), timed_out: number("timed_out") }
    }
}

/// Scorecard R7, for the memory of the exit's process: the daemon itself must not grow.
#[test]
#[ignore = "takes a minute; `scripts/torture bounds` runs it"]
fn ten_thousand_reloads_sessions_and_refusals_leave_the_exit_as_large_as_it_was() {
    const COUNT: u32 = 4_000;
    const PARTS: u32 = 8;
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("restless", &key.public().to_string());
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let socket = exit.warren.state("../runtime/exit/control.sock");
    let reload = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"{\"request\":\"reload\"}\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("Ok"), "{answer}");
    };
    let turn = |count: u32| {
        let (own, foreign) = (key.clone(), PrivateKey::generate().unwrap());
        let clients = net.client.enter(move || {
            runtime().block_on(async move {
                for _ in 0..count {
                    let mut client = LibraryClient::start(own.clone(), exit_key, 1);
                    client.until("the client is up", |client| client.attached() == 1).await;
                    let mut refused = LibraryClient::start(foreign.clone(), exit_key, 1);
                    refused
                        .until("the client is refused", |client| {
                            matches!(client.state(), warren_session::client::ClientState::Stopped { .. })
                        })
                        .await;
                }
            });
        });
        (0..count).for_each(|_| reload());
        clients.join().unwrap();
        // The last sessions are gone.
        eventually(seconds(60), "the last connection is gone", || connections(&exit) <= 1);
    };
    let first = rss(&exit);
    let start = Instant::now();
    // Sizes are compared from the middle of the test on, because bounded data structures have reached their limits at that time.
    let mut sizes = Vec::new();
    for _ in 0..PARTS {
        turn(COUNT / PARTS);
        sizes.push(rss(&exit).saturating_sub(first));
    }

    let half = sizes.len() / 2;
    let grown = sizes[sizes.len() - 1].saturating_sub(sizes[half - 1]);
    println!(
        "measured: {} reloads, sessions and refusals in {:.0?}: {sizes:?} KiB more than at first, {grown} in the second half",
        3 * COUNT,
        start.elapsed()
    );
    assert!(exit.daemon().is_running());
    // A leak of 170 bytes per operation would exceed this limit.
    assert!(grown <= 1_024, "{grown} KiB");
}

/// Connects with `count` keys that are not enrolled, sends nothing, and waits until all connections are closed. Returns
/// how many connected, and the longest time from the end of a handshake to the close.
fn say_nothing(host: &Namespace, exit_key: PublicKey, count: usize) -> (usize, Duration) {
    let inside = move || {
        runtime().block_on(async move {
            let mut endpoint =
                Endpoint::client(TransportSettings::default(), PrivateKey::generate().unwrap()).unwrap();
            let remote: SocketAddr = format!("{}:443", Net::EXIT_V4).parse().unwrap();
            let mut connected = std::collections::HashMap::new();
            let (mut inbox, mut closed, mut longest) = (Inbox::new(), 0, Duration::ZERO);
            let mut begun = 0;
            while closed < count {
                // An exit accepts this many handshakes from one network at once.
                while begun < count && begun < connected.len() + 50 {
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    socket.set_nonblocking(true).unwrap();
                    endpoint.connect(socket, remote, &[exit_key]).unwrap();
                    begun += 1;
                }
                poll_fn(|context| endpoint.poll(context, &mut inbox)).await;
                for event in inbox.events.drain(..) {
                    match event {
                        Event::Connected { connection, .. } => {
                            connected.insert(connection, Instant::now());
                        }
                        Event::Closed { connection, .. } => {
                            closed += 1;
                            if let Some(since) = connected.get(&connection) {
                                longest = longest.max(since.elapsed());
                            }
                        }
                        Event::Control { .. } | Event::Writable { .. } | Event::Answers { .. } => {}
                    }
                }
                inbox.clear();
            }
            (connected.len(), longest)
        })
    };
    host.enter(inside).join().unwrap()
}

fn connections(exit: &Exit<'_>) -> usize {
    exit.status().list("/connections").len()
}

fn rss(exit: &Exit<'_>) -> u64 {
    exit.status().number("/process/rss_kib")
}
