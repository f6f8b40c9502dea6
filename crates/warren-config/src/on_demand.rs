//! The `[on_demand]` section of a profile: the networks where its tunnel rests.

use warren_host::current_network::TrustedNetwork;

use super::ConfigError;
use super::document::Document;
use super::value::{Problem, Value, boolean, list};
use super::wording::quoted;

/// A profile's settings for a tunnel that rests on trusted networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDemandSettings {
    /// The networks where the tunnel is down. Empty if it is always up.
    pub trusted: Vec<TrustedNetwork>,
    /// Whether the kill switch opens on these networks.
    pub opens_kill_switch: bool,
}

impl OnDemandSettings {
    /// Reads the section. `has_kill_switch` says whether the profile's kill switch is on.
    pub(super) fn read(document: &mut Document<'_>, has_kill_switch: bool) -> Result<Self, ConfigError> {
        let mut section = document.section("on_demand")?;
        let opens_kill_switch = section.or("trusted_opens_kill_switch", false, boolean)?;
        let trusted = section.or("trusted", Vec::new(), |value| {
            let trusted = list(EXPECTED, trusted_network)(value)?;
            if trusted.is_empty() || opens_kill_switch || !has_kill_switch {
                return Ok(trusted);
            }
            Err(value.problem(
                "would open the kill switch on these networks; set trusted_opens_kill_switch = true if you want that, or \
                 remove enabled = true from [kill_switch]",
            ))
        })?;
        section.finish()?;
        Ok(Self { trusted, opens_kill_switch })
    }
}

fn trusted_network(value: Value<'_>) -> Result<TrustedNetwork, Problem> {
    let text = value.text("a network such as \"home 192.168.1.0/24 4c:11:bf:00:00:01\"")?;
    text.parse().map_err(|()| {
        value.problem(format!(
            "has {}, but must have a name, the network and the router's hardware address, such as \"home 192.168.1.0/24 \
             4c:11:bf:00:00:01\"; `warren network` prints it for the network that this host is in",
            quoted(text)
        ))
    })
}

const EXPECTED: &str = "a list of networks such as [\"home 192.168.1.0/24 4c:11:bf:00:00:01\"]";
