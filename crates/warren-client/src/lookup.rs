//! Looks up an exit's addresses by its name.
//!
//! The system's resolver may be inside the tunnel, or blocked by the kill switch. So the network's own name servers are asked at
//! the same time, over marked sockets that the tunnel's routes and a closed kill switch let through. While the tunnel carries
//! packets, only the system's resolver is asked, as every program asks it. The tunnel carries these queries if it carries those of
//! programs.

mod dns_message;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use warren_host::CARRIER_MARK;
use warren_quic::socket::{self, SocketConfig};

use self::dns_message::{RecordType, addresses, query};
use warren_config::Endpoint;
use warren_daemon::helper::Helper;
use warren_daemon::resolvers;

/// A look-up that takes longer counts as failed.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The time after which an unanswered query is sent again.
const RESEND: Duration = Duration::from_secs(1);
/// The most name servers that are asked.
const MOST_SERVERS: usize = 6;

/// The DNS port.
const PORT: u16 = 53;

/// The network's own name servers, read before the daemon writes the tunnel's name servers into the host's files.
#[derive(Clone, Debug, Default)]
pub(super) struct NameServers {
    found: Vec<IpAddr>,
    /// The mark of queries, if they do not carry the carrier's mark.
    mark: Option<u32>,
    /// Whether only the system's resolver is asked, because the tunnel carries its queries.
    is_inside: bool,
    /// The daemon's helper, which reads files and asks the system's resolver, because the daemon's sandbox forbids both. `None`
    /// outside a daemon.
    helper: Option<Helper>,
}

impl NameServers {
    /// Reads the host's files. Call this before the tunnel's own servers are written into them.
    pub(super) async fn find(helper: Option<Helper>) -> Self {
        let mut servers = Self { found: Vec::new(), mark: None, is_inside: false, helper };
        servers.found = servers.listed().await;
        servers
    }

    /// Gives queries a mark that a closed kill switch lets through.
    pub(super) fn asked_with(self, mark: u32) -> Self {
        Self { mark: Some(mark), ..self }
    }

    /// Sends all queries through the tunnel, to the system's resolver.
    pub(super) fn asked_inside(self) -> Self {
        Self { is_inside: true, ..self }
    }

    /// The servers to ask outside the tunnel: those listed now, because the host may have joined another network, and then those
    /// found at the start.
    async fn all(&self) -> Vec<IpAddr> {
        if self.is_inside {
            return Vec::new();
        }
        in_order(self.listed().await, &self.found)
    }

    async fn listed(&self) -> Vec<IpAddr> {
        match &self.helper {
            Some(helper) => helper.list_resolvers().await,
            None => resolvers::listed(),
        }
    }

    /// Whether every server runs on this host. Such a server asks other servers itself, and a closed kill switch blocks these
    /// queries.
    pub(super) async fn are_local(&self) -> bool {
        self.all().await.iter().all(IpAddr::is_loopback)
    }

    /// Asks the system's resolver.
    async fn ask_system(&self, host: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
        match &self.helper {
            Some(helper) => {
                let found = helper.look_up(host).await?;
                Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
            }
            None => Ok(tokio::net::lookup_host((host, port)).await?.collect()),
        }
    }
}

/// The servers to ask: those listed now, then those found earlier.
fn in_order(mut listed: Vec<IpAddr>, found: &[IpAddr]) -> Vec<IpAddr> {
    let earlier: Vec<IpAddr> = found.iter().filter(|server| !listed.contains(server)).copied().collect();
    listed.extend(earlier);
    listed.truncate(MOST_SERVERS);
    listed
}

/// Looks up an endpoint's name. If the endpoint has an address instead of a name, returns that.
///
/// # Errors
/// A message for the user that says what to do.
pub(super) async fn lookup(endpoint: &Endpoint, servers: &NameServers) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = (endpoint.host(), endpoint.port());
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let system = async {
        match tokio::time::timeout(TIMEOUT, servers.ask_system(host, port)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                Err(format!("cannot resolve {host}: {error}; check the name and this host's DNS"))
            }
            Err(_) => Err(format!("cannot resolve {host}: no answer within 3 s; check this host's DNS")),
        }
    };
    let own = async {
        let found = ask(host, servers.all().await, servers.mark.unwrap_or(CARRIER_MARK)).await;
        found.into_iter().map(|address| SocketAddr::new(address, port)).collect::<Vec<_>>()
    };
    tokio::pin!(system, own);
    // The system's resolver and the name servers are asked at the same time, and the first response with an address counts. If
    // the first response has no address, waits for the second one.
    tokio::select! {
        found = &mut own => if found.is_empty() { system.await } else { Ok(found) },
        found = &mut system => match found {
            Ok(found) if !found.is_empty() => Ok(found),
            other => {
                let found = own.await;
                if found.is_empty() { other } else { Ok(found) }
            }
        },
    }
}

/// Asks every server for addresses of both IP versions, and returns the first answer that has any address.
async fn ask(host: &str, servers: Vec<IpAddr>, mark: u32) -> Vec<IpAddr> {
    // Returning drops the set, which ends the queries that are still under way.
    let mut asked = tokio::task::JoinSet::new();
    for server in servers {
        let host = host.to_owned();
        asked.spawn(
            async move { ask_one(&host, SocketAddr::new(server, PORT), mark).await.unwrap_or_default() },
        );
    }
    while let Some(answer) = asked.join_next().await {
        if let Ok(found) = answer
            && !found.is_empty()
        {
            return found;
        }
    }
    Vec::new()
}

async fn ask_one(host: &str, server: SocketAddr, mark: u32) -> std::io::Result<Vec<IpAddr>> {
    let (ipv6, ipv4) = tokio::join!(
        exchange(host, server, RecordType::Aaaa, mark),
        exchange(host, server, RecordType::A, mark)
    );
    // It is enough if one of the two queries returns addresses.
    Ok(ipv6.unwrap_or_default().into_iter().chain(ipv4.unwrap_or_default()).collect())
}

/// Sends one query to one server and waits for its answer.
async fn exchange(
    host: &str,
    server: SocketAddr,
    record: RecordType,
    mark: u32,
) -> std::io::Result<Vec<IpAddr>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let config = SocketConfig { mark: Some(CARRIER_MARK), ..SocketConfig::new(SocketAddr::new(any, 0)) };
    let socket = UdpSocket::from_std(socket::bind(config)?)?;
    // The socket is connected with the carrier's mark, so that the kernel chooses a source address outside the tunnel. The socket
    // keeps this address when its mark is changed to that of queries. A connected socket also receives datagrams only from this
    // server.
    socket.connect(server).await?;
    socket2::SockRef::from(&socket).set_mark(mark)?;
    // An unpredictable identifier makes it hard to forge an answer without seeing the query (RFC 5452 section 4.3).
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(std::io::Error::other)?;
    let Some(query) = query(id, host, record) else { return Ok(Vec::new()) };
    // If a query has no EDNS, the answer has at most 512 bytes (RFC 1035 section 4.2.1).
    let mut buffer = [0; 1500];
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        // An error, such as a missing route, ends the query to this server only. Another server may be reachable.
        socket.send(&query).await?;
        let resend = tokio::time::Instant::now() + RESEND;
        while let Ok(received) = tokio::time::timeout_at(resend.min(deadline), socket.recv(&mut buffer)).await
        {
            let message = buffer.get(..received?).unwrap_or_default();
            // A message that does not match the query may be forged, so it is ignored.
            if let Some(found) = addresses(message, id, host, record) {
                return Ok(found);
            }
        }
        if tokio::time::Instant::now() >= deadline {
            return Ok(Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_needs_no_look_up() {
        let endpoint = "192.0.2.7:4433".parse().unwrap();
        let found = lookup(&endpoint, &NameServers::default()).await.unwrap();
        assert_eq!(found, vec!["192.0.2.7:4433".parse().unwrap()]);
    }

    #[tokio::test]
    async fn no_server_outside_is_asked_while_the_tunnel_carries_queries() {
        let outside = NameServers { found: vec![IpAddr::from([192, 0, 2, 1])], ..NameServers::default() };
        assert!(!outside.all().await.is_empty(), "the control");
        assert!(outside.asked_inside().all().await.is_empty());
    }

    #[test]
    fn servers_of_the_network_that_the_host_is_in_now_are_asked_however_many_the_first_network_had() {
        let found: Vec<IpAddr> = (1..=6).map(|number| IpAddr::from([192, 0, 2, number])).collect();
        let listed = vec![IpAddr::from([198, 51, 100, 1]), found[1]];
        let asked = in_order(listed.clone(), &found);
        assert_eq!(asked[..2], listed);
        assert_eq!((asked.len(), in_order(Vec::new(), &found)), (MOST_SERVERS, found));
    }
}
