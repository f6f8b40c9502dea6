//! A stub resolver on the loopback device. It asks the tunnel's resolvers for names below some domains. For all other names, it
//! asks the resolvers that the host would ask without the tunnel.
//!
//! The stub is for hosts on which not all programs ask systemd-resolved. Its sockets are made before the sandbox, which allows no
//! port below
//! 1024. The stub never asks another resolver for a name below the domains, even if the tunnel's resolvers do not answer.

mod message;

use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use warren_daemon::helper::Helper;

use self::message::{Question, failure};

/// The address of the first profile's stub. The stubs of further profiles use the next addresses.
pub(crate) const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 87, 97, 1));
const ADDRESSES: u8 = 16;
const PORT: u16 = 53;
/// Maximum number of queries handled at once. Further queries are dropped and counted in the status; programs repeat unanswered
/// queries.
const MOST_QUERIES: usize = 256;
const MOST_CONNECTIONS: usize = 32;
/// How often each resolver is asked, how many resolvers are asked, and how long each may take at most.
const ROUNDS: usize = 2;
const MOST_SERVERS: usize = 3;
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long all resolvers together may take. A program gives up after 5 s, and then repeats its query.
const PATIENCE_FOR_ALL: Duration = Duration::from_millis(4500);
/// How long a client may keep a connection open without a query.
const IDLE: Duration = Duration::from_secs(10);
/// How long the list of the host's own resolvers is used before it is read again.
const KNOWN: Duration = Duration::from_secs(1);

/// The stub's sockets.
#[derive(Debug)]
pub(crate) struct StubSockets {
    address: IpAddr,
    udp: StdUdpSocket,
    tcp: StdTcpListener,
}

impl StubSockets {
    /// Binds the sockets to the first free loopback address, counted from [`FIRST`].
    ///
    /// # Errors
    /// When no address is free, or this process may not use the port.
    pub(crate) fn bind() -> anyhow::Result<Self> {
        let mut last = None;
        for number in 1..=ADDRESSES {
            let address = IpAddr::from(Ipv4Addr::new(127, 87, 97, number));
            match Self::bind_to(address) {
                Ok(sockets) => return Ok(sockets),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrInUse))).with_context(|| {
            format!("cannot listen for DNS queries at {FIRST}; `domains` in [dns] of the profile needs this. Stop the program that listens on port {PORT} on all addresses")
        })
    }

    fn bind_to(address: IpAddr) -> io::Result<Self> {
        let (udp, tcp) = (StdUdpSocket::bind((address, PORT))?, StdTcpListener::bind((address, PORT))?);
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { address, udp, tcp })
    }
}

/// A running stub resolver. Dropping this stops the resolver.
#[derive(Debug)]
pub(crate) struct Stub {
    address: IpAddr,
    routing: Arc<Routing>,
    /// Queries that were dropped because there were [`MOST_QUERIES`] at once.
    dropped: Arc<AtomicU64>,
    tasks: [JoinHandle<()>; 2],
}

impl Stub {
    /// Starts to answer queries. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn start(sockets: StubSockets, helper: Helper) -> anyhow::Result<Self> {
        let StubSockets { address, udp, tcp } = sockets;
        let (udp, tcp) = (UdpSocket::from_std(udp)?, TcpListener::from_std(tcp)?);
        let routing =
            Arc::new(Routing { helper, tunnel: Mutex::default(), known: tokio::sync::Mutex::default() });
        let dropped = Arc::new(AtomicU64::new(0));
        let tasks = [
            tokio::spawn(serve_datagrams(udp, routing.clone(), dropped.clone())),
            tokio::spawn(serve_connections(tcp, routing.clone())),
        ];
        Ok(Self { address, routing, dropped, tasks })
    }

    /// The address to which programs send their DNS questions.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// How many queries were dropped because there were too many at once.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Asks `servers` for names below `domains` from now on.
    pub(crate) fn ask(&self, servers: &[IpAddr], domains: &[String]) {
        let servers = servers.iter().map(|server| SocketAddr::new(*server, PORT)).collect();
        let tunnel = Tunnel { servers, domains: domains.to_owned() };
        *self.routing.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = tunnel;
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Decides which resolvers are asked for which names.
#[derive(Debug)]
struct Routing {
    helper: Helper,
    tunnel: Mutex<Tunnel>,
    /// The host's own resolvers, and until when this list is used.
    known: tokio::sync::Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

#[derive(Debug, Default)]
struct Tunnel {
    servers: Vec<SocketAddr>,
    domains: Vec<String>,
}

impl Routing {
    /// Returns the answer to a query. `None` if the message is not a query.
    async fn answer(
        &self,
        query: &[u8],
        exchange: impl AsyncFn(SocketAddr, (&Question, &[u8]), Duration) -> io::Result<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let question = match Question::of(query) {
            Ok(question) => question,
            Err(refusal) => return refusal,
        };
        let servers = self.servers(&question).await;
        let mut last = None;
        let asked = servers.get(..MOST_SERVERS).unwrap_or(&servers);
        for server in asked.iter().cycle().take(ROUNDS * asked.len()) {
            if let Ok(answer) = exchange(*server, (&question, query), patience(asked.len())).await {
                if !question.is_worth_another(&answer) {
                    return Some(answer);
                }
                last = Some(answer);
            }
        }
        // If all resolvers fail or refuse, the last answer of a resolver is returned, because it is more informative than the
        // stub's own SERVFAIL.
        last.or_else(|| failure(query, &question))
    }

    async fn servers(&self, question: &Question) -> Vec<SocketAddr> {
        {
            let tunnel = self.tunnel.lock().unwrap_or_else(PoisonError::into_inner);
            if tunnel.domains.iter().any(|domain| question.is_below(domain)) {
                return tunnel.servers.clone();
            }
        }
        // The lock is held while the helper answers, so that queries of the same moment ask the helper only
        // once.
        let mut known = self.known.lock().await;
        if let Some((until, servers)) = known.as_ref()
            && Instant::now() < *until
        {
            return servers.clone();
        }
        let servers = self.helper.list_resolvers_below().await;
        *known = Some((Instant::now() + KNOWN, servers.clone()));
        servers
    }
}

/// How long each resolver may take, if there are this many.
fn patience(servers: usize) -> Duration {
    let times = u32::try_from(ROUNDS * servers.max(1)).unwrap_or(u32::MAX);
    PATIENCE.min(PATIENCE_FOR_ALL / times)
}

async fn serve_datagrams(socket: UdpSocket, routing: Arc<Routing>, dropped: Arc<AtomicU64>) {
    let socket = Arc::new(socket);
    let mut queries = JoinSet::new();
    let mut buffer = [0; 4096];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            // The error may be temporary, for instance if the kernel is short of memory.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        while queries.try_join_next().is_some() {}
        if queries.len() >= MOST_QUERIES {
            dropped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let query = buffer.get(..length).unwrap_or_default().to_owned();
        let (socket, routing) = (socket.clone(), routing.clone());
        queries.spawn(async move {
            if let Some(answer) = routing.answer(&query, ask_by_datagram).await {
                // A client that has gone needs no answer.
                drop(socket.send_to(&answer, from).await);
            }
        });
    }
}

async fn serve_connections(listener: TcpListener, routing: Arc<Routing>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= MOST_CONNECTIONS {
            drop(connections.join_next().await);
        }
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let routing = routing.clone();
        // If a connection fails, only that client is affected.
        connections.spawn(async move { drop(serve_connection(stream, &routing).await) });
    }
}

async fn serve_connection(mut stream: TcpStream, routing: &Routing) -> io::Result<()> {
    loop {
        let query = timeout(IDLE, read_message(&mut stream)).await??;
        let Some(answer) = routing.answer(&query, ask_by_connection).await else { return Ok(()) };
        timeout(IDLE, write_message(&mut stream, &answer)).await??;
    }
}

/// Asks one resolver by UDP, from a new port and with a new ID, so that an attacker who does not see the query cannot forge the
/// answer.
async fn ask_by_datagram(
    server: SocketAddr,
    (question, query): (&Question, &[u8]),
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let (id, asked) = question.with_own_id(query)?;
    socket.send(&asked).await?;
    let deadline = Instant::now() + patience;
    let mut buffer = vec![0; 65_535];
    loop {
        let length = timeout_at(deadline, socket.recv(&mut buffer)).await??;
        let received = buffer.get(..length).unwrap_or_default();
        // Any other message may be forged, so it is ignored.
        if question.is_answered_by(received, id) {
            return question.with_clients_id(received, query);
        }
    }
}

/// Asks one resolver by TCP.
async fn ask_by_connection(
    server: SocketAddr,
    (question, query): (&Question, &[u8]),
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        let (id, asked) = question.with_own_id(query)?;
        write_message(&mut stream, &asked).await?;
        let received = read_message(&mut stream).await?;
        match question.is_answered_by(&received, id) {
            true => question.with_clients_id(&received, query),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    timeout(patience, exchange).await?
}

/// Reads a message that follows its length (RFC 1035 section 4.2.2).
async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let framed = [length.to_be_bytes().as_slice(), message].concat();
    stream.write_all(&framed).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_before_the_program_gives_up() {
        const GIVES_UP: Duration = Duration::from_secs(5);
        for servers in 1..=MOST_SERVERS {
            let times = u32::try_from(ROUNDS * servers).unwrap();
            assert!(patience(servers) * times < GIVES_UP, "{servers} resolvers");
            assert!(patience(servers) >= Duration::from_millis(500), "{servers} resolvers");
        }
    }
}
