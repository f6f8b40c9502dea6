//! Adapts the nftables table for programs inside or outside of the tunnel to changes of the tunnel.

use std::path::PathBuf;

use anyhow::Context as _;
use warren_host::exec_groups::{ExecGroup, ExecTable, Marks, Side};
use warren_host::kill_switch::ExecLetOut;

use crate::host::HostSetup;
use crate::kill_switch::Lockdown;
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::helper::Helper;

/// The nftables table for programs inside or outside of the tunnel. It is created for the first such program.
#[derive(Debug)]
pub(crate) struct ExecUpkeep {
    name: String,
    journal: PathBuf,
    /// Whether the table should exist. An earlier daemon may have left it for programs that still run.
    is_wanted: bool,
    table: Option<ExecTable>,
    helper: Helper,
    /// Whether programs may be outside although the kill switch is closed.
    allows_outside: bool,
}

impl ExecUpkeep {
    pub(crate) fn new(name: &str, directory: &DaemonDirectory, helper: Helper, allows_outside: bool) -> Self {
        let journal = directory.exec();
        let is_wanted = journal.exists();
        Self { name: name.to_owned(), journal, is_wanted, table: None, helper, allows_outside }
    }

    /// Applies a profile that was read again.
    pub(crate) fn allow_outside(&mut self, allows_outside: bool) {
        self.allows_outside = allows_outside;
    }

    /// Lists the table's changes to this host, each in a few words.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.table.iter().map(ExecTable::change).collect()
    }

    /// Prepares this host for programs inside or outside of the tunnel. Creates their cgroups if they are
    /// missing.
    ///
    /// # Errors
    /// Why it cannot be done, and what to do.
    pub(crate) async fn start(
        &mut self,
        side: Side,
        setup: &mut HostSetup,
        lockdown: &mut Lockdown,
    ) -> anyhow::Result<()> {
        let name = &self.name;
        if !setup.is_carrying() {
            anyhow::bail!(
                "{name} is not connected, so nothing can be put inside or outside; see `warren status {name}`"
            );
        }
        if side == Side::Outside && lockdown.is_closed() && !self.allows_outside {
            anyhow::bail!(
                "the kill switch of {name} is closed and lets no program out; to let programs out, set allow_exec_outside = \
                 true in [kill_switch] and run `warren reload {name}`"
            );
        }
        self.is_wanted = true;
        // The table comes before the routes, because it drops packets of programs inside until the routes
        // exist.
        self.follow(setup, lockdown).await.map(drop)
    }

    /// Adapts the table to the tunnel. If another program has changed the table, recreates it and returns a
    /// sentence.
    ///
    /// # Errors
    /// When something could not be done. The next check of the host tries again.
    pub(crate) async fn follow(
        &mut self,
        setup: &mut HostSetup,
        lockdown: &mut Lockdown,
    ) -> anyhow::Result<Option<String>> {
        if !self.is_wanted {
            return Ok(None);
        }
        let allows_outside = self.allows_outside || !lockdown.is_closed();
        let cannot = "cannot keep programs of `warren exec` inside or outside of the tunnel";
        let rules = setup.exec_rules(allows_outside).context(cannot)?;
        if let Some(marks) = rules.slot.map(Marks::of) {
            let outside = allows_outside.then_some(marks.outside);
            lockdown.allow_exec(ExecLetOut { inside: marks.inside, outside }).await?;
        }
        let mut groups = self.groups()?;
        if groups.contains(&None) {
            self.helper.make_exec_groups().await.context(cannot)?;
            groups = self.groups()?;
        }
        let was_changed = match &mut self.table {
            Some(table) => table.follow(groups, rules).await.context(cannot)?,
            None => {
                let made = ExecTable::make(&self.journal, &self.name, groups, rules).await;
                self.table = Some(made.context(cannot)?);
                false
            }
        };
        // If a plan is already in place, for example after a restart, adds the routes for `warren exec` to it.
        setup.prepare_for_exec().await?;
        Ok(was_changed.then(|| "somebody has changed the table of `warren exec`".to_owned()))
    }
    /// The kernel's numbers of both cgroups.
    fn groups(&self) -> anyhow::Result<[Option<u64>; 2]> {
        let id = |side| ExecGroup::of(&self.name, side).map(|group| group.id());
        Ok([id(Side::Inside)?, id(Side::Outside)?])
    }
}
