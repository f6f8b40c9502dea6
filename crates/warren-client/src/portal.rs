//! Opens a network's login page for one user's browser: checks whether a portal can be opened, and keeps the portals of a
//! running daemon.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use warren_host::HostError;
use warren_host::exec_groups::ExecGroup;
use warren_host::portal::{Portal, PortalError, PortalRules};

use warren_config::{ClientProfile, PortalOpener};
use warren_daemon::daemon_directory::{self, DaemonDirectory};
use warren_daemon::directories::Directories;
use warren_daemon::helper::Helper;

/// The longest time that a login page may be open.
pub const LONGEST: Duration = Duration::from_secs(300);

/// A portal, open in this process.
#[derive(Debug)]
pub struct OpenPortal {
    portal: Portal,
    group: ExecGroup,
    since: Instant,
    time: Duration,
}

impl OpenPortal {
    /// Opens a portal for a user. Its cgroup must exist.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open(
        directory: &DaemonDirectory,
        name: &str,
        user: u32,
        resolvers: Vec<IpAddr>,
        time: Duration,
    ) -> anyhow::Result<Self> {
        let group = ExecGroup::of_portal(name)?;
        let seconds = u16::try_from(time.as_secs()).unwrap_or(u16::MAX).max(1);
        let rules = PortalRules { group: group.nft_path(), user, resolvers, seconds };
        let portal = match Portal::open(directory.portal(), name, &rules).await {
            Err(PortalError::Host(HostError::Busy(_))) => {
                anyhow::bail!("a login page of {name} is open already; close that browser first")
            }
            opened => opened.context("cannot let a browser out")?,
        };
        Ok(Self { portal, group, since: Instant::now(), time })
    }

    /// Whether the portal must be closed, because its time is over or its programs have ended.
    fn is_over(&self) -> bool {
        self.since.elapsed() >= self.time || !self.group.is_populated()
    }

    /// Closes the portal. Its programs keep running.
    ///
    /// # Errors
    /// When a part of the portal is left on this host.
    pub async fn close(self) -> anyhow::Result<()> {
        self.portal.close().await.context("cannot close the opening for a login page")
    }
}

/// Returns an error if a portal could not let anything out.
///
/// # Errors
/// A sentence that says why, and what to do.
pub fn refuse(directories: &Directories, profile: &ClientProfile) -> anyhow::Result<()> {
    let name = profile.name.as_str();
    if profile.kill_switch.portal == PortalOpener::Nobody {
        anyhow::bail!(
            "{name} forbids it (portal = \"off\" in [kill_switch]); allow it there and run `warren reload {name}`, or run `warren down \
             {name}`, log in, and run `warren up {name}`"
        );
    }
    for (other, directory) in daemon_directory::all(&directories.runtime)? {
        let journal = directory.kill_switch();
        let lets_out = warren_host::kill_switch::lets_portal_out(&journal)
            .with_context(|| format!("cannot read {}; run as root", journal.display()))?;
        if !lets_out {
            anyhow::bail!(
                "the kill switch of {other} is closed and blocks login pages; set portal = \"root\" in [kill_switch] of \
                 {other} and run `warren reload {other}`, or `warren client close {other}` if {other} is not up"
            );
        }
    }
    Ok(())
}

/// The portal of a running daemon, which has opened it for a user who is not root.
#[derive(Debug, Default)]
pub(crate) struct PortalUpkeep {
    open: Option<OpenPortal>,
}

impl PortalUpkeep {
    /// Opens a portal for a user, and moves the user's process into its cgroup.
    ///
    /// # Errors
    /// When the portal cannot be opened. In that case nothing of it is left on this host.
    pub(crate) async fn admit(
        &mut self,
        helper: &Helper,
        (directory, name): (&DaemonDirectory, &str),
        (process, user): (u32, u32),
    ) -> anyhow::Result<()> {
        if self.open.is_some() {
            anyhow::bail!("a login page of {name} is open already; close that browser first");
        }
        helper.make_portal_group().await?;
        let resolvers = helper.list_resolvers().await;
        let opened = OpenPortal::open(directory, name, user, resolvers, LONGEST).await?;
        if let Err(error) = helper.take_into_portal(process, user).await {
            opened.close().await?;
            return Err(error);
        }
        self.open = Some(opened);
        Ok(())
    }

    /// Whether the portal has to be closed now.
    pub(crate) fn is_over(&self, is_connected: bool) -> bool {
        self.open.as_ref().is_some_and(|open| is_connected || open.is_over())
    }

    /// Closes the portal, and ends its programs.
    pub(crate) async fn close(&mut self, helper: &Helper) {
        let Some(open) = self.open.take() else { return };
        if let Err(error) = open.close().await {
            tracing::error!("{error:#}; the kernel closes it within five minutes");
        }
        if let Err(error) = helper.end_portal_group().await {
            tracing::warn!("cannot end the browser of a login page: {error:#}; close it by hand");
        }
    }
}
