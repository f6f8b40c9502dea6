//! The address of an exit: a host name or IP address, and a UDP port.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The port of an endpoint without a port.
pub(crate) const DEFAULT_PORT: u16 = 443;

/// A host and a port, written `HOST:PORT`, with brackets around an IPv6 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// A DNS name in lower case, or an IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the same host with another port.
    pub fn with_port(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
    }

    /// The UDP port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// Parses `HOST[:PORT]`. The error continues after `"TEXT", but`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']').ok_or("the bracket is not closed")?;
            let address = address
                .parse::<Ipv6Addr>()
                .map_err(|_| "the text between the brackets must be an IPv6 address")?;
            let port = match port.strip_prefix(':') {
                Some(port) => parse_port(port)?,
                None if port.is_empty() => DEFAULT_PORT,
                None => return Err("a colon and a port must follow the bracket".to_owned()),
            };
            return Ok(Self { host: address.to_string(), port });
        }
        if text.matches(':').count() > 1 {
            return Err("an IPv6 address must be in brackets, such as \"[2001:db8::1]:443\"".to_owned());
        }
        match text.split_once(':') {
            Some((host, port)) => Ok(Self { host: parse_host(host)?, port: parse_port(port)? }),
            None => Ok(Self { host: parse_host(text)?, port: DEFAULT_PORT }),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// Parses a DNS name for the SNI extension of the TLS ClientHello (RFC 6066 section 3), which must not be an IP address or end in
/// a dot. The error continues after `"TEXT", but`.
pub(super) fn parse_server_name(text: &str) -> Result<String, String> {
    const EXPECTED: &str = "it must be a DNS name such as \"www.example.org\"";
    let name = parse_host(text).map_err(|_| EXPECTED.to_owned())?;
    if name.parse::<Ipv4Addr>().is_ok() || name.ends_with('.') {
        return Err(EXPECTED.to_owned());
    }
    Ok(name)
}

/// A DNS name or an IPv4 address.
fn parse_host(text: &str) -> Result<String, String> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Ok(address.to_string());
    }
    if text.is_empty() {
        return Err("it must begin with a host, such as \"exit.example.net:443\"".to_owned());
    }
    if !text.is_ascii() {
        return Err("a host name must be ASCII; write the name's xn-- form".to_owned());
    }
    let labels = text.strip_suffix('.').unwrap_or(text).split('.').collect::<Vec<_>>();
    if text.len() > 253 || !labels.iter().all(|label| is_label(label)) {
        return Err("the host must be a DNS name or an IP address".to_owned());
    }
    // If the last label consists only of digits, the text is a mistyped IPv4 address, because no top-level domain does (RFC 3696
    // section 2).
    if labels.last().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err("this is neither an IPv4 address nor a DNS name".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

/// A label by RFC 1035 section 2.3.1. Underscores are allowed too, because real names have them.
fn is_label(label: &str) -> bool {
    let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    plain && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
}

fn parse_port(text: &str) -> Result<u16, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if digits && port > 0 => Ok(port),
        _ => Err("the port must be a number from 1 to 65535".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_written_as_it_was_read() {
        for text in
            ["exit.example.net:443", "192.0.2.1:8443", "[2001:db8::1]:443", "a_b.example:1", "host:65535"]
        {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn endpoint_without_a_port_has_port_443() {
        for (text, written) in [("exit.example.net", "exit.example.net:443"), ("[::1]", "[::1]:443")] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        let wrong = [
            "",
            ":443",
            "host:",
            "host:0",
            "host:65536",
            "host:+1",
            "host:x",
            "::1",
            "fd00::1:443",
            "[::1",
            "[::1]443",
            "[host]:443",
            "10.0.0.300:443",
            "1.2.3:443",
            "a b:443",
            "-a:443",
            "a..b:443",
            "bücher.example:443",
            "a/b:1",
        ];
        for text in wrong {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }
}
