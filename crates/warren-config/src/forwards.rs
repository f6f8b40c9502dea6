//! The `[forwards]` section of a profile: the ports of this host that may be reached through the tunnel.

use warren_host::Ports;
use warren_host::kill_switch::InboundProtocol;
use warren_session::clients::{ForwardProtocol, PortRange};

use super::ConfigError;
use super::document::Document;
use super::value::{Problem, Value, list};
use super::wording::quoted;

/// Reads the allowed ports. Without the section, no port is allowed.
pub(super) fn read_forwards(document: &mut Document<'_>) -> Result<Vec<Ports>, ConfigError> {
    const LIST: &str = "a list of ports such as [\"tcp/443\", \"udp/6881-6889\"]";
    let mut section = document.section("forwards")?;
    let allow = section.or("allow", Vec::new(), list(LIST, ports))?;
    section.finish()?;
    Ok(allow)
}

fn ports(value: Value<'_>) -> Result<Ports, Problem> {
    const EXPECTED: &str =
        "\"tcp/\" or \"udp/\" and a port or a range, such as \"tcp/443\" or \"udp/6881-6889\"";
    let text = value.text(EXPECTED)?;
    let ports: PortRange =
        text.parse().map_err(|_| value.problem(format!("is {}, but must be {EXPECTED}", quoted(text))))?;
    Ok(ports_of(ports))
}

/// A forward's ports in the type that the host's firewall uses.
pub fn ports_of(ports: PortRange) -> Ports {
    let protocol = match ports.protocol() {
        ForwardProtocol::Tcp => InboundProtocol::Tcp,
        ForwardProtocol::Udp => InboundProtocol::Udp,
    };
    Ports { protocol, first: ports.first(), last: ports.last() }
}
