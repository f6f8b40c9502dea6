//! Owns the daemon's changes to this host, the kill switch, and the watch for changes that other programs make to either.

mod taken_addresses;

use std::net::IpAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ipnet::IpNet;
use warren_host::exec_groups::Side;
use warren_host::facts;
use warren_host::watch::Watch;
use warren_session::client::SessionGrant;
use warren_tun::Queue;

use super::health::{Health, Trouble};
use crate::device::Restored;
use crate::exec_upkeep::ExecUpkeep;
use crate::host::HostSetup;
use crate::kill_switch::Lockdown;
use crate::portal::PortalUpkeep;
use warren_config::ClientProfile;
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::helper::Helper;
use warren_tunnel::{Forwarding, WorkerHandle};

/// The parts of this host that the tunnel changes. Other programs change them too.
pub(super) struct HostUpkeep {
    /// The TUN device and the routes, rules and resolvers around it.
    pub(super) setup: HostSetup,
    pub(super) lockdown: Lockdown,
    /// The programs that `warren exec` has put inside or outside of the tunnel.
    pub(super) exec: ExecUpkeep,
    /// A user's way to a login page.
    portal: PortalUpkeep,
    /// `None` once the daemon has begun to restore the host.
    watch: Option<Watch>,
    helper: Helper,
    /// Why the host could not be set up as the latest Welcome asks.
    unapplied: Option<Trouble>,
    /// The networks that this host was in when the last Welcome was applied.
    networks_at_welcome: Vec<IpNet>,
}

impl HostUpkeep {
    /// Starts to watch the host.
    ///
    /// # Errors
    /// When the kernel does not report changes.
    pub(super) fn start(
        setup: HostSetup,
        lockdown: Lockdown,
        exec: ExecUpkeep,
        helper: Helper,
    ) -> anyhow::Result<Self> {
        let mut watch = Watch::open().map_err(cannot_watch)?;
        // The first check covers changes from before the watch began.
        watch.look_again();
        Ok(Self {
            setup,
            lockdown,
            exec,
            portal: PortalUpkeep::default(),
            watch: Some(watch),
            helper,
            unapplied: None,
            networks_at_welcome: Vec::new(),
        })
    }

    /// Waits until something on the host has changed. Cancelling the wait loses nothing.
    pub(super) async fn changed(&mut self) -> anyhow::Result<()> {
        match &mut self.watch {
            Some(watch) => watch.changed().await.map_err(cannot_watch),
            None => std::future::pending().await,
        }
    }

    /// Makes [`Self::changed`] return soon, even if nothing has changed.
    pub(super) fn look_again(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.look_again();
        }
    }

    /// Delays the next return of [`Self::changed`], because the daemon itself has just changed the host.
    pub(super) fn put_off_look(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.put_off();
        }
    }

    /// Starts an nft process in advance, because the host is about to be restored.
    pub(super) fn get_ready_to_undo(&self) {
        tokio::spawn(warren_host::get_nft_ready());
    }

    /// Restores the host, and no longer watches it. Returns a future that waits until the devices are gone.
    ///
    /// # Errors
    /// When something could not be restored.
    pub(super) async fn undo(&mut self) -> anyhow::Result<Pin<Box<dyn Future<Output = ()>>>> {
        // The watch's netlink socket must be closed before an nftables table is deleted. If it were closed afterwards, the close
        // would block for tens of milliseconds until the kernel has freed the table.
        self.watch = None;
        self.setup.undo().await
    }

    /// Removes the tunnel from this host, because it is not used on a trusted network. If `opens_kill_switch`, opens the kill
    /// switch last. Keeps watching the host.
    ///
    /// # Errors
    /// When something could not be restored.
    pub(super) async fn rest(
        &mut self,
        opens_kill_switch: bool,
        directory: &DaemonDirectory,
    ) -> anyhow::Result<()> {
        self.close_portal().await;
        self.setup.undo().await?.await;
        self.follow_exec().await?;
        self.put_off_look();
        if opens_kill_switch && self.lockdown.is_closed() {
            // The note comes first, so that a daemon which is killed in between leaves no open kill switch without it.
            directory.note_opened_at_home()?;
            self.lockdown.open(directory).await?;
        }
        Ok(())
    }

    /// Closes the kill switch again after [`Self::rest`] has opened it.
    ///
    /// # Errors
    /// When it cannot be closed.
    pub(super) async fn close_lockdown_again(
        &mut self,
        profile: &ClientProfile,
        directory: &DaemonDirectory,
    ) -> anyhow::Result<()> {
        self.lockdown.close_again(profile, directory).await?;
        // If the note stays, a later daemon closes a kill switch that a person has opened, which does less harm than the opposite.
        if let Err(error) = directory.forget_opened_at_home() {
            tracing::warn!("{error:#}");
        }
        let listed = self.listed_resolvers().await;
        self.lockdown.allow_resolvers(&listed).await
    }

    /// Lets a user's process out to a login page.
    ///
    /// # Errors
    /// Why it cannot be done, and what to do.
    pub(super) async fn open_portal(
        &mut self,
        directory: &DaemonDirectory,
        name: &str,
        process: (u32, u32),
    ) -> anyhow::Result<()> {
        let opened = self.portal.admit(&self.helper, (directory, name), process).await;
        self.put_off_look();
        opened
    }

    /// Closes a user's way to a login page if it is no longer needed. `is_up`: whether the tunnel carries packets.
    pub(super) async fn close_portal_if_over(&mut self, is_up: bool) {
        if self.portal.is_over(is_up) {
            self.close_portal().await;
        }
    }

    /// Closes a user's way to a login page, and ends the browser.
    pub(super) async fn close_portal(&mut self) {
        self.portal.close(&self.helper).await;
    }

    /// The resolvers that this host's files name now.
    pub(super) async fn listed_resolvers(&self) -> Vec<IpAddr> {
        self.helper.list_resolvers().await
    }

    /// Restores what other programs have undone, and follows this host to other networks. Returns the problems that remain.
    pub(super) async fn repair(&mut self, worker: &WorkerHandle, is_refused: bool) -> Vec<String> {
        let mut trouble = Vec::new();
        // Repairs the kill switch first. Until routes and rules are repaired, only the kill switch keeps packets from leaving
        // outside the tunnel.
        let closed = self.lockdown.repair().await;
        // The device comes before the plan, because the plan's routes lead to it.
        let device = self.setup.restore_device();
        for repaired in [closed, self.setup.repair().await] {
            match repaired {
                Ok(repaired) => repaired.iter().for_each(|what| tracing::warn!("{what}; restored")),
                Err(error) => trouble.push(format!("{error:#}")),
            }
        }
        match device {
            Ok(Some(Restored { queues, stood_in })) => {
                worker.open_device(queues, &Forwarding::Client).await;
                // The substitute can be dropped, because the routes lead to the new device now.
                drop(stood_in);
            }
            Ok(None) => {}
            Err(error) => trouble.push(format!("{error:#}")),
        }
        if let Err(error) = self.follow_exec().await {
            trouble.push(format!("{error:#}"));
        }
        if is_refused && let Err(error) = self.close(worker).await {
            trouble.push(format!("{error:#}"));
        }
        if let Err(error) = self.follow_network().await {
            trouble.push(format!("{error:#}"));
        }
        trouble
    }

    /// Prepares this host for programs inside or outside the tunnel. Returns the resolvers that they use.
    ///
    /// # Errors
    /// Why it cannot be done, and what to do.
    pub(super) async fn prepare_exec(&mut self, side: Side) -> anyhow::Result<Vec<IpAddr>> {
        let ready = self.exec.start(side, &mut self.setup, &mut self.lockdown).await;
        self.put_off_look();
        ready.map(|()| self.setup.exec_resolvers(side))
    }

    /// Puts a user's process inside or outside of the tunnel.
    ///
    /// # Errors
    /// As [`Self::prepare_exec`].
    pub(super) async fn take_in(&mut self, process: u32, user: u32, side: Side) -> anyhow::Result<()> {
        drop(self.prepare_exec(side).await?);
        self.helper.take_in(process, user, side).await
    }

    /// Adapts the nftables table for `warren exec` to the tunnel.
    ///
    /// # Errors
    /// When something could not be done.
    pub(super) async fn follow_exec(&mut self) -> anyhow::Result<()> {
        if let Some(changed) = self.exec.follow(&mut self.setup, &mut self.lockdown).await? {
            tracing::warn!("{changed}; restored");
        }
        Ok(())
    }

    /// Blocks the tunnel's traffic on a host that has no tunnel, because every exit has refused.
    async fn close(&mut self, worker: &WorkerHandle) -> anyhow::Result<()> {
        if let Some(queues) = self.setup.close().await.context("cannot block the tunnel's traffic")? {
            self.put_off_look();
            worker.open_device(queues, &Forwarding::Client).await;
        }
        Ok(())
    }

    /// Adapts the kill switch when this host joins other networks. The kill switch lets out packets to their resolvers and
    /// LAN, and to this host's containers.
    async fn follow_network(&mut self) -> anyhow::Result<()> {
        self.lockdown.allow_resolvers(&self.listed_resolvers().await).await?;
        let (guests, on_link) = (facts::guest_networks().await?, facts::networks().await?);
        self.lockdown.allow_networks(self.setup.lan().await?, guests, on_link).await
    }

    /// Sets this host up as a Welcome asks. Returns the queues of a new device.
    ///
    /// # Errors
    /// Why the host cannot be set up like that.
    pub(super) async fn apply(
        &mut self,
        welcome: &SessionGrant,
        health: &mut Health,
    ) -> anyhow::Result<Option<Vec<Queue>>> {
        let queues = self.setup.apply(welcome).await?;
        if self.applied().await {
            self.note_trouble(health, None);
        }
        // A check of the host right after the set-up would delay the first echo request, and `up` waits for its reply.
        self.put_off_look();
        Ok(queues)
    }

    /// Records a problem on this host. The host is checked again until there is none.
    pub(super) fn note_trouble(&mut self, health: &mut Health, trouble: Option<String>) {
        if health.note_host_trouble(trouble) {
            self.look_again();
        }
    }

    /// The device's name, if there is one.
    pub(super) fn device_name(&self) -> Option<String> {
        self.setup.device().map(|device| device.name)
    }

    /// Records that the latest Welcome was applied. Returns whether applying one had failed before.
    async fn applied(&mut self) -> bool {
        if let Err(error) = self.follow_exec().await {
            // Programs inside stay without network access until a later check of the host succeeds.
            tracing::warn!("{error:#}");
            self.look_again();
        }
        match facts::networks().await {
            Ok(networks) => self.networks_at_welcome = networks,
            Err(error) => tracing::debug!("cannot look at this host's networks: {error}"),
        }
        self.unapplied.take().is_some()
    }

    /// Records that the host could not be set up as the latest Welcome asks.
    pub(super) fn not_applied(&mut self, sentence: String) {
        self.unapplied = Some(Trouble { sentence, since: Instant::now() });
    }

    /// Forgets that the latest Welcome could not be applied, because the exits have refused since.
    pub(super) fn forget_unapplied(&mut self) {
        self.unapplied = None;
    }

    /// Why the host could not be set up as the latest Welcome asks.
    pub(super) fn unapplied(&self) -> Option<&str> {
        self.unapplied.as_ref().map(|unapplied| unapplied.sentence.as_str())
    }

    /// Whether it is time to open another session, in order to set up the host once more.
    pub(super) fn is_retry_due(&self) -> bool {
        self.unapplied.as_ref().is_some_and(|unapplied| unapplied.since.elapsed() >= RETRY_EVERY)
    }
}

fn cannot_watch(error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return anyhow::anyhow!(
            "cannot watch this host's network: not permitted; run it as root or with CAP_NET_ADMIN"
        );
    }
    anyhow::Error::new(error).context("cannot watch this host's network; check the limits on descriptors")
}

/// The shortest time between two sessions that are opened because the host could not be set up. Each of them costs the exit a
/// session.
const RETRY_EVERY: Duration = Duration::from_secs(5);
