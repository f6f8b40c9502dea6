//! The `[kill_switch]` section of a profile.

use warren_host::kill_switch::{InboundPort, InboundProtocol};

use super::ConfigError;
use super::document::Document;
use super::value::{Problem, Value, boolean, list, word};
use super::wording::quoted;

/// A profile's settings for its kill switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillSwitchSettings {
    /// Whether traffic is blocked while the tunnel is not up.
    pub enabled: bool,
    /// Ports of this host that remain reachable from outside.
    pub allow_inbound: Vec<InboundPort>,
    /// Who may let a browser out with `warren portal`.
    pub portal: PortalOpener,
    /// Whether `warren exec --outside` may let programs out.
    pub allow_exec_outside: bool,
    /// Who may open the kill switch with `warren down`.
    pub down: KillSwitchOpener,
}

/// Who may open a closed kill switch with `warren down`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KillSwitchOpener {
    /// Root alone.
    #[default]
    Root,
    /// Root, and members of the group warren.
    Group,
}

/// Who may open a login page under a closed kill switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortalOpener {
    /// Root, and the users of `[exec]` if `allow_exec_outside` is set, because they may then let out any program anyway.
    #[default]
    Root,
    /// The same as `Root`, and members of the group warren.
    Group,
    /// Nobody.
    Nobody,
}

impl KillSwitchSettings {
    /// `of_exit` tells whether the exit names the tunnel's networks.
    pub(super) fn read(document: &mut Document<'_>, of_exit: bool) -> Result<Self, ConfigError> {
        const PORTS: &str = "a list of ports such as [\"tcp/22\"]";
        let mut section = document.section("kill_switch")?;
        let enabled = section.or("enabled", false, |value| match boolean(value)? {
            true if of_exit => Err(value.problem(WITHOUT_NETWORKS)),
            enabled => Ok(enabled),
        })?;
        let allow_inbound = section.or("allow_inbound", Vec::new(), list(PORTS, inbound_port))?;
        let allow_exec_outside = section.or("allow_exec_outside", false, boolean)?;
        let openers = [("root", KillSwitchOpener::Root), ("group", KillSwitchOpener::Group)];
        let down = section.or("down", KillSwitchOpener::Root, word(&openers))?;
        let openers =
            [("root", PortalOpener::Root), ("group", PortalOpener::Group), ("off", PortalOpener::Nobody)];
        let portal = section.or("portal", PortalOpener::Root, word(&openers))?;
        section.finish()?;
        Ok(Self { enabled, allow_inbound, down, portal, allow_exec_outside })
    }
}

const WITHOUT_NETWORKS: &str = "needs to know which networks to block before an exit answers; list them in include of [routes] instead of \"exit\"";

/// A port that remains reachable from outside, e.g. `tcp/22`.
fn inbound_port(value: Value<'_>) -> Result<InboundPort, Problem> {
    let text = value.text("a port such as \"tcp/22\"")?;
    let parsed = text.split_once('/').and_then(|(protocol, port)| {
        let protocol = match protocol {
            "tcp" => InboundProtocol::Tcp,
            "udp" => InboundProtocol::Udp,
            _ => return None,
        };
        let port = port.parse::<u16>().ok().filter(|number| *number > 0 && !port.starts_with('+'))?;
        Some(InboundPort { protocol, port })
    });
    parsed.ok_or_else(|| {
        value.problem(format!(
            "is {}, but must be \"tcp/\" or \"udp/\" and a port, such as \"tcp/22\"",
            quoted(text)
        ))
    })
}
