//! `RosterEndpoint`: where an exit of a roster listens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::error::RosterError;
use crate::message::is_unicast;

/// Longest DNS name in bytes.
// RFC 1035 section 2.3.4 allows 255 bytes on the wire. Two of them do not appear in the text of a name.
const MAX_HOST_LENGTH: usize = 253;

/// A host and a UDP port, written `HOST:PORT`, with brackets around an IPv6 address. Each endpoint has only one spelling, so equal
/// endpoints have equal texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RosterEndpoint {
    text: String,
    /// Unset if the host is a name.
    address: Option<IpAddr>,
    port: u16,
}

impl RosterEndpoint {
    /// The endpoint as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The UDP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The IP address, if the host is not a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }
}

impl FromStr for RosterEndpoint {
    type Err = RosterError;

    fn from_str(text: &str) -> Result<Self, RosterError> {
        parse(text)
            .filter(|endpoint| endpoint.text == text)
            .ok_or_else(|| RosterError::Endpoint { endpoint: text.chars().take(MAX_HOST_LENGTH).collect() })
    }
}

impl fmt::Display for RosterEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// Parses an endpoint in any spelling. Returns it in the only spelling that the roster uses.
fn parse(text: &str) -> Option<RosterEndpoint> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let address: Option<IpAddr> = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => Some(address.parse::<Ipv6Addr>().ok()?.into()),
        None => match host.parse::<Ipv4Addr>() {
            Ok(address) => Some(address.into()),
            Err(_) if is_host_name(host) => None,
            Err(_) => return None,
        },
    };
    let text = match address {
        Some(address) if !is_unicast(&address) => return None,
        Some(address) => SocketAddr::new(address, port).to_string(),
        None => format!("{host}:{port}"),
    };
    Some(RosterEndpoint { text, address, port })
}

/// Whether a text is a DNS name in lower case, without a final dot.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        (1..=63).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A last label of digits is a mistyped IPv4 address (RFC 3696 section 2).
    let is_address =
        name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    name.len() <= MAX_HOST_LENGTH && !is_address && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_one_spelling() {
        for sound in ["192.0.2.1:443", "[2001:db8::1]:443", "ams2.example.net:51820", "exit:1"] {
            let endpoint: RosterEndpoint = sound.parse().unwrap();
            assert_eq!(endpoint.to_string(), sound);
        }
        let wrong = [
            "",
            "exit",
            "exit:",
            "exit:0",
            "exit:0443",
            "exit:+443",
            "exit:65536",
            ":443",
            "Exit:443",
            "exit.:443",
            "-exit:443",
            "a..b:443",
            "192.0.2.01:443",
            "192.0.2:443",
            "[2001:DB8::1]:443",
            "[2001:db8:0::1]:443",
            "2001:db8::1:443",
            "[192.0.2.1]:443",
            "[exit]:443",
            "127.0.0.1:443",
            "[::1]:443",
            "224.0.0.1:443",
            "0.0.0.0:443",
            "[::ffff:192.0.2.1]:443",
            "exit :443",
            "exit\n:443",
        ];
        for wrong in wrong {
            assert!(wrong.parse::<RosterEndpoint>().is_err(), "{wrong:?}");
        }
        assert!(format!("{}:443", "a.".repeat(200)).parse::<RosterEndpoint>().is_err());
    }

    #[test]
    fn an_address_is_no_name() {
        let endpoint: RosterEndpoint = "[2001:db8::1]:443".parse().unwrap();
        assert_eq!((endpoint.address(), endpoint.port()), (Some("2001:db8::1".parse().unwrap()), 443));
        assert_eq!("ams2:443".parse::<RosterEndpoint>().unwrap().address(), None);
    }
}
