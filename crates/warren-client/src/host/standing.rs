//! What stands on the host as long as a tunnel does: its device, and what is applied around it.

use std::net::IpAddr;

use warren_host::client_plan::{self, ClientPlanFacts as PlanFacts};
use warren_host::{Applied, Band, Bypass, CARRIER_MARK, Host, Missing, Plan, RulePlace, dns};

use super::RouteSettings;
use crate::device::{TunDevice, Void};

pub(super) struct Standing {
    pub(super) device: TunDevice,
    /// What takes the tunnel's packets while that device is away.
    pub(super) void: Void,
    pub(super) host: Host,
    pub(super) applied: Applied,
    /// What the plan was made of; a Welcome that gives the same needs no new one.
    pub(super) facts: PlanFacts,
    /// The resolvers that were chosen along with it.
    pub(super) servers: Vec<IpAddr>,
}

impl Standing {
    /// Turns what is applied into `plan`. Returns what was missing of a device that was made anew.
    pub(super) async fn change(&mut self, plan: &Plan, device_is_new: bool) -> anyhow::Result<Vec<Missing>> {
        let mut made = Vec::new();
        if device_is_new {
            // All of it, in the plan's order: routes cannot lead to a device that is down.
            made = self.host.repair(plan, &mut self.applied).await?.repaired;
        }
        self.host.change(&mut self.applied, plan).await?;
        Ok(made)
    }

    /// Chooses priorities in front of rules of other programs that lead around the tunnel. Returns what is wrong if there are
    /// none.
    pub(super) async fn stay_in_front(&mut self) -> anyhow::Result<Option<String>> {
        let facts = &mut self.facts;
        let place = self.host.place(&facts.tunnel(), facts.slot, facts.band).await?;
        match in_front(&place) {
            Ok(band) => {
                if band != facts.band {
                    say_what_is_behind(&place.bypasses);
                }
                facts.band = band;
                Ok(None)
            }
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    /// Makes the device that nobody reads anew if somebody has taken it away.
    pub(super) fn restore_void(&mut self) {
        // Without it its routes are missing, which the plan's repair says.
        if let Err(error) = self.void.restore(self.facts.mtu) {
            tracing::debug!("no device in the place of {}: {error:#}", self.void.name());
        }
        self.facts.void = Some(self.void.name().clone());
    }

    pub(super) fn plan(&self, profile: &str, settings: &RouteSettings) -> Plan {
        plan(profile, settings, &self.facts)
    }
}

/// The plan of routes and, in a full tunnel, the guard of names.
pub(super) fn plan(profile: &str, settings: &RouteSettings, facts: &PlanFacts) -> Plan {
    let mut plan = client_plan::client(facts);
    if is_guarded(settings, facts) {
        plan.steps.push(dns::guard(profile, CARRIER_MARK, settings.lan, &facts.guests));
    }
    plan
}

/// Whether no query leaves outside, whatever networks the LAN has. Without a firewall there is no nft.
pub(super) fn is_guarded(settings: &RouteSettings, facts: &PlanFacts) -> bool {
    facts.firewall.is_some() && dns::needs_guard(&settings.include, &settings.exclude, &settings.servers)
}

/// The band in front of everything that leads around the tunnel.
pub(super) fn in_front(place: &RulePlace) -> anyhow::Result<Band> {
    let Some(band) = place.band else {
        let (what, remedy) = match place.bypasses.first() {
            Some(bypass) => (bypass.to_string(), bypass.remedy()),
            None => (
                "other programs' policy rules use every priority of Warren's".into(),
                "delete some of them".into(),
            ),
        };
        anyhow::bail!("{what}, and no priority in front of it is left for Warren's rules; {remedy}");
    };
    Ok(band)
}

pub(super) fn say_what_is_behind(bypasses: &[Bypass]) {
    for bypass in bypasses {
        tracing::warn!("{bypass}, but for Warren's rules, which are put in front of it; {}", bypass.remedy());
    }
}
