//! The changes that are in place on the host while the tunnel is up: the device, and the plan that is applied
//! around it.

use std::net::IpAddr;

use warren_host::client_plan::{self, ClientPlanFacts as PlanFacts};
use warren_host::{Applied, Band, Bypass, CARRIER_MARK, Host, Missing, Plan, RulePlace, dns, exec_groups};

use super::route_settings::RouteSettings;
use crate::device::{TunDevice, Void};

/// The tunnel's changes that are in place on the host now.
pub(super) struct Standing {
    pub(super) device: TunDevice,
    /// The device that discards the tunnel's packets while `device` is missing.
    pub(super) void: Void,
    pub(super) host: Host,
    pub(super) applied: Applied,
    /// The facts that the plan was made from.
    pub(super) facts: PlanFacts,
    /// The resolvers that were chosen for the same Welcome.
    pub(super) servers: Vec<IpAddr>,
}

impl Standing {
    /// Changes the applied plan into `plan`. If the device was recreated, returns the entries that had to be restored around it.
    pub(super) async fn change(&mut self, plan: &Plan, device_is_new: bool) -> anyhow::Result<Vec<Missing>> {
        let mut made = Vec::new();
        if device_is_new {
            // The whole plan is repaired in its order, because a route cannot lead to a device that is down.
            made = self.host.repair(plan, &mut self.applied).await?.repaired;
        }
        self.host.change(&mut self.applied, plan).await?;
        Ok(made)
    }

    /// Chooses rule priorities in front of other programs' policy rules that bypass the tunnel. Returns a message for the user if
    /// no such priority is free.
    pub(super) async fn stay_in_front(&mut self) -> anyhow::Result<Option<String>> {
        let facts = &mut self.facts;
        let place = self.host.place(&facts.tunnel(), facts.slot, facts.band).await?;
        match in_front(&place) {
            Ok(band) => {
                if band != facts.band {
                    warn_of_bypasses(&place.bypasses);
                }
                facts.band = band;
                Ok(None)
            }
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    /// Recreates the discarding device if another program has taken it away.
    pub(super) fn restore_void(&mut self) {
        // A failure needs no message here: the plan's repair reports the missing routes.
        if let Err(error) = self.void.restore(self.facts.mtu) {
            tracing::debug!("cannot recreate {}: {error:#}", self.void.name());
        }
        self.facts.void = Some(self.void.name().clone());
    }

    /// The indexes of the devices that still exist on this host.
    pub(super) fn devices(&self) -> Vec<u32> {
        let device = self.device.is_there().then(|| self.device.index());
        let void = self.void.is_there().then(|| self.void.index());
        device.into_iter().chain(void).collect()
    }

    pub(super) fn plan(&self, profile: &str, settings: &RouteSettings) -> Plan {
        plan(profile, settings, &self.facts)
    }
}

/// The plan of routes and rules. In a full tunnel it contains the rules that keep DNS queries inside.
pub(super) fn plan(profile: &str, settings: &RouteSettings, facts: &PlanFacts) -> Plan {
    let mut plan = client_plan::client(facts);
    // The LAN's networks follow the profile's own exclusions.
    let lan = facts.exclude.get(settings.exclude.len()..).unwrap_or_default();
    if is_guarded(settings, facts) {
        plan.steps.push(dns::guard(profile, CARRIER_MARK, settings.lan, &facts.guests));
    } else if facts.firewall.is_some() && settings.lan_without_dns && !lan.is_empty() {
        plan.steps.push(dns::guard_lan(profile, CARRIER_MARK, lan, &settings.exclude, &facts.guests));
    }
    if settings.exec {
        plan.steps.extend(exec_groups::steps(facts));
    }
    plan
}

/// Whether firewall rules keep DNS queries from leaving outside the tunnel. This does not depend on the LAN's networks. A host
/// without nft cannot have such rules.
pub(super) fn is_guarded(settings: &RouteSettings, facts: &PlanFacts) -> bool {
    facts.firewall.is_some() && dns::needs_guard(&settings.include, &settings.exclude, &settings.servers)
}

/// The band of rule priorities in front of all policy rules that bypass the tunnel.
///
/// # Errors
/// When no priority is free. The error says what to do.
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

pub(super) fn warn_of_bypasses(bypasses: &[Bypass]) {
    for bypass in bypasses {
        tracing::warn!("{bypass}; Warren's rules are put in front of it; {}", bypass.remedy());
    }
}
