//! Why an exit does not answer, found out by asking its address in other ways, and said with what to do about it.
//!
//! Everything asked goes to the exit's own address, over marked sockets: a closed kill switch lets nothing of it out but the
//! datagram, which goes where the connection's own go.

mod local_network;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;
use warren_host::CARRIER_MARK;

pub(crate) use self::local_network::has_route;
use super::exits;
use super::up::shut_in;

/// How long each question waits for its answer.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// The port on which login pages of networks catch whoever has not logged in.
const HTTP: u16 = 80;

/// What a question to an address brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// This host has no way to the address, or nobody on its network passes anything on.
    NoWay,
    /// This host's own firewall lets nothing out to it.
    ShutIn,
    /// The address says that nothing listens on the port.
    Refused,
    /// It is there.
    Open,
    /// Nothing, or that nobody is there.
    Silence,
}

/// Kill switches of this host, and whose client asks.
#[derive(Clone, Debug)]
pub(super) struct Walls {
    pub(super) profile: String,
    /// Whether the profile's own one is closed, which lets nothing of the questions out but the datagram.
    pub(super) is_closed: bool,
    /// The other profiles whose ones were closed when the client began.
    pub(super) others: Vec<String>,
}

/// All that was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Findings {
    /// What a UDP datagram to the exit's port brought; an exit never answers one that makes no sense.
    udp: Answer,
    /// What a TCP connection to the port of the same number brought.
    tcp: Answer,
    /// Whether a web request to the exit's address was answered with somebody else's page.
    login_page: bool,
}

/// Finds out why `tried` does not answer, or why there is no address to try; the sentence names it and says what to do. None if
/// nothing was tried and this host's network is as it should be.
pub(super) async fn diagnose(tried: Option<SocketAddr>, walls: Walls) -> Option<String> {
    let trouble = local_network::find(tried).await;
    if trouble.is_some() {
        return trouble;
    }
    let remote = tried?;
    let (udp, tcp, login_page) = tokio::join!(ask_udp(remote), ask_tcp(remote), has_login_page(remote.ip()));
    Some(Findings { udp, tcp, login_page }.sentence(remote, &walls))
}

impl Findings {
    fn sentence(self, remote: SocketAddr, walls: &Walls) -> String {
        let port = remote.port();
        let profile = &walls.profile;
        match self {
            Self { udp: Answer::ShutIn, .. } if walls.others.is_empty() => format!(
                "this host's own firewall lets nothing out to {remote}: allow UDP port {port} there; `nft list ruleset` shows its rules"
            ),
            Self { udp: Answer::ShutIn, .. } => {
                format!("this host lets nothing out to {remote}: {}", shut_in(profile, &walls.others))
            }
            Self { udp: Answer::NoWay, .. } => {
                format!(
                    "this host's network has no way to {remote}: check its router, or connect to another network"
                )
            }
            Self { login_page: true, .. } => format!(
                "this network answers with a web page of its own in place of {remote}: open any http:// page in a browser \
                 and log in; a client that runs then connects by itself, else run `warren up {profile}` again"
            ),
            Self { udp: Answer::Refused, .. } => {
                format!(
                    "nothing listens on UDP {remote}: start the exit there, or correct the endpoint's port"
                )
            }
            Self { tcp: Answer::Open | Answer::Refused, .. } => format!(
                "{remote} is there, but does not answer on UDP: allow UDP port {port} in the exit's firewall, check public_key in \
                 the profile, as an exit is silent to who has another key, or try another network, as this one may block UDP"
            ),
            Self { .. } if walls.is_closed => format!(
                "{remote} does not answer: {}; if this network wants a login first, its page cannot be seen while the kill switch is \
                 closed: run `warren down {profile}`, log in, and run `warren up {profile}`",
                what_to_check(port)
            ),
            Self { .. } => format!("{remote} does not answer: {}", what_to_check(port)),
        }
    }
}

/// What to do about an exit of which nothing is known but that it does not answer.
pub(super) fn what_to_check(port: u16) -> String {
    format!(
        "check the endpoint and the exit's public_key, that its machine runs, and that UDP port {port} reaches it"
    )
}

/// Sends one byte and waits for word that it did not arrive.
async fn ask_udp(remote: SocketAddr) -> Answer {
    let ask = async {
        let socket = UdpSocket::from_std(exits::bind(remote)?)?;
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

/// Asks the address for a page, as if it were a web server, and looks whether somebody else answers in its place.
async fn has_login_page(address: IpAddr) -> bool {
    let ask = async {
        let mut stream = tcp(SocketAddr::new(address, HTTP)).await?;
        let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        let request = format!("GET /generate_204 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(8 * 1024).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(is_login_page(&String::from_utf8_lossy(&answer), &host))
    };
    matches!(timeout(PATIENCE, ask).await, Ok(Ok(true)))
}

/// Whether an answer sends the asker to another host, or says that it must log in (RFC 6585 section 6).
fn is_login_page(answer: &str, host: &str) -> bool {
    let mut lines = answer.lines();
    let status = lines.next().and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default();
    if status == "511" {
        return true;
    }
    let mut locations = lines
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("location"));
    let Some((_, location)) = locations.next() else { return false };
    let location = location.trim().split_once("://").map(|(_, rest)| rest);
    let elsewhere = location.is_some_and(|rest| !rest.starts_with(host));
    matches!(status, "301" | "302" | "303" | "307" | "308") && elsewhere
}

async fn tcp(remote: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_mark(CARRIER_MARK)?;
    TcpSocket::from_std_stream(socket.into()).connect(remote).await
}

fn answer_of(error: ErrorKind) -> Answer {
    if error == ErrorKind::ConnectionRefused {
        Answer::Refused
    } else if error == ErrorKind::PermissionDenied {
        Answer::ShutIn
    } else if matches!(
        error,
        ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable
    ) {
        Answer::NoWay
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
        let open = Walls { profile: "home".into(), is_closed: false, others: Vec::new() };
        let closed = Walls { is_closed: true, ..open.clone() };
        let shut_in = Walls { others: vec!["work".into()], ..open.clone() };
        let silent = Findings { udp: Answer::Silence, tcp: Answer::Silence, login_page: false };
        let sentences = [
            (Findings { udp: Answer::NoWay, ..silent }, &open, "check its router"),
            (Findings { login_page: true, tcp: Answer::Open, ..silent }, &open, "`warren up home` again"),
            (Findings { udp: Answer::Refused, tcp: Answer::Refused, ..silent }, &open, "start the exit"),
            (Findings { tcp: Answer::Open, ..silent }, &open, "allow UDP port 443"),
            (Findings { tcp: Answer::Refused, ..silent }, &open, "allow UDP port 443"),
            (silent, &open, "does not answer: check"),
            (silent, &closed, "run `warren down home`, log in"),
            (silent, &shut_in, "does not answer: check"),
            (Findings { udp: Answer::ShutIn, ..silent }, &open, "nft list ruleset"),
            (Findings { udp: Answer::ShutIn, ..silent }, &shut_in, "the kill switch of work is closed"),
        ];
        for (findings, walls, part) in sentences {
            let sentence = findings.sentence(remote, walls);
            assert!(sentence.contains(part) && sentence.lines().count() == 1, "{sentence}");
        }
    }

    #[test]
    fn a_login_page_is_a_page_of_somebody_else() {
        let redirect = |to: &str| format!("HTTP/1.1 302 Found\r\nServer: x\r\nLocation: {to}\r\n\r\n");
        assert!(is_login_page(&redirect("http://login.hotel.example/?u=1"), "192.0.2.1"));
        assert!(is_login_page("HTTP/1.1 511 Network Authentication Required\r\n\r\n", "192.0.2.1"));
        assert!(!is_login_page(&redirect("https://192.0.2.1/"), "192.0.2.1"));
        assert!(!is_login_page(&redirect("/elsewhere"), "192.0.2.1"));
        assert!(!is_login_page("HTTP/1.1 200 OK\r\n\r\n<p>Location: http://x/", "192.0.2.1"));
        assert!(!is_login_page("", "192.0.2.1"));
    }
}
