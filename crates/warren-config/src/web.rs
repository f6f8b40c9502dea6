//! The `[web]` section of an exit: the address of its web page for operators.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::ConfigError;
use super::document::{Document, Located};
use super::value::{Problem, Value, socket_address};
use super::wording::quoted;

/// Where the page is served. Only this host can reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebListen {
    /// A loopback address.
    Loopback(SocketAddr),
    /// A Unix socket for the exit's own user and root.
    Unix(PathBuf),
}

impl fmt::Display for WebListen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(formatter, "http://{address}/"),
            Self::Unix(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// Reads the section. Without `listen` there is no page.
pub(super) fn read_web(document: &mut Document<'_>) -> Result<Option<WebListen>, ConfigError> {
    let mut section = document.section("web")?;
    let listen = section.optional("listen", address_or_path)?;
    section.finish()?;
    if let Some(Located { value: WebListen::Loopback(address), line }) = &listen
        // `to_canonical` makes ::ffff:127.0.0.1 count as the IPv4 loopback address.
        && !address.ip().to_canonical().is_loopback()
    {
        let sentence = format!(
            "listen in [web] is \"{address}\", which other hosts can reach; write a loopback address such as \
             \"127.0.0.1:9467\", and connect with: ssh -L 9467:127.0.0.1:9467 HOST"
        );
        return Err(section.error(*line, sentence));
    }
    Ok(listen.map(|listen| listen.value))
}

fn address_or_path(value: Value<'_>) -> Result<WebListen, Problem> {
    /// The longest path that fits a Unix socket's address, without the final NUL (`linux/un.h`).
    const LONGEST_PATH: usize = 107;
    const EXPECTED: &str = "a loopback address with a port such as \"127.0.0.1:9467\", or the path of a Unix socket such as \"/run/warren/exit/web.sock\"";
    let text = value.text(EXPECTED)?;
    if text.starts_with('/') {
        if text.len() > LONGEST_PATH || text.contains('\0') {
            return Err(
                value.problem(format!("is {}, but a socket path can have at most 107 bytes", quoted(text)))
            );
        }
        return Ok(WebListen::Unix(PathBuf::from(text)));
    }
    if text.parse::<SocketAddr>().is_ok() {
        // Reports the same error as for an invalid port.
        return socket_address(value).map(WebListen::Loopback);
    }
    Err(value.problem(format!("is {}, but must be {EXPECTED}", quoted(text))))
}
