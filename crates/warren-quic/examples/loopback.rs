//! Sends datagrams from a client to an exit over loopback, with one thread each. Prints the goodput, and each side's CPU
//! seconds per gigabyte.
//!
//! `cargo run --release -p warren-quic --example loopback -- driver=compare rounds=4` runs both drivers in turn (A B B A);
//! `driver=warren` or `driver=noq` runs one. Other arguments, with their defaults, are in [`Plan`].

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program to be read on a terminal")]

use std::{
    env, fmt, fs,
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::ExitCode,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use bytes::{BufMut, BytesMut};
use tokio::time::{Interval, interval};
use warren_quic::{
    driver::{ConnectionId, Endpoint, Event, Inbox, SendError},
    key::{PrivateKey, PublicKey},
    settings::{Congestion, Driver, ReceiveBatches, TransmitCaps, TransportSettings},
    socket::{SocketConfig, bind},
};

/// What to run.
#[derive(Clone, Debug)]
struct Plan {
    /// The drivers to compare. A single driver runs alone.
    drivers: Vec<Driver>,
    seconds: f64,
    rounds: usize,
    segments: usize,
    datagrams: usize,
    batches: usize,
    size: usize,
    mtu: u16,
    congestion: Congestion,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            drivers: Driver::ALL.to_vec(),
            seconds: 3.0,
            rounds: 2,
            segments: 40,
            datagrams: 80,
            batches: ReceiveBatches::default().get(),
            size: 1_400,
            mtu: 1_472,
            congestion: Congestion::default(),
        }
    }
}

fn main() -> ExitCode {
    match plan(env::args().skip(1)) {
        Ok(plan) => run(&plan),
        Err(error) => {
            println!("{error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn plan(arguments: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan::default();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or(format!("{argument:?} is not KEY=VALUE"))?;
        match key {
            "driver" if value == "compare" => {}
            "driver" => plan.drivers = vec![parse(value)?],
            "seconds" => plan.seconds = parse(value)?,
            "rounds" => plan.rounds = parse(value)?,
            "segments" => plan.segments = parse(value)?,
            "datagrams" => plan.datagrams = parse(value)?,
            "batches" => plan.batches = parse(value)?,
            "size" => plan.size = parse(value)?,
            "mtu" => plan.mtu = parse(value)?,
            "congestion" => plan.congestion = parse(value)?,
            _ => {
                return Err(format!(
                    "{key:?} is not one of driver, seconds, rounds, segments, datagrams, batches, size, mtu, congestion"
                ));
            }
        }
    }
    Ok(plan)
}

fn parse<T: FromStr<Err: fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error| format!("{value:?}: {error}"))
}

fn run(plan: &Plan) {
    let mut results: Vec<(Driver, Figures)> = Vec::new();
    for round in 0..plan.rounds {
        let turns: Vec<Driver> = match plan.drivers.as_slice() {
            &[a, b] if round % 2 == 0 => vec![a, b, b, a],
            &[a, b] => vec![b, a, a, b],
            one => one.to_vec(),
        };
        for driver in turns {
            let figures = measure(plan, driver);
            println!("{driver:>6}: {figures}");
            results.push((driver, figures));
        }
    }
    let median = |driver: Driver, of: fn(&Figures) -> f64| {
        let mut values: Vec<f64> =
            results.iter().filter(|(of, _)| *of == driver).map(|(_, f)| of(f)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    if let &[a, b] = plan.drivers.as_slice() {
        let ratio = |of: fn(&Figures) -> f64| median(b, of) / median(a, of);
        println!(
            "{b} / {a}, medians: goodput {:.2}, bytes per CPU second: client {:.2}, exit {:.2}",
            ratio(|figures| figures.gbits),
            ratio(|figures| 1.0 / figures.client),
            ratio(|figures| 1.0 / figures.exit),
        );
    }
}

/// The results of one run.
#[derive(Clone, Debug)]
struct Figures {
    gbits: f64,
    /// CPU seconds per gigabyte delivered.
    client: f64,
    exit: f64,
    lost: f64,
    segments: f64,
    batch: f64,
    would_block: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gbits, client, exit, lost, segments, batch, would_block } = self;
        write!(
            f,
            "{gbits:6.2} Gbit/s, CPU s per GB: client {client:.3} exit {exit:.3}; lost {lost:.4}, \
             datagrams per send {segments:.1}, per receive {batch:.1}; full socket {would_block} times"
        )
    }
}

fn measure(plan: &Plan, driver: Driver) -> Figures {
    let phase = Arc::new(AtomicUsize::new(0));
    let (client_key, exit_key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let (listen, socket) = (loopback(), loopback());
    let (address, pinned) = (listen.local_addr().unwrap(), exit_key.public());
    let settings = settings(plan, driver);
    let exit = {
        let (settings, phase) = (settings.clone(), phase.clone());
        thread::spawn(move || {
            side(phase, None, || Endpoint::exit(settings, vec![exit_key], vec![listen], [7; 32]).unwrap())
        })
    };
    let client = {
        let (phase, to) = (phase.clone(), Target { socket, address, pinned, size: plan.size });
        thread::spawn(move || side(phase, Some(to), || Endpoint::client(settings, client_key).unwrap()))
    };
    thread::sleep(Duration::from_millis(400));
    phase.store(1, SeqCst);
    thread::sleep(Duration::from_secs_f64(plan.seconds));
    phase.store(2, SeqCst);
    let (client, exit) = (client.join().unwrap(), exit.join().unwrap());
    let gigabytes = exit.bytes / 1e9;
    Figures {
        gbits: gigabytes * 8.0 / exit.seconds,
        client: client.cpu / gigabytes,
        exit: exit.cpu / gigabytes,
        lost: 1.0 - exit.count / client.count,
        segments: client.batch,
        batch: exit.batch,
        would_block: client.would_block,
    }
}

fn settings(plan: &Plan, driver: Driver) -> TransportSettings {
    TransportSettings {
        driver,
        caps: TransmitCaps::new(plan.segments, plan.datagrams),
        receive_batches: ReceiveBatches::new(plan.batches),
        congestion: plan.congestion.into(),
        initial_mtu: plan.mtu,
        // Drops on an overloaded machine must not be taken for a smaller path MTU.
        min_mtu: plan.mtu,
        max_mtu: plan.mtu,
        ..TransportSettings::default()
    }
}

fn loopback() -> UdpSocket {
    bind(SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap()
}

/// The exit to which a client sends.
struct Target {
    socket: UdpSocket,
    address: SocketAddr,
    pinned: PublicKey,
    size: usize,
}

/// What a side did during the measured time.
struct Share {
    seconds: f64,
    cpu: f64,
    /// Datagrams sent or received, and their bytes.
    count: f64,
    bytes: f64,
    /// UDP datagrams in one send or receive.
    batch: f64,
    would_block: u64,
}

fn side(phase: Arc<AtomicUsize>, target: Option<Target>, make: impl FnOnce() -> Endpoint) -> Share {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().event_interval(16).build().unwrap();
    runtime.block_on(async {
        let mut worker = Worker::new(make(), target);
        let mut start = None;
        poll_fn(|cx| {
            worker.turn(cx);
            match (phase.load(SeqCst), &start) {
                (1, None) => start = Some(worker.mark()),
                (2, _) => return Poll::Ready(()),
                _ => {}
            }
            Poll::Pending
        })
        .await;
        let (start, end) = (start.unwrap(), worker.mark());
        // Waits, so that the other side ends its own count before this side closes the connection.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Share {
            seconds: end.at.duration_since(start.at).as_secs_f64(),
            cpu: end.cpu - start.cpu,
            count: end.count - start.count,
            bytes: end.bytes - start.bytes,
            would_block: worker.endpoint.socket_stats().would_block,
            batch: (end.datagrams - start.datagrams) / (end.calls - start.calls).max(1.0),
        }
    })
}

struct Mark {
    at: Instant,
    cpu: f64,
    count: f64,
    bytes: f64,
    datagrams: f64,
    calls: f64,
}

/// The tunnel's worker without a tunnel. Its turns have the same order, but it makes datagrams up and discards
/// them on arrival.
struct Worker {
    endpoint: Endpoint,
    inbox: Inbox,
    sends: bool,
    size: usize,
    connection: Option<ConnectionId>,
    blocked: bool,
    arena: BytesMut,
    count: u64,
    bytes: u64,
    tick: Interval,
}

impl Worker {
    fn new(mut endpoint: Endpoint, target: Option<Target>) -> Self {
        let (sends, size) = (target.is_some(), target.as_ref().map_or(0, |target| target.size));
        if let Some(Target { socket, address, pinned, .. }) = target {
            endpoint.connect(socket, address, &[pinned]).unwrap();
        }
        Self {
            endpoint,
            inbox: Inbox::new(),
            sends,
            size,
            connection: None,
            blocked: false,
            arena: BytesMut::new(),
            count: 0,
            bytes: 0,
            tick: interval(Duration::from_millis(5)),
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) {
        while self.tick.poll_tick(cx).is_ready() {}
        let busy = self.endpoint.poll(cx, &mut self.inbox).is_ready();
        for event in self.inbox.events.drain(..) {
            match event {
                Event::Connected { connection, .. } => self.connection = Some(connection),
                Event::Writable { .. } => self.blocked = false,
                Event::Answers { .. } => {}
                Event::Control { .. } => {}
                Event::Closed { reason, .. } => panic!("{reason}"),
            }
        }
        for (_, datagram) in self.inbox.datagrams.drain(..) {
            self.count += 1;
            self.bytes += datagram.len() as u64;
        }
        if self.sends {
            self.send();
        }
        self.endpoint.flush(cx);
        if busy {
            cx.waker().wake_by_ref();
        }
    }

    fn send(&mut self) {
        let Some(connection) = self.connection else { return };
        while !self.blocked {
            if self.arena.capacity() < self.size {
                self.arena.reserve((64 * 1024).max(self.size));
            }
            self.arena.put_bytes(0x5a, self.size);
            let datagram = self.arena.split().freeze();
            match self.endpoint.send_datagram(connection, datagram) {
                Ok(()) => {
                    self.count += 1;
                    self.bytes += self.size as u64;
                }
                Err(SendError::Blocked(_)) => self.blocked = true,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn mark(&self) -> Mark {
        let sockets = self.endpoint.socket_stats();
        let udp = self.connection.and_then(|connection| self.endpoint.stats(connection));
        let (datagrams, calls) = match udp {
            Some(udp) if self.sends => (udp.udp_datagrams_sent, sockets.sends),
            Some(udp) => (udp.udp_datagrams_received, sockets.receives),
            None => (0, 0),
        };
        Mark {
            at: Instant::now(),
            cpu: thread_cpu_seconds(),
            count: self.count as f64,
            bytes: self.bytes as f64,
            datagrams: datagrams as f64,
            calls: calls as f64,
        }
    }
}

/// The time that this thread ran, from the kernel's scheduler (nanoseconds, first field).
fn thread_cpu_seconds() -> f64 {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = schedstat.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}
