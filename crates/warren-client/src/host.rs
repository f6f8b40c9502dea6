//! Sets this host up for the tunnel: the TUN device, the plan of routes and rules around it, and the resolvers.

mod dns_warnings;
mod exec;
mod exec_resolvers;
pub(super) mod firewall_warning;
mod prepared;
mod resolvers;
mod route_settings;
mod standing;
mod without_lease;

use std::path::PathBuf;
use std::pin::Pin;

use anyhow::Context as _;
use ipnet::IpNet;
use warren_host::client_plan::{self, ClientFirewall, ClientPlanFacts as PlanFacts};
use warren_host::dns::DnsPlan;
use warren_host::{Band, Bypass, CARRIER_MARK, DeviceName, Host, Plan, StepError, facts};
use warren_session::client::SessionGrant;
use warren_tun::Queue;

use self::exec_resolvers::ExecResolvers;
use self::prepared::Prepared;
use self::route_settings::RouteSettings;
use self::standing::{Standing, in_front, plan, warn_of_bypasses};
use self::without_lease::{nothing_granted, nothing_granted_yet};
use super::device::{self, DeviceSettings, Restored};
use super::stub::Stub;
use warren_config::ClientProfile;
use warren_control::status::DeviceStatus;
use warren_daemon::helper::Helper;

/// How many slots are tried. Another tunnel that comes up at the same moment may take a slot first.
const SLOT_ATTEMPTS: usize = 5;

/// The TUN device and the changes to the host around it, which are applied or only planned.
pub(crate) struct HostSetup {
    device: DeviceSettings,
    mtu: Option<u16>,
    settings: RouteSettings,
    firewall_table: String,
    journal: PathBuf,
    profile: String,
    state_dir: PathBuf,
    standing: Option<Standing>,
    /// Devices that were created in advance, while an exit is asked for a session. The next plan that is applied uses them.
    prepared: Option<Prepared>,
    helper: Option<Helper>,
    /// The stub resolver, if the profile limits its resolvers to domains.
    stub: Option<Stub>,
    /// The helper's changes to the host's resolvers, each in a few words. `None` while the host uses its own resolvers.
    dns: Option<Vec<String>>,
    warnings: ResolverWarnings,
    /// Whether the device was recreated and the plan around it is not complete yet.
    device_is_new: bool,
    /// The resolvers of programs inside or outside the tunnel.
    exec: ExecResolvers,
}

/// The problems with the resolvers, in sentences that say what to do.
#[derive(Debug, Default)]
struct ResolverWarnings {
    /// Why look-ups may fail or leave outside the tunnel.
    trouble: Option<String>,
    /// A warning that the address of a listed resolver belongs to a network of the LAN.
    claimed: Option<String>,
}

/// The plan of [`HostSetup::apply`] for a dry run.
pub(crate) struct Preview {
    pub device: DeviceName,
    pub void: DeviceName,
    pub plan: Plan,
    /// `None` if the host keeps its resolvers.
    pub dns: Option<DnsPlan>,
    /// Other programs' policy rules that would come before Warren's usual priorities.
    pub bypasses: Vec<Bypass>,
}

impl HostSetup {
    /// Reads the settings of a profile, and changes nothing yet. `is_closed` tells whether the kill switch is closed. A dry run
    /// has no `helper`.
    pub(crate) fn new(
        profile: &ClientProfile,
        is_closed: bool,
        journal: PathBuf,
        state_dir: PathBuf,
        helper: Option<Helper>,
    ) -> Self {
        let name = profile.name.as_str().to_owned();
        Self {
            device: DeviceSettings {
                name: profile.tun.device.clone(),
                offload: profile.transport.tun_offload,
                queues: usize::from(profile.transport.workers()),
            },
            mtu: profile.tun.mtu,
            settings: RouteSettings::of(profile, is_closed),
            firewall_table: client_plan::firewall_table(&name),
            journal,
            profile: name,
            state_dir,
            standing: None,
            prepared: None,
            helper,
            stub: None,
            dns: None,
            warnings: ResolverWarnings::default(),
            device_is_new: false,
            exec: ExecResolvers::of(profile),
        }
    }

    /// How many queries the stub resolver has dropped, if there is one.
    pub(crate) fn dropped_queries(&self) -> u64 {
        self.stub.as_ref().map_or(0, Stub::dropped)
    }

    /// Sets the stub resolver of a profile that limits its resolvers to domains.
    pub(crate) fn with_stub(self, stub: Option<Stub>) -> Self {
        Self { stub, ..self }
    }

    /// Creates the devices in advance, while the exit is asked for a session. If this fails, [`Self::apply`] tries again and
    /// reports the error.
    pub(crate) fn prepare(&mut self) {
        if self.standing.is_some() || self.prepared.is_some() {
            return;
        }
        match Prepared::make(&self.device, self.mtu) {
            Ok(prepared) => self.prepared = Some(prepared),
            Err(error) => tracing::debug!("cannot create the devices yet: {error:#}"),
        }
    }

    /// Deletes the devices that [`Self::prepare`] has created, because no session is expected soon.
    pub(crate) fn forget_prepared(&mut self) {
        self.prepared = None;
    }

    /// Sets the host up as a Welcome asks. Returns the queues of the TUN device if one was created.
    ///
    /// # Errors
    /// When something could not be done. In that case the rest is undone.
    pub(crate) async fn apply(&mut self, welcome: &SessionGrant) -> anyhow::Result<Option<Vec<Queue>>> {
        self.exec.note(welcome);
        if self.settings.take_routes(welcome) {
            let networks: Vec<String> = self.settings.include.iter().map(ToString::to_string).collect();
            let named = if networks.is_empty() { "none".to_owned() } else { networks.join(", ") };
            tracing::info!("the exit names the tunnel's networks: {named}");
        }
        // If the device cannot be restored, the next check of the host reports the reason.
        let restored = self.restore_device().unwrap_or_default();
        if self.standing.is_none() {
            let (standing, queues) = self.stand(welcome).await?;
            self.standing = Some(standing);
            self.check_resolvers(welcome).await;
            // The resolvers are set last, when the routes lead to them.
            self.set_dns(self.servers(welcome), false).await?;
            return Ok(Some(queues));
        }
        self.change(welcome).await?;
        Ok(restored.map(|Restored { queues, stood_in }| {
            drop(stood_in);
            queues
        }))
    }

    /// Adds routes that make the tunnel's networks unreachable, unless the tunnel's routes exist already. Returns the queues of
    /// the TUN device if one was created.
    ///
    /// # Errors
    /// When something could not be done. In that case the rest is undone.
    pub(crate) async fn close(&mut self) -> anyhow::Result<Option<Vec<Queue>>> {
        self.stand_without_lease(&nothing_granted()).await
    }

    /// Blocks the tunnel's networks until an exit grants a lease, unless its routes exist already. Packets go to the device,
    /// which drops them silently. Programs get no ICMP error, so a browser keeps trying and can still find a login page, to which
    /// these routes do not apply. Returns the queues of the TUN device if one was created.
    ///
    /// # Errors
    /// When something could not be done. In that case the rest is undone.
    pub(crate) async fn close_for_now(&mut self) -> anyhow::Result<Option<Vec<Queue>>> {
        self.stand_without_lease(&nothing_granted_yet()).await
    }

    async fn stand_without_lease(&mut self, grant: &SessionGrant) -> anyhow::Result<Option<Vec<Queue>>> {
        if self.standing.is_some() {
            return Ok(None);
        }
        let (standing, queues) = self.stand(grant).await?;
        self.standing = Some(standing);
        Ok(Some(queues))
    }

    /// Removes the lease from this host. The tunnel's networks are unreachable until an exit grants another lease.
    ///
    /// # Errors
    /// When something could not be done. The next check of the host tries again.
    pub(crate) async fn give_lease_back(&mut self) -> anyhow::Result<()> {
        self.change(&nothing_granted()).await
    }

    /// Whether the tunnel's routes are on this host. If the session is lost, these routes keep the tunnel's traffic blocked.
    pub(crate) fn stands(&self) -> bool {
        self.standing.is_some()
    }

    /// Turns the applied plan into the one that a Welcome and the current settings ask for.
    async fn change(&mut self, welcome: &SessionGrant) -> anyhow::Result<()> {
        let Some(facts) = self.standing.as_ref().map(|standing| standing.facts.clone()) else {
            return Ok(());
        };
        // The facts that are not read again keep their values from before the first plan, because the plan itself has changed
        // them on the host.
        let wanted = PlanFacts {
            strict_reverse_path: facts.strict_reverse_path.clone(),
            router_advertisements: facts.router_advertisements.clone(),
            firewall: facts.firewall.clone(),
            band: facts.band,
            void: facts.void.clone(),
            ..self.facts(welcome, facts.slot, facts.device.clone()).await?
        };
        // The plan stays recorded even after an error, so that the parts of it that were applied are undone when the daemon ends.
        let servers = self.servers(welcome);
        if let Some(standing) = &mut self.standing {
            standing.facts = wanted;
            standing.servers.clone_from(&servers);
            let plan = standing.plan(&self.profile, &self.settings);
            match standing.change(&plan, self.device_is_new).await {
                // If another program has just removed the device, the next check of the host recreates it and repeats the change.
                Err(error)
                    if self.device_is_new || !standing.device.is_in_use() || !standing.void.is_there() =>
                {
                    tracing::debug!("the device has gone: {error}");
                }
                changed => drop(changed?),
            }
        }
        self.check_resolvers(welcome).await;
        self.set_dns(servers, false).await
    }

    /// Applies a profile that was read again, in one step from the old plan to the new one. `is_closed` tells whether the kill
    /// switch is closed afterwards.
    ///
    /// # Errors
    /// When something could not be done. In that case nothing has changed.
    pub(crate) async fn follow(
        &mut self,
        profile: &ClientProfile,
        is_closed: bool,
        welcome: Option<&SessionGrant>,
    ) -> anyhow::Result<()> {
        let before = self.settings.clone();
        self.settings = RouteSettings { exec: before.exec, ..RouteSettings::of(profile, is_closed) };
        // Without a grant, the networks that were in the tunnel stay blocked.
        if self.settings.of_exit {
            self.settings.include =
                welcome.map_or_else(|| before.include.clone(), |welcome| welcome.routes.clone());
        }
        self.exec.follow(profile);
        if self.settings == before || self.standing.is_none() {
            return Ok(());
        }
        // Without a Welcome, the tunnel's traffic stays blocked.
        let nothing = nothing_granted();
        let welcome = welcome.unwrap_or(&nothing);
        // If another program has just removed the device, this is no error, because the next check recreates it.
        if let Err(error) = self.change(welcome).await {
            self.settings = before;
            self.change(welcome).await.context(
                "cannot go back to the earlier settings of the profile; run `warren down` and `warren up`",
            )?;
            return Err(error);
        }
        Ok(())
    }

    /// Recreates the TUN device if another program has taken it away. The workers take its queues after [`Self::repair`].
    ///
    /// # Errors
    /// When no device carries traffic. The rest of the host can still be repaired.
    pub(crate) fn restore_device(&mut self) -> anyhow::Result<Option<Restored>> {
        let Some(standing) = &mut self.standing else { return Ok(None) };
        let restored = standing.device.restore(&self.device, standing.facts.mtu);
        if standing.facts.device != *standing.device.name() || matches!(restored, Ok(Some(_))) {
            standing.facts.device = standing.device.name().clone();
            self.device_is_new = true;
        }
        standing.restore_void();
        restored
    }

    /// The TUN device with this interface index has failed for good, although it may still exist.
    pub(crate) fn device_failed(&mut self, index: u32) {
        if let Some(standing) = &mut self.standing {
            standing.device.failed(index);
        }
    }

    /// Restores the changes that other programs have undone, and adapts the plan if this host has another LAN or new containers.
    /// Returns a list of the restored changes.
    ///
    /// # Errors
    /// When something could not be restored.
    pub(crate) async fn repair(&mut self) -> anyhow::Result<Vec<String>> {
        let lan = self.lan().await?;
        let guests = facts::guest_networks().await?;
        let Some(standing) = &mut self.standing else { return Ok(Vec::new()) };
        standing.facts.include = self.settings.include_beside(&lan, &guests);
        standing.facts.exclude = self.settings.exclude_beside(&lan, &guests);
        standing.facts.guests = guests;
        // Another program may have put a rule in front of Warren's since the last check.
        let blocked = standing.stay_in_front().await?;
        let plan = standing.plan(&self.profile, &self.settings);
        let mut repaired = standing.change(&plan, self.device_is_new).await?;
        let found = standing.host.repair(&plan, &mut standing.applied).await?;
        if let Some((missing, error)) = found.failed.first() {
            // The other errors already say what to do.
            let advice = match matches!(error, StepError::Io(_)) {
                true => "; run `warren down` and `warren up` again",
                false => "",
            };
            anyhow::bail!("{missing}, and cannot be repaired: {error}{advice}");
        }
        repaired.extend(found.repaired);
        if self.device_is_new {
            // systemd-resolved keeps resolvers for each link, so those of the deleted device are lost.
            let servers = standing.servers.clone();
            self.set_dns(servers, true).await?;
            // `device_is_new` is reset only now, so that the next check repeats the whole repair if a step above has failed.
            self.device_is_new = false;
        }
        self.check_claimed_resolvers();
        // This error is returned last, so that all other repairs are made even if no rule priority in front of another program's
        // rule is free.
        if let Some(sentence) = blocked {
            anyhow::bail!(sentence);
        }
        Ok(repaired.iter().map(ToString::to_string).collect())
    }

    /// Lists what does not work on this host although the tunnel is up, and what to do.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let has_firewall = self.standing.as_ref().is_none_or(|standing| standing.facts.firewall.is_some());
        let without = (!has_firewall).then(|| firewall_warning::warning(&self.settings.include)).flatten();
        self.warnings.trouble.iter().chain(&self.warnings.claimed).cloned().chain(without).collect()
    }

    /// Returns what [`Self::apply`] would do in `slot` with this Welcome. Creates no device.
    ///
    /// # Errors
    /// When the host's state cannot be read.
    pub(crate) async fn preview(&self, welcome: &SessionGrant, slot: u8) -> anyhow::Result<Preview> {
        let device = device::name_now(&self.device)?;
        let void = device::void_name_now()?;
        // The device does not exist yet. It will inherit the host's default setting.
        let takes_ipv6 = facts::takes_ipv6(&DeviceName::new("default")?)?;
        let mut facts = self.facts_where(welcome, slot, device.clone(), takes_ipv6).await?;
        let place = warren_host::place(&facts.tunnel(), slot).await?;
        facts.band = in_front(&place)?;
        facts.void = Some(void.clone());
        let servers = self.servers(welcome);
        let plan = plan(&self.profile, &self.settings, &facts);
        let dns = match servers.is_empty() {
            true => None,
            false => {
                Some(DnsPlan::of_host(&self.state_dir, &self.profile, &device, servers, self.split()).await)
            }
        };
        Ok(Preview { device, void, plan, dns, bypasses: place.bypasses })
    }

    /// Creates the device and applies the first plan around it.
    async fn stand(&mut self, welcome: &SessionGrant) -> anyhow::Result<(Standing, Vec<Queue>)> {
        let mtu = self.mtu_for(welcome);
        // The device must exist before the plan is applied, because the plan refers to the device and sets its MTU.
        let prepared = match self.prepared.take().filter(Prepared::is_there) {
            Some(prepared) => prepared,
            None => Prepared::make(&self.device, Some(mtu))?,
        };
        let Prepared { device, queues, void } = prepared;
        let mut host = Host::open(&self.journal).await?;
        let mut attempts = 0..SLOT_ATTEMPTS;
        loop {
            attempts.next();
            let slot = host.free_slot().await?;
            let slot = slot.context("256 tunnels are up on this host; take one down first")?;
            let mut facts = self.facts(welcome, slot, device.name().clone()).await?;
            let place = host.place(&facts.tunnel(), slot, facts.band).await?;
            facts.band = in_front(&place)?;
            facts.void = Some(void.name().clone());
            warn_of_bypasses(&place.bypasses);
            let servers = self.servers(welcome);
            let first = plan(&self.profile, &self.settings, &facts);
            match host.apply(&first).await {
                Ok(applied) => {
                    if let Some(sentence) = firewall_warning::missing(&self.settings.include) {
                        tracing::warn!("{sentence}");
                    }
                    let standing = Standing { device, void, host, applied, facts, servers };
                    return Ok((standing, queues));
                }
                // Another tunnel came up at the same moment and took the slot.
                Err(error) if matches!(error.cause, StepError::Exists) && !attempts.is_empty() => {}
                Err(error) => anyhow::bail!("{error}; `warren up --dry-run` prints every step"),
            }
        }
    }

    /// Undoes all changes. Returns a future that waits until the kernel has deleted the devices, which takes a while.
    ///
    /// # Errors
    /// When something could not be undone. Even then, the kernel deletes the devices when this process ends.
    pub(crate) async fn undo(&mut self) -> anyhow::Result<Pin<Box<dyn Future<Output = ()>>>> {
        // The resolvers are restored first, while the tunnel still takes queries. If the routes were removed first, some queries
        // would leave outside the tunnel.
        let dns = self.restore_dns().await;
        self.forget_prepared();
        let mut gone: Pin<Box<dyn Future<Output = ()>>> = Box::pin(std::future::ready(()));
        if let Some(mut standing) = self.standing.take() {
            let devices = standing.devices();
            let left = standing.host.undo_all_with(devices).await.context("cannot restore the host")?;
            gone = Box::pin(async move {
                left.await;
                // The devices' descriptors are closed last, because closing one blocks until the kernel has deleted the device.
                drop(standing);
            });
        }
        dns.context("cannot restore the host's DNS")?;
        Ok(gone)
    }

    /// The device that carries the tunnel's packets. `None` while there is only a substitute for it.
    pub(crate) fn device(&self) -> Option<DeviceStatus> {
        let standing = self.standing.as_ref().filter(|standing| standing.device.is_in_use())?;
        Some(DeviceStatus {
            name: standing.device.name().to_string(),
            mtu: standing.facts.mtu,
            offload: self.device.offload,
        })
    }

    /// Lists the changes to this host while the tunnel is up, each in a few words.
    pub(crate) fn changes(&self) -> Vec<String> {
        let Some(standing) = &self.standing else { return Vec::new() };
        let (device, void) = (standing.device.name(), standing.void.name());
        let mut changes = vec![
            format!("TUN device {device}"),
            format!("TUN device {void}, which discards packets while {device} is missing"),
        ];
        changes.extend(standing.host.changes());
        changes.extend(self.dns.iter().flatten().cloned());
        changes
    }

    /// The private networks that this host is on now. Empty if the profile does not keep the LAN reachable.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub(crate) async fn lan(&self) -> anyhow::Result<Vec<IpNet>> {
        Ok(if self.settings.lan { facts::lan_beside(&self.settings.include).await? } else { Vec::new() })
    }

    fn firewall(&self) -> anyhow::Result<Option<ClientFirewall>> {
        if !warren_host::has_nft() {
            return Ok(None);
        }
        let listening = facts::listening_ports()?;
        Ok(Some(ClientFirewall { table: self.firewall_table.clone(), listening }))
    }

    /// Whether the TUN device, if there is one, can have an IPv6 address. IPv6 may be switched off on this
    /// host.
    pub(crate) fn takes_ipv6(&self) -> bool {
        let device = self.device().and_then(|device| DeviceName::new(&device.name).ok());
        device.is_none_or(|device| facts::takes_ipv6(&device).unwrap_or(true))
    }

    fn mtu_for(&self, welcome: &SessionGrant) -> u16 {
        self.mtu.unwrap_or(welcome.mtu)
    }

    async fn facts(&self, welcome: &SessionGrant, slot: u8, device: DeviceName) -> anyhow::Result<PlanFacts> {
        let takes_ipv6 = facts::takes_ipv6(&device)?;
        self.facts_where(welcome, slot, device, takes_ipv6).await
    }

    async fn facts_where(
        &self,
        welcome: &SessionGrant,
        slot: u8,
        device: DeviceName,
        takes_ipv6: bool,
    ) -> anyhow::Result<PlanFacts> {
        let (lan, guests) = (self.lan().await?, facts::guest_networks().await?);
        Ok(PlanFacts {
            mtu: self.mtu_for(welcome),
            void: None,
            ipv4: welcome.ipv4.map(|(address, _)| address),
            ipv6: welcome.ipv6.filter(|_| takes_ipv6).map(|(address, _)| address),
            kernel_has_ipv6: facts::has_ipv6()?,
            include: self.settings.include_beside(&lan, &guests),
            exclude: self.settings.exclude_beside(&lan, &guests),
            guests,
            prefixes: welcome.prefixes.clone(),
            allowed_forwards: self.settings.allowed_forwards.clone(),
            router_advertisements: facts::devices_taking_router_advertisements()?,
            firewall: self.firewall()?,
            mark: CARRIER_MARK,
            slot,
            band: Band::USUAL,
            strict_reverse_path: facts::devices_with_strict_reverse_path()?,
            device,
        })
    }
}
