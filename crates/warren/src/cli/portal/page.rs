//! Finds a network's login page: the network sends it as the response to a web request, in place of the host that was asked.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use warren_client::login_page;

/// The URL of a page that is requested without TLS, such as `http://example.com/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainUrl {
    host: String,
    port: u16,
    path: String,
}

/// The network's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A redirection to the login page.
    Page(String),
    /// A page of the network's own in place of the requested one, or a response that says that a login is needed (RFC 6585).
    Replaced,
    /// Nothing that points to a login page.
    Nothing,
    /// No answer.
    NoAnswer(String),
}

impl Found {
    /// Returns a rank: the higher, the more the answer reveals about a login page.
    fn tells(&self) -> u8 {
        match self {
            Self::NoAnswer(_) => 0,
            Self::Nothing => 1,
            Self::Replaced => 2,
            Self::Page(_) => 3,
        }
    }
}

impl PlainUrl {
    /// A page with known content, at a domain that is reserved for examples (RFC 2606).
    pub(crate) const DEFAULT: &'static str = "http://example.com/";

    /// Requests the page over both IP versions at once, because a network may answer with its login page on only one of them.
    pub(super) async fn ask(&self) -> Found {
        let addresses = match timeout(PATIENCE, lookup_host((self.host.as_str(), self.port))).await {
            Ok(Ok(addresses)) => addresses.collect::<Vec<_>>(),
            Ok(Err(error)) => return Found::NoAnswer(error.to_string()),
            Err(_) => return Found::NoAnswer("no answer to the query for its address".to_owned()),
        };
        let first = |is_ipv6: bool| addresses.iter().copied().find(|address| address.is_ipv6() == is_ipv6);
        let ask = async |address: Option<SocketAddr>| match address {
            Some(address) => self.ask_at(address).await,
            None => Found::NoAnswer("no address".to_owned()),
        };
        let (ipv4, ipv6) = tokio::join!(ask(first(false)), ask(first(true)));
        // The answer that reveals more is used.
        if ipv6.tells() > ipv4.tells() { ipv6 } else { ipv4 }
    }

    async fn ask_at(&self, address: SocketAddr) -> Found {
        let ask = async {
            let stream = TcpStream::connect(address).await?;
            login_page::ask(stream, &self.host, &self.path).await
        };
        match timeout(PATIENCE, ask).await {
            Ok(Ok(answer)) => self.judge(&answer),
            Ok(Err(error)) => Found::NoAnswer(error.to_string()),
            Err(_) => Found::NoAnswer("no answer".to_owned()),
        }
    }

    fn judge(&self, answer: &str) -> Found {
        let Some(answer) = login_page::Answer::read(answer) else {
            return Found::NoAnswer("an answer that is not a web page".to_owned());
        };
        let is_default = self.to_string() == Self::DEFAULT;
        match (answer.status, answer.location) {
            (_, Some(location)) if is_safe(location) => Found::Page(location.to_owned()),
            _ if answer.needs_login() => Found::Replaced,
            ("200", _) if is_default && !answer.body.contains("Example Domain") => Found::Replaced,
            _ => Found::Nothing,
        }
    }
}

/// Whether the target of a redirect is safe as an argument of a browser, because anybody on the network may have written it.
fn is_safe(location: &str) -> bool {
    let is_web = ["http://", "https://"].iter().any(|scheme| location.starts_with(scheme));
    is_web && location.len() <= LONGEST_URL && location.bytes().all(|byte| byte.is_ascii_graphic())
}

impl FromStr for PlainUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} must be an address such as \"{}\", without TLS", Self::DEFAULT);
        if !is_safe(text) {
            return Err(wrong());
        }
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match host.rsplit_once(':').filter(|(host, _)| !host.contains(':')) {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (host, 80),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_name) {
            return Err(wrong());
        }
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }
}

impl fmt::Display for PlainUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            80 => write!(f, "http://{}{}", self.host, self.path),
            port => write!(f, "http://{}:{port}{}", self.host, self.path),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(4);
const LONGEST_URL: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_page_is_told_from_the_page_that_was_asked_for() {
        let asked: PlainUrl = PlainUrl::DEFAULT.parse().unwrap();
        let redirected = "HTTP/1.1 302 Found\r\nlocation: https://login.hotel.example/?room=7\r\n\r\n";
        assert_eq!(asked.judge(redirected), Found::Page("https://login.hotel.example/?room=7".to_owned()));
        assert_eq!(asked.judge("HTTP/1.1 511 x\r\n\r\n"), Found::Replaced);
        assert_eq!(asked.judge("HTTP/1.0 200 OK\r\n\r\n<h1>Welcome to the hotel</h1>"), Found::Replaced);
        assert_eq!(asked.judge("HTTP/1.1 200 OK\r\n\r\n<h1>Example Domain</h1>"), Found::Nothing);
        assert!(matches!(asked.judge("SSH-2.0-x\r\n"), Found::NoAnswer(_)));
    }

    #[test]
    fn nothing_but_a_web_address_reaches_a_browsers_command_line() {
        let asked: PlainUrl = PlainUrl::DEFAULT.parse().unwrap();
        for location in
            ["--remote-debugging-port=1", "file:///etc/passwd", "http://a b/", "javascript:alert(1)", "/x"]
        {
            let answer = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n");
            assert_eq!(asked.judge(&answer), Found::Nothing, "{location}");
        }
    }

    #[test]
    fn page_is_asked_for_without_tls() {
        let url: PlainUrl = "http://192.0.2.1:8080".parse().unwrap();
        assert_eq!(url.to_string(), "http://192.0.2.1:8080/");
        assert_eq!(url, PlainUrl { host: "192.0.2.1".to_owned(), port: 8080, path: "/".to_owned() });
        for wrong in ["https://example.com/", "example.com", "http://", "http://a:x/", "http://a\nb/"] {
            assert!(wrong.parse::<PlainUrl>().is_err(), "{wrong}");
        }
    }
}
