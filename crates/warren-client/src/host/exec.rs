//! The part of the host's set-up that serves `warren exec`: programs that it puts inside or outside of the tunnel.

use std::net::IpAddr;

use warren_host::exec_groups::{ExecGroup, ExecRules, Side};

use super::HostSetup;

impl HostSetup {
    /// Adds the routes and rules for `warren exec` to the plan, now or as soon as there is a plan.
    ///
    /// # Errors
    /// When something could not be done. The next check of the host tries again.
    pub(crate) async fn prepare_for_exec(&mut self) -> anyhow::Result<()> {
        if self.settings.exec {
            return Ok(());
        }
        self.settings.exec = true;
        let Some(standing) = &mut self.standing else { return Ok(()) };
        let plan = standing.plan(&self.profile, &self.settings);
        standing.change(&plan, self.device_is_new).await.map(drop)
    }

    /// The resolvers of programs inside or outside of the tunnel.
    pub(crate) fn exec_resolvers(&self, side: Side) -> Vec<IpAddr> {
        match side {
            Side::Inside => self.exec.inside(),
            Side::Outside => self.exec.outside_resolvers.clone(),
        }
    }

    /// Whether there is a tunnel that carries packets.
    pub(crate) fn is_carrying(&self) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.device.is_in_use())
    }

    /// Returns the facts on which the nftables table for `warren exec` depends.
    ///
    /// # Errors
    /// When this host has no cgroup v2.
    pub(crate) fn exec_rules(&self, allows_outside: bool) -> std::io::Result<ExecRules> {
        let path = |side| ExecGroup::of(&self.profile, side).map(|group| group.nft_path());
        let cut_off = ExecRules::cut_off(path(Side::Inside)?, path(Side::Outside)?);
        let Some(standing) = &self.standing else { return Ok(cut_off) };
        Ok(ExecRules {
            slot: Some(standing.facts.slot),
            device: standing.device.is_in_use().then(|| standing.device.index()),
            resolvers: self.exec.inside(),
            outside_resolvers: allows_outside.then(|| self.exec.outside_resolvers.clone()),
            ..cut_off
        })
    }
}
