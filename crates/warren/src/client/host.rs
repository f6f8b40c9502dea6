//! The client's part of the host: its TUN device and the plan around it.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use ipnet::IpNet;
use warren_host::client_plan::{self, ClientFirewall, ClientHost as PlanFacts};
use warren_host::dns::{self, Dns, DnsFacts, DnsPlan, Servers};
use warren_host::{Applied, CARRIER_MARK, DeviceName, Host, Plan, StepError, facts};
use warren_session::client::Welcome;
use warren_tun::{Device, DeviceConfig, Queue};

use super::daemon::ClientStart;
use crate::device_watch;
use crate::status::DeviceStatus;

/// How often a slot is chosen anew when another tunnel was faster.
const SLOT_ATTEMPTS: usize = 5;

/// The TUN device and what is applied around it, or nothing of both.
pub(crate) struct ClientHost {
    name: String,
    mtu: Option<u16>,
    offload: bool,
    include: Vec<IpNet>,
    exclude: Vec<IpNet>,
    lan: bool,
    firewall_table: String,
    journal: PathBuf,
    profile: String,
    servers: Servers,
    state_dir: PathBuf,
    standing: Option<Standing>,
    dns: Option<Dns>,
}

/// What [`ClientHost::apply`] would do.
pub(crate) struct Preview {
    pub(crate) device: DeviceName,
    pub(crate) plan: Plan,
    /// None if the host's resolvers stay.
    pub(crate) dns: Option<DnsPlan>,
}

struct Standing {
    device: Device,
    host: Host,
    applied: Applied,
    /// What the plan was made of; a Welcome that gives the same needs no new one.
    facts: PlanFacts,
    /// The resolvers that were chosen along with it.
    servers: Vec<IpAddr>,
}

impl ClientHost {
    pub(crate) fn new(start: &ClientStart) -> Self {
        Self {
            name: start.profile.device.clone(),
            mtu: start.profile.mtu,
            offload: start.profile.transport.tun_offload,
            include: start.profile.include.clone(),
            exclude: start.profile.exclude.clone(),
            lan: start.profile.lan,
            firewall_table: client_plan::firewall_table(&start.name),
            journal: start.directory.journal(),
            profile: start.name.clone(),
            servers: start.profile.dns.clone(),
            state_dir: start.state_dir.clone(),
            standing: None,
            dns: None,
        }
    }

    /// Makes the host fit a Welcome. The first time this makes the TUN device and returns its queue.
    ///
    /// # Errors
    /// What could not be done, after what was done is undone.
    pub(crate) async fn apply(&mut self, welcome: &Welcome) -> anyhow::Result<Option<Queue>> {
        let Some(facts) = self.standing.as_ref().map(|standing| standing.facts.clone()) else {
            let (standing, queue) = self.stand(welcome).await?;
            self.standing = Some(standing);
            self.set_dns(self.servers(welcome)).await?;
            return Ok(Some(queue));
        };
        let slot = facts.slot;
        // What was found on the host before the first plan changed it stays true.
        let wanted = PlanFacts {
            strict_reverse_path: facts.strict_reverse_path.clone(),
            firewall: facts.firewall.clone(),
            ..self.facts(welcome, slot).await?
        };
        // It keeps standing through an error, so that what is left of it is undone at the end.
        let servers = self.servers(welcome);
        if let Some(standing) = &mut self.standing
            && (wanted != facts || servers != standing.servers)
        {
            let plan = plan(&self.profile, self.lan, &wanted, &servers);
            standing.host.change(&mut standing.applied, &plan).await?;
            standing.servers.clone_from(&servers);
            standing.facts = wanted;
        }
        self.set_dns(servers).await?;
        Ok(None)
    }

    /// Makes again what somebody has undone, and says what that was; follows this host to another LAN. A device that is another's now is left alone.
    ///
    /// # Errors
    /// What could not be made again.
    pub(crate) async fn repair(&mut self) -> anyhow::Result<Vec<String>> {
        let lan = self.lan().await?;
        let Some(standing) = &mut self.standing else { return Ok(Vec::new()) };
        if !device_watch::is(standing.device.name(), standing.device.index()) {
            return Ok(Vec::new());
        }
        let exclude = [self.exclude.clone(), lan].concat();
        if standing.facts.exclude != exclude {
            let wanted = PlanFacts { exclude, ..standing.facts.clone() };
            standing
                .host
                .change(&mut standing.applied, &plan(&self.profile, self.lan, &wanted, &standing.servers))
                .await?;
            standing.facts = wanted;
        }
        let plan = plan(&self.profile, self.lan, &standing.facts, &standing.servers);
        let found = standing.host.repair(&plan, &mut standing.applied).await?;
        if let Some((missing, error)) = found.failed.first() {
            anyhow::bail!(
                "{missing}, and cannot be made so: {error}; run `warren down` and `warren up` again"
            );
        }
        Ok(found.repaired.iter().map(ToString::to_string).collect())
    }

    /// Makes the host's programs ask the tunnel's resolvers, once its routes lead there.
    async fn set_dns(&mut self, servers: Vec<IpAddr>) -> anyhow::Result<()> {
        if servers.is_empty() {
            if let Some(dns) = self.dns.take() {
                dns.undo().await?;
            }
            if self.servers == Servers::Exit {
                tracing::info!(
                    "the exit names no resolver that the tunnel leads to; the host's DNS is left as it is"
                );
            }
            return Ok(());
        }
        let device = DeviceName::new(self.name.clone())?;
        let plan = DnsPlan::of_host(&self.state_dir, &self.profile, &device, servers).await;
        self.dns = Some(match self.dns.take() {
            Some(dns) => dns.change(plan).await?,
            None => Dns::apply(plan).await?,
        });
        Ok(())
    }

    fn servers(&self, welcome: &Welcome) -> Vec<IpAddr> {
        dns::choose(&DnsFacts {
            wanted: &self.servers,
            of_exit: &welcome.dns,
            include: &self.include,
            exclude: &self.exclude,
            has_ipv4: welcome.ipv4.is_some(),
            has_ipv6: welcome.ipv6.is_some(),
        })
    }

    /// What [`Self::apply`] would do in `slot` with this Welcome, without the device being there.
    ///
    /// # Errors
    /// When the host's state cannot be read.
    pub(crate) async fn preview(&self, welcome: &Welcome, slot: u8) -> anyhow::Result<Preview> {
        let device = DeviceName::new(self.name.clone())?;
        // A device that is made takes this one's setting.
        let takes_ipv6 = facts::takes_ipv6(&DeviceName::new("default")?)?;
        let facts = self.facts_where(welcome, slot, takes_ipv6).await?;
        let servers = self.servers(welcome);
        let plan = plan(&self.profile, self.lan, &facts, &servers);
        let dns = match servers.is_empty() {
            true => None,
            false => Some(DnsPlan::of_host(&self.state_dir, &self.profile, &device, servers).await),
        };
        Ok(Preview { device, plan, dns })
    }

    /// Makes the device and the first plan around it.
    async fn stand(&self, welcome: &Welcome) -> anyhow::Result<(Standing, Queue)> {
        let config = DeviceConfig {
            name: self.name.clone(),
            mtu: self.mtu_for(welcome),
            queues: 1,
            offload: self.offload,
        };
        let (device, queues) = warren_tun::create(&config)?;
        let queue = queues.into_iter().next().context("the TUN device has no queue")?;
        let mut host = Host::open(&self.journal).await?;
        let mut attempts = 0..SLOT_ATTEMPTS;
        loop {
            attempts.next();
            let slot = host.free_slot().await?;
            let slot = slot.context("256 tunnels are up on this host; take one down first")?;
            let facts = self.facts(welcome, slot).await?;
            let servers = self.servers(welcome);
            match host.apply(&plan(&self.profile, self.lan, &facts, &servers)).await {
                Ok(applied) => return Ok((Standing { device, host, applied, facts, servers }, queue)),
                // Another tunnel that came up at the same moment took the slot.
                Err(error) if matches!(error.cause, StepError::Exists) && !attempts.is_empty() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Undoes everything but the device, which goes with its queue.
    pub(crate) async fn undo(&mut self) -> anyhow::Result<()> {
        // While the tunnel still takes queries, so that none leaves in between.
        let dns = match self.dns.take() {
            Some(dns) => dns.undo().await,
            None => Ok(()),
        };
        if let Some(mut standing) = self.standing.take() {
            standing.host.undo_all().await.context("cannot restore the host")?;
        }
        dns.context("cannot restore the host's DNS")
    }

    /// Waits until the device was deleted or renamed by somebody.
    pub(crate) fn device_gone(&self) -> impl Future<Output = ()> + use<> {
        let device = self
            .standing
            .as_ref()
            .map(|standing| (standing.device.name().to_owned(), standing.device.index()));
        async move {
            match device {
                Some((name, index)) => device_watch::gone(name, index).await,
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn device(&self) -> Option<DeviceStatus> {
        self.standing.as_ref().map(|standing| DeviceStatus {
            name: standing.device.name().to_owned(),
            mtu: standing.facts.mtu,
            offload: self.offload,
        })
    }

    /// The private networks that this host is on now; none if they are not to be reachable.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub(crate) async fn lan(&self) -> anyhow::Result<Vec<IpNet>> {
        Ok(if self.lan { facts::private_networks().await? } else { Vec::new() })
    }

    async fn firewall(&self) -> anyhow::Result<Option<ClientFirewall>> {
        if !warren_host::has_nft().await {
            tracing::warn!(
                "nft is missing, so connections from outside to this host are answered through the tunnel; install nftables"
            );
            return Ok(None);
        }
        let listening = facts::listening_ports()?;
        Ok(Some(ClientFirewall { table: self.firewall_table.clone(), listening }))
    }

    fn mtu_for(&self, welcome: &Welcome) -> u16 {
        self.mtu.unwrap_or(welcome.mtu)
    }

    async fn facts(&self, welcome: &Welcome, slot: u8) -> anyhow::Result<PlanFacts> {
        let takes_ipv6 = facts::takes_ipv6(&DeviceName::new(self.name.clone())?)?;
        self.facts_where(welcome, slot, takes_ipv6).await
    }

    async fn facts_where(&self, welcome: &Welcome, slot: u8, takes_ipv6: bool) -> anyhow::Result<PlanFacts> {
        Ok(PlanFacts {
            mtu: self.mtu_for(welcome),
            ipv4: welcome.ipv4.map(|(address, _)| address),
            ipv6: welcome.ipv6.filter(|_| takes_ipv6).map(|(address, _)| address),
            kernel_has_ipv6: facts::has_ipv6()?,
            include: self.include.clone(),
            exclude: [self.exclude.clone(), self.lan().await?].concat(),
            firewall: self.firewall().await?,
            mark: CARRIER_MARK,
            slot,
            strict_reverse_path: facts::devices_with_strict_reverse_path()?,
            device: DeviceName::new(self.name.clone())?,
        })
    }
}

/// The plan of routes and, in a full tunnel with resolvers of its own, the guard of their ports.
fn plan(profile: &str, lan: bool, facts: &PlanFacts, servers: &[IpAddr]) -> Plan {
    let mut plan = client_plan::client(facts);
    // Without a firewall there is no nft.
    if facts.firewall.is_some() && dns::needs_guard(&facts.include, &facts.exclude, servers) {
        plan.steps.push(dns::guard(profile, CARRIER_MARK, lan));
    }
    plan
}
