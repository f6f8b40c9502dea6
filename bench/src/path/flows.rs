//! Bulk TCP between the hosts. Threads at the receiver count the bytes, so the count can be read at any time.
//!
//! As in `vpn`, the exit's host always connects to the client's host, for data in either direction.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    libc,
    sys::socket::{getsockopt, setsockopt, sockopt},
};

use super::test::Congestion;
use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, join},
    way::Way,
};

/// Longest time until a connection is established. TCP retransmits a lost SYN after 1, 3 and 7 s.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a blocked thread checks whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of one write or read.
const CHUNK: usize = 64 << 10;

/// Two hosts and the addresses by which they reach each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route<'a> {
    pub(super) client: (&'a Namespace, Ipv4Addr),
    pub(super) exit: (&'a Namespace, Ipv4Addr),
}

/// TCP connections that send as fast as they can. Dropping this value resets the connections.
#[derive(Debug)]
pub(super) struct Flows {
    stop: Interrupt,
    bytes: Arc<AtomicU64>,
    segment: u32,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Flows {
    /// Opens the connections and starts to send.
    pub(super) fn start(
        route: &Route<'_>,
        (flows, congestion): (u32, Congestion),
        way: Way,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        // `this` is made before the threads start, so that an early return drops it, which stops the threads.
        let mut this =
            Self { stop: Interrupt::default(), bytes: Arc::default(), segment: 0, threads: Vec::new() };
        for (at_exit, at_client) in connect(route, flows, interrupt)? {
            let (sender, receiver) = match way {
                Way::Down => (at_exit, at_client),
                Way::Up => (at_client, at_exit),
            };
            congestion.set(&sender)?;
            this.segment = getsockopt(&sender, sockopt::TcpMaxSeg).context("cannot get a segment's size")?;
            let stop = this.stop.clone();
            this.threads.push(std::thread::spawn(move || send(&sender, &stop)));
            let (stop, bytes) = (this.stop.clone(), this.bytes.clone());
            this.threads.push(std::thread::spawn(move || receive(&receiver, &bytes, &stop)));
        }
        Ok(this)
    }

    /// Returns the bytes received so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns the bytes of payload in a full segment.
    pub(super) fn segment(&self) -> u32 {
        self.segment
    }

    /// Ends the connections. Fails if a connection has failed before.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        self.stop.set();
        let ends: Vec<_> = self.threads.drain(..).map(join).collect();
        ends.into_iter().collect()
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.stop.set();
        for thread in self.threads.drain(..) {
            let _ = join(thread);
        }
    }
}

/// Opens connections from the exit to the client, and returns both ends of each.
fn connect(
    route: &Route<'_>,
    flows: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<(TcpStream, TcpStream)>> {
    let ((client, address), (exit, _)) = (route.client, route.exit);
    let listener = join(client.enter(move || {
        let listener = TcpListener::bind((address, 0)).context("cannot listen")?;
        listener.set_nonblocking(true).context("cannot set up the listener")?;
        Ok(listener)
    })?)?;
    let to = listener.local_addr().context("a listener has no address")?;
    // All connections are opened at the same time. On a path with a round trip of 150 ms, eight connections one after another
    // would take more than a second.
    let connecting = (0..flows)
        .map(|_| exit.enter(move || TcpStream::connect_timeout(&to, CONNECT).context("cannot connect")))
        .collect::<Result<Vec<_>, _>>()?;
    while !connecting.iter().all(JoinHandle::is_finished) {
        // After an interrupt, the threads need not be joined, because they end by themselves within `CONNECT`.
        interrupt.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    // All threads are joined before an error is returned.
    let connected = connecting.into_iter().map(join).collect::<Vec<_>>();
    let connected = connected.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut accepted: Vec<(SocketAddr, TcpStream)> = Vec::new();
    let start = Instant::now();
    while accepted.len() < connected.len() {
        match listener.accept() {
            Ok((stream, from)) => accepted.push((from, stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                interrupt.check()?;
                anyhow::ensure!(start.elapsed() < CONNECT, "a connection was made at one end only");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("cannot accept a connection"),
        }
    }
    for stream in connected.iter().chain(accepted.iter().map(|(_, stream)| stream)) {
        prepare(stream)?;
    }
    // The two ends of a pair may belong to different connections. This is harmless, because all ends at one host do the same.
    Ok(connected.into_iter().zip(accepted.into_iter().map(|(_, stream)| stream)).collect())
}

/// Sets timeouts for blocking calls, and a linger time of 0.
fn prepare(stream: &TcpStream) -> anyhow::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    // With a linger time of 0, close(2) resets the connection and discards its unsent data, so no data is sent after the test.
    setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })
        .context("cannot make a connection end at once")
}

fn send(mut stream: &TcpStream, stop: &Interrupt) -> anyhow::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    while !stop.is_set() {
        match stream.write(&chunk) {
            Ok(_) => {}
            Err(error) if is_in_vain(error.kind()) => {}
            // The other end may stop first and reset the connection, so errors after `stop` are ignored.
            Err(_) if stop.is_set() => {}
            Err(error) => return Err(error).context("a TCP connection broke"),
        }
    }
    Ok(())
}

fn receive(mut stream: &TcpStream, bytes: &AtomicU64, stop: &Interrupt) -> anyhow::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while !stop.is_set() {
        match stream.read(&mut chunk) {
            Ok(0) if !stop.is_set() => anyhow::bail!("a TCP connection ended too early"),
            Ok(length) => {
                bytes.fetch_add(u64::try_from(length)?, Relaxed);
            }
            Err(error) if is_in_vain(error.kind()) => {}
            Err(_) if stop.is_set() => {}
            Err(error) => return Err(error).context("a TCP connection broke"),
        }
    }
    Ok(())
}

fn is_in_vain(kind: ErrorKind) -> bool {
    // A timeout set by `prepare` returns `WouldBlock` or `TimedOut`, depending on the operating system.
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
