//! The `[metrics]` section of an exit.

use std::net::{IpAddr, SocketAddr};

use super::ConfigError;
use super::document::{Document, Located};
use super::value::{Problem, Value, boolean, socket_address};
use super::wording::quoted;

/// Where an exit serves its metrics, and which metrics it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// `None` when they are not served.
    pub listen: Option<SocketAddr>,
    /// Whether the file names the address. If it does not, and another program uses the default address, the exit
    /// runs without metrics.
    pub is_asked_for: bool,
    /// Whether each client has metrics of its own.
    pub clients: bool,
}

impl MetricsSettings {
    const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9466);

    pub(super) fn read(document: &mut Document<'_>) -> Result<Self, ConfigError> {
        let mut section = document.section("metrics")?;
        let listen = section.optional("listen", address_or_off)?;
        let public = section.or("public", false, boolean)?;
        let clients = section.or("clients", false, boolean)?;
        section.finish()?;
        let is_asked_for = listen.is_some();
        if let Some(Located { value: Some(address), line }) = &listen
            && !public
            && !is_local(address.ip())
        {
            let sentence = format!(
                "listen in [metrics] is \"{address}\", which may be reachable from the internet; write a loopback or private \
                 address, or add public = true"
            );
            return Err(section.error(*line, sentence));
        }
        let listen = listen.map_or(Some(Self::LISTEN), |listen| listen.value);
        Ok(Self { listen, is_asked_for, clients })
    }
}

fn address_or_off(value: Value<'_>) -> Result<Option<SocketAddr>, Problem> {
    const EXPECTED: &str = "an IP address with a port such as \"127.0.0.1:9466\", or \"off\"";
    match value.text(EXPECTED)? {
        "off" => Ok(None),
        // Reports the same error as for an invalid port.
        text if text.parse::<SocketAddr>().is_ok() => socket_address(value).map(Some),
        other => Err(value.problem(format!("is {}, but must be {EXPECTED}", quoted(other)))),
    }
}

/// Whether an address can be reached only from this host and private networks.
fn is_local(address: IpAddr) -> bool {
    // An IPv4-mapped IPv6 address is treated as the IPv4 address, because it is reached over IPv4.
    match address.to_canonical() {
        IpAddr::V4(address) => {
            // Shared address space (RFC 6598), which overlay networks use too.
            let is_shared = matches!(address.octets(), [100, 64..128, ..]);
            address.is_loopback() || address.is_private() || address.is_link_local() || is_shared
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}
