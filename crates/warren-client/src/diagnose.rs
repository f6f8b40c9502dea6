//! Finds out why an exit does not answer, by probing its address with a UDP datagram and TCP connections. The result contains
//! advice.
//!
//! All probes are sent to the exit's own address, over marked sockets. A closed kill switch allows only the UDP datagram, because
//! this datagram has the same destination as the datagrams of a connection.

mod local_network;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;
use warren_host::CARRIER_MARK;

pub(crate) use self::local_network::has_route;
use super::exits;
use super::kill_switch;
use super::login_page;

/// How long to wait for each answer.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// The port on which a network shows its login page to hosts that have not logged in.
const HTTP: u16 = 80;

/// The response to a probe of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// This host has no route to the address, or its network does not forward packets to the address.
    NoRoute,
    /// This host's own firewall blocks packets to the address.
    Blocked,
    /// An ICMP error or a TCP reset came back, which means that nothing listens on the port.
    Refused,
    /// A host answers at the address.
    Open,
    /// Nothing came back, or only an error from which nothing about the path can be concluded.
    Silence,
}

/// The kill switches on this host. One of them may be the reason why an exit does not answer.
#[derive(Clone, Debug)]
pub(super) struct KillSwitches {
    /// The profile whose client runs the diagnosis.
    pub(super) profile: String,
    /// Whether the profile's own kill switch is closed. It then lets out only the UDP datagram, and not the two TCP connections.
    pub(super) is_closed: bool,
    /// The other profiles whose kill switches were closed when the client started.
    pub(super) others: Vec<String>,
}

/// The answers to all probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Findings {
    /// The answer to a UDP datagram for the exit's port. An exit itself never answers a datagram that is not QUIC.
    udp: Answer,
    /// The answer to a TCP connection to the same port number.
    tcp: Answer,
    /// Whether a login page answered a web request to the exit's address in its place.
    login_page: bool,
}

/// Why an exit does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// The problem and what to do.
    pub(super) sentence: String,
    pub(super) certainty: Certainty,
}

/// How certain a cause is. This decides when a waiting `up` gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// No answer has come, which can have many causes.
    Unknown,
    /// The address answers, but not as an exit. A lossy path could look the same.
    Likely,
    /// According to answers that could be forged, no exit can be reached at this address.
    AtAddress,
    /// This host's own firewall or network lets no packets out to any exit.
    Here,
}

/// Finds out why `tried` does not answer, or why there is no address to try. `None` if nothing was tried and this host's network is
/// in order.
pub(super) async fn diagnose(tried: Option<SocketAddr>, kill_switches: KillSwitches) -> Option<Cause> {
    if let Some(sentence) = local_network::find(tried).await {
        return Some(Cause { sentence, certainty: Certainty::Here });
    }
    let remote = tried?;
    let (udp, tcp, login_page) = tokio::join!(ask_udp(remote), ask_tcp(remote), has_login_page(remote.ip()));
    let findings = Findings { udp, tcp, login_page };
    Some(Cause { sentence: findings.sentence(remote, &kill_switches), certainty: findings.certainty() })
}

impl Findings {
    fn certainty(self) -> Certainty {
        match self {
            Self { udp: Answer::Blocked, .. } => Certainty::Here,
            Self { udp: Answer::NoRoute | Answer::Refused, .. } | Self { login_page: true, .. } => {
                Certainty::AtAddress
            }
            Self { tcp: Answer::Open | Answer::Refused, .. } => Certainty::Likely,
            Self { .. } => Certainty::Unknown,
        }
    }

    fn sentence(self, remote: SocketAddr, kill_switches: &KillSwitches) -> String {
        let port = remote.port();
        let profile = &kill_switches.profile;
        match self {
            // The checks go from this host outwards: its firewall, its network, a login page, and then the exit itself. A problem
            // near this host also explains why hosts farther away do not answer.
            Self { udp: Answer::Blocked, .. } if kill_switches.others.is_empty() => format!(
                "this host's own firewall lets nothing out to {remote}: allow UDP port {port} there; `nft list ruleset` shows its rules"
            ),
            Self { udp: Answer::Blocked, .. } => {
                format!(
                    "this host lets nothing out to {remote}: {}",
                    kill_switch::blocked_by(profile, &kill_switches.others)
                )
            }
            Self { udp: Answer::NoRoute, .. } => {
                format!(
                    "this host's network has no route to {remote}: check its router, or connect to another network"
                )
            }
            Self { login_page: true, .. } => format!(
                "this network answers with a web page of its own in place of {remote}: open its page with \
                 `sudo warren portal {profile}` and log in; a running client then connects by itself, otherwise run `warren up {profile}` again"
            ),
            Self { udp: Answer::Refused, .. } => {
                format!(
                    "nothing listens on UDP {remote}: start the exit there, or correct the endpoint's port"
                )
            }
            Self { tcp: Answer::Open | Answer::Refused, .. } => format!(
                "the host {remote} can be reached, but does not answer on UDP: allow UDP port {port} in the exit's firewall; \
                 or check public_key in the profile, because an exit does not answer a client that expects another key; or \
                 try another network, because this one may block UDP"
            ),
            Self { .. } if kill_switches.is_closed => format!(
                "{remote} does not answer: {}; if this network requires a login first, run `sudo warren portal {profile}`, \
                 which opens its page although the kill switch is closed",
                what_to_check(port)
            ),
            Self { .. } => format!("{remote} does not answer: {}", what_to_check(port)),
        }
    }
}

/// Returns advice for the case that the exit does not answer and the reason is unknown.
pub(super) fn what_to_check(port: u16) -> String {
    format!(
        "check the endpoint and the exit's public_key, that its machine runs, and that UDP port {port} reaches it"
    )
}

/// Sends one byte and waits for an ICMP error.
async fn ask_udp(remote: SocketAddr) -> Answer {
    let ask = async {
        let socket = UdpSocket::from_std(exits::bind(remote)?)?;
        // The kernel reports ICMP errors to a UDP socket only if it is connected.
        socket.connect(remote).await?;
        socket.send(&[0]).await?;
        socket.recv(&mut [0; 64]).await
    };
    match timeout(PATIENCE, ask).await {
        Ok(Ok(_)) => Answer::Open,
        Ok(Err(error)) => answer_of(error.kind()),
        Err(_) => Answer::Silence,
    }
}

async fn ask_tcp(remote: SocketAddr) -> Answer {
    match timeout(PATIENCE, tcp(remote)).await {
        Ok(Ok(_)) => Answer::Open,
        Ok(Err(error)) => answer_of(error.kind()),
        Err(_) => Answer::Silence,
    }
}

/// Asks the address for a web page, and checks whether a login page answers in its place.
async fn has_login_page(address: IpAddr) -> bool {
    let ask = async {
        let stream = tcp(SocketAddr::new(address, HTTP)).await?;
        let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        // The path that Android and Chrome use to detect login pages.
        let answer = login_page::ask(stream, &host, "/generate_204").await?;
        Ok::<_, std::io::Error>(is_login_page(&answer, &host))
    };
    matches!(timeout(PATIENCE, ask).await, Ok(Ok(true)))
}

/// Whether an answer redirects to another host, or has the status code for a required login.
fn is_login_page(answer: &str, host: &str) -> bool {
    let Some(answer) = login_page::Answer::read(answer) else { return false };
    // A relative redirect leads to the host that was asked, so only a redirect with a scheme counts.
    let location = answer.location.and_then(|location| location.split_once("://")).map(|(_, rest)| rest);
    // Any other response, such as a page with status 200, may come from a web server on the exit's own host.
    let elsewhere = location.is_some_and(|rest| {
        // The host name in the URL ends where a port, a path or a query begins. Without this check, 192.0.2.10 would count as
        // 192.0.2.1.
        rest.strip_prefix(host)
            .is_none_or(|after| !after.is_empty() && !after.starts_with([':', '/', '?', '#']))
    });
    answer.needs_login() || elsewhere
}

async fn tcp(remote: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // Without the mark, the probe would go into the tunnel.
    socket.set_mark(CARRIER_MARK)?;
    TcpSocket::from_std_stream(socket.into()).connect(remote).await
}

fn answer_of(error: ErrorKind) -> Answer {
    if error == ErrorKind::ConnectionRefused {
        Answer::Refused
    } else if error == ErrorKind::PermissionDenied {
        // The kernel answers EPERM to a send that an nftables rule in the output hook drops.
        Answer::Blocked
    } else if matches!(
        error,
        ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable
    ) {
        Answer::NoRoute
    } else {
        Answer::Silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_sentence() {
        let remote = "192.0.2.1:443".parse().unwrap();
        let open = KillSwitches { profile: "home".into(), is_closed: false, others: Vec::new() };
        let closed = KillSwitches { is_closed: true, ..open.clone() };
        let blocked = KillSwitches { others: vec!["work".into()], ..open.clone() };
        let silent = Findings { udp: Answer::Silence, tcp: Answer::Silence, login_page: false };
        let sentences = [
            (Findings { udp: Answer::NoRoute, ..silent }, &open, "check its router"),
            (Findings { login_page: true, tcp: Answer::Open, ..silent }, &open, "`warren up home` again"),
            (Findings { udp: Answer::Refused, tcp: Answer::Refused, ..silent }, &open, "start the exit"),
            (Findings { tcp: Answer::Open, ..silent }, &open, "allow UDP port 443"),
            (Findings { tcp: Answer::Refused, ..silent }, &open, "allow UDP port 443"),
            (silent, &open, "does not answer: check"),
            (silent, &closed, "`sudo warren portal home`, which opens its page"),
            (silent, &blocked, "does not answer: check"),
            (Findings { udp: Answer::Blocked, ..silent }, &open, "nft list ruleset"),
            (Findings { udp: Answer::Blocked, ..silent }, &blocked, "the kill switch of work is closed"),
        ];
        let certainties = sentences.map(|(findings, ..)| findings.certainty());
        use Certainty::{AtAddress, Here, Likely, Unknown};
        assert_eq!(
            certainties,
            [AtAddress, AtAddress, AtAddress, Likely, Likely, Unknown, Unknown, Unknown, Here, Here]
        );
        for (findings, kill_switches, part) in sentences {
            let sentence = findings.sentence(remote, kill_switches);
            assert!(sentence.contains(part) && sentence.lines().count() == 1, "{sentence}");
        }
    }

    #[test]
    fn a_redirect_to_another_host_is_a_login_page() {
        let redirect = |to: &str| format!("HTTP/1.1 302 Found\r\nServer: x\r\nLocation: {to}\r\n\r\n");
        assert!(is_login_page(&redirect("http://login.hotel.example/?u=1"), "192.0.2.1"));
        assert!(is_login_page("HTTP/1.1 511 Network Authentication Required\r\n\r\n", "192.0.2.1"));
        assert!(!is_login_page(&redirect("https://192.0.2.1/"), "192.0.2.1"));
        assert!(!is_login_page(&redirect("/elsewhere"), "192.0.2.1"));
        assert!(!is_login_page("HTTP/1.1 200 OK\r\n\r\n<p>Location: http://x/", "192.0.2.1"));
        assert!(!is_login_page("", "192.0.2.1"));
    }
}
