//! Finds policy rules of other programs by which a tunnel's traffic bypasses the tunnel.
//!
//! The kernel evaluates rules by priority, so a rule with a lower priority value than Warren's takes precedence. In this module,
//! such a rule is "in front of" Warren's rules.
//!
//! A rule may stay in front if it matches selected packets (by a mark, a device, a source address, a user, a protocol or a port),
//! because somebody made it for exactly these packets. It may also stay in front if it leads only to a few networks of its own,
//! as the rules of VRFs, Docker, Tailscale and systemd-networkd do. Any other rule in front that captures the tunnel's traffic is
//! a bypass.

mod seen;
mod tunnel;

use std::{fmt, io};

use ipnet::IpNet;

use self::seen::{Action, SeenRoute, SeenRule};
pub use self::tunnel::Tunnel;
use crate::{Family, band::Band, netlink::Netlink};

/// A rule of another program that makes a tunnel's traffic bypass the tunnel if its priority is in front of the tunnel's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    family: Family,
    priority: u32,
    /// The rule as ip(8) lists it.
    listed: String,
    how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum How {
    /// The rule's table has a route to this network.
    Leads(IpNet),
    /// The rule jumps to the rule with this priority, past all rules in between.
    Skips(u32),
}

/// Where a tunnel's rules should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePlace {
    /// The band in front of every bypass. `None` if no band is left.
    pub band: Option<Band>,
    /// The bypasses in front of the tunnel's band. If the tunnel has no band yet, those in front of the usual band.
    pub bypasses: Vec<Bypass>,
}

/// Finds a band with no bypass in front of it for the rules of the tunnel in `slot`. `band` is the band that the rules are in or,
/// if they do not exist yet, the one that is planned for them. All tunnels of a host use the same band, so the search never
/// returns a band that is later than one in use.
pub(crate) async fn place(netlink: &Netlink, tunnel: &Tunnel, slot: u8, band: Band) -> io::Result<RulePlace> {
    let mut bypasses = Vec::new();
    let mut taken = Vec::new();
    let mut earliest = band;
    for family in [Family::Ipv4, Family::Ipv6] {
        let rules: Vec<SeenRule> =
            netlink.rules(family).await?.iter().map(|rule| SeenRule::of(rule, family)).collect();
        for rule in &rules {
            // The tunnel's own rules do not count as taken, so that it may stay in its band.
            if !rule.is_of(slot) {
                taken.push(rule.priority);
            }
            if let Some(other) = Band::of(rule.priority).filter(|_| rule.is_warrens)
                && other.first() < earliest.first()
            {
                earliest = other;
            }
        }
        bypasses.extend(bypasses_among(netlink, &rules, family, tunnel).await?);
    }
    // All tunnels use the earliest band that any of them is in, so later bands do not fit.
    let fits = |wanted: &Band| {
        wanted.first() <= earliest.first()
            && wanted.has_room_for(slot)
            && bypasses.iter().all(|bypass| bypass.is_behind(*wanted))
            && !wanted.priorities(slot).iter().any(|priority| taken.contains(priority))
    };
    let found = Band::all().find(fits);
    bypasses.retain(|bypass| !bypass.is_behind(band));
    Ok(RulePlace { band: found, bypasses })
}

/// Finds the bypasses among `rules`. Reads routes only if a rule looks up a table that matters, because a host may have a million
/// routes.
async fn bypasses_among(
    netlink: &Netlink,
    rules: &[SeenRule],
    family: Family,
    tunnel: &Tunnel,
) -> io::Result<Vec<Bypass>> {
    // The usual band is the last one, so a rule after it is after all bands.
    let in_front = |rule: &&SeenRule| rule.priority <= Band::USUAL.last() && rule.takes_ordinary(tunnel);
    let candidates: Vec<&SeenRule> = rules.iter().filter(in_front).collect();
    let routes: Vec<SeenRoute> = match candidates.iter().any(|rule| rule.action == Action::Lookup) {
        true => {
            netlink.routes(family).await?.iter().filter_map(|route| SeenRoute::of(route, family)).collect()
        }
        false => Vec::new(),
    };
    let there = |priority: u32| rules.iter().any(|rule| rule.priority == priority);
    let bypass = |rule: &SeenRule| {
        let how = match rule.action {
            Action::Lookup => How::Leads(routes.iter().find_map(|route| rule.leads_around(route, tunnel))?),
            // A jump whose target does not exist does nothing.
            Action::Goto(target) if there(target) => How::Skips(target),
            Action::Goto(_) | Action::Other => return None,
        };
        Some(Bypass { family, priority: rule.priority, listed: rule.to_string(), how })
    };
    Ok(candidates.into_iter().filter_map(bypass).collect())
}

impl Bypass {
    /// Whether the rule does not affect a tunnel in the band, because it comes after the band, or jumps at most to the band's
    /// start.
    fn is_behind(&self, band: Band) -> bool {
        match self.how {
            How::Leads(_) => self.priority > band.last(),
            How::Skips(target) => self.priority > band.last() || target <= band.first(),
        }
    }

    /// Returns advice for the user.
    pub fn remedy(&self) -> String {
        let option = self.family.option();
        format!(
            "delete it with `ip {option} rule delete priority {}`, or give it a priority above {}",
            self.priority,
            Band::USUAL.last()
        )
    }
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} policy rule `{}` of another program ", self.family, self.listed)?;
        match self.how {
            How::Leads(network) => write!(f, "leads {network} around the tunnel"),
            How::Skips(_) => f.write_str("skips the tunnel's rules"),
        }
    }
}

#[cfg(test)]
mod tests;
