//! A portal: lets one user's browser reach the login page of a network, while all other traffic stays blocked.
//!
//! The browser is in a cgroup of its own ([`ExecGroup::of_portal`]). An nftables table marks packets of this cgroup and user to
//! TCP ports 80 and 443, and queries to the network's resolver. A kill switch accepts this mark, and a policy rule routes marked
//! packets outside the tunnel.
//!
//! A portal ends in three ways: by [`Portal::close`]; when the process that owns the table ends, for any reason; and after the
//! portal's time, when the kernel removes the ports from the table's set.

mod ruleset;

use std::path::Path;

pub use self::ruleset::{PORTAL_MARK, PortalRules};
pub use crate::table_names::portal_table;
use crate::{
    ApplyError, Family, FirewallMark, Host, HostError, Plan, Rule, Step, StepError, TableFamily, UndoError,
    exec_groups::ExecGroup, facts, routing_tables,
};

/// An open portal. Dropping this closes the portal, and so does the end of this process.
#[derive(Debug)]
pub struct Portal {
    host: Host,
}

/// Why a portal cannot be opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum PortalError {
    /// The journal cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The kernel cannot be asked.
    #[error("cannot read this host's state: {0}")]
    Read(#[from] std::io::Error),
    /// The portal cannot be opened.
    #[error("{0}; a portal needs nft 0.9.7 and Linux 5.13 (CONFIG_NFT_SOCKET)")]
    Apply(#[from] ApplyError),
    /// The portal cannot be closed. The kernel ends it nevertheless when its time is over.
    #[error(transparent)]
    Undo(#[from] UndoError),
    /// The kernel's state cannot be read.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl Portal {
    /// Opens a portal of the profile `name`, whose journal is at `journal`. The cgroup must exist. Removes everything that a
    /// killed process left of an earlier portal.
    ///
    /// # Errors
    /// If a portal of this profile is open, the kernel lacks something, or nft fails.
    pub async fn open(
        journal: impl AsRef<Path>,
        name: &str,
        rules: &PortalRules,
    ) -> Result<Self, PortalError> {
        let journal = journal.as_ref();
        crate::recover(journal).await?;
        let mut host = Host::open(journal).await?;
        let plan = plan(name, rules, facts::has_ipv6()?);
        // The returned value is not needed, because the steps are undone from the journal, all at once.
        drop(host.apply(&plan).await?);
        Ok(Self { host })
    }

    /// Closes the portal.
    ///
    /// # Errors
    /// If parts of it could not be removed.
    pub async fn close(mut self) -> Result<(), PortalError> {
        Ok(self.host.undo_all().await?)
    }
}

impl ExecGroup {
    /// Ends every process in the cgroup, and removes it.
    pub fn end(&self) {
        self.kill();
        for _ in 0..ATTEMPTS {
            if !self.is_populated() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        self.remove();
    }
}

/// Maximum number of checks whether the processes of a portal have ended after SIGKILL.
const ATTEMPTS: u32 = 50;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

fn plan(name: &str, rules: &PortalRules, has_ipv6: bool) -> Plan {
    let rule = |family| {
        Step::Rule(Rule {
            family,
            priority: PRIORITY,
            fwmark: Some(FirewallMark::exactly(PORTAL_MARK)),
            invert: false,
            table: routing_tables::MAIN,
            suppress_prefix_length: None,
            from: None,
            iif: None,
        })
    };
    let table = Step::Nftables {
        family: TableFamily::Inet,
        table: portal_table(name),
        ruleset: ruleset::ruleset(rules),
        owned: true,
    };
    let ipv6 = has_ipv6.then(|| rule(Family::Ipv6));
    // The table comes last, because without the rule marked packets would be routed into the tunnel.
    Plan { steps: [rule(Family::Ipv4)].into_iter().chain(ipv6).chain([table]).collect() }
}

/// The priority of the rule for marked packets. It is in front of every band that has room for many tunnels.
const PRIORITY: u32 = 121;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Band;

    #[test]
    fn rule_stands_in_front_of_the_bands_of_tunnels_and_in_none_of_them() {
        assert_eq!(Band::of(PRIORITY).map(Band::first), None);
        let behind = Band::all().filter(|band| band.first() > PRIORITY).count();
        assert_eq!(behind, 8, "every band with 256 places");
    }
}
