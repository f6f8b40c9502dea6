//! Compares the host with a plan.

use std::fmt;

use crate::{
    Plan, Step, TableFamily,
    netlink::Netlink,
    nft,
    step::{StepError, filters_arp, is_of_missing_guests, route_index},
    sysctl::{self, IPV6_FORWARDING},
};

/// A step of a plan that is not in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The step.
    pub step: Step,
    /// The state found instead.
    pub found: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not in effect: {}", self.step.summary(), self.found)
    }
}

/// Lists the steps that are not in effect.
pub(crate) async fn verify(plan: &Plan, netlink: &Netlink) -> Result<Vec<Missing>, StepError> {
    let mut missing = Vec::new();
    for step in &plan.steps {
        if let Some(found) = deviation(step, netlink).await? {
            missing.push(Missing { step: step.clone(), found });
        }
    }
    Ok(missing)
}

/// Returns how the host differs from one step, if it does.
async fn deviation(step: &Step, netlink: &Netlink) -> Result<Option<String>, StepError> {
    let deviation = match step {
        Step::Address { device, address } => match netlink.link(device).await? {
            None => Some(no_device()),
            Some(link) if netlink.has_address(link.index, *address).await? => None,
            Some(_) => Some("the device does not have the address".into()),
        },
        Step::LinkUp { device, mtu, group } => match netlink.link(device).await? {
            None => Some(no_device()),
            Some(link) if !link.is_up => Some("the device is down".into()),
            Some(link) if link.mtu != u32::from(*mtu) => Some(format!("the device's MTU is {}", link.mtu)),
            Some(link) if group.is_some_and(|group| group != link.group) => {
                Some(format!("the device is in group {}", link.group))
            }
            Some(_) => None,
        },
        Step::Route(route) if is_of_missing_guests(route, netlink).await? => None,
        Step::Route(route) => match route_index(route, netlink).await {
            Err(StepError::NoDevice(_)) => Some(no_device()),
            Err(error) => return Err(error),
            Ok(index) if netlink.has_route(route, index).await? => None,
            Ok(_) => Some("there is no such route".into()),
        },
        Step::Rule(rule) if netlink.has_rule(rule).await? => None,
        Step::Rule(_) => Some("there is no such rule".into()),
        Step::Sysctl { key, value } => match sysctl::read(key)? {
            Some(now) if now == *value => None,
            Some(now) => Some(format!("its value is {now}")),
            // The device no longer exists, so its setting cannot be missing.
            None if sysctl::is_of_missing_device(key) => None,
            None => Some("this kernel has no such setting".into()),
        },
        Step::ForwardIpv6 => match sysctl::read(IPV6_FORWARDING)? {
            Some(now) if now != "0" => None,
            Some(now) => Some(format!("its value is {now}")),
            None => Some("this kernel has no such setting".into()),
        },
        Step::Nftables { family, table, ruleset, .. } => match nft::count(*family, table).await? {
            // This host cannot filter ARP, so the step was skipped when the plan was applied.
            None if *family == TableFamily::Arp && !filters_arp() => None,
            None => Some("there is no such table".into()),
            // nft prints rules in its own form, so only the number of statements can be compared.
            Some(counted) if counted == nft::count_statements(ruleset) => None,
            Some((chains, rules)) => Some(format!("the table has {chains} chains and {rules} rules")),
        },
    };
    Ok(deviation)
}

fn no_device() -> String {
    "the device does not exist".into()
}
