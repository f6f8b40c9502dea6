//! The exit's changes on its host, and their upkeep: addresses, forwarding, firewall rules, and routes to networks behind clients.

pub(crate) mod flows;
pub(crate) mod forwards;
pub(crate) mod hold;
mod prefixes;
mod service_ports;
mod upkeep;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, bail};
use warren_host::exit_hold::{HeldRules, Hold};
use warren_host::exit_plan::{self, Egress, ExitHost};
use warren_host::{Applied, DeviceName, Host, Plan, UndoError, facts};
use warren_session::clients::ClientRegistry;
use warren_session::pool::{gateway_ipv4, gateway_ipv6};

use self::flows::PermittedFlows;
pub(crate) use self::forwards::Waiting;
use self::prefixes::{Needed, Withheld};
use self::service_ports::ServicePorts;
use self::upkeep::Upkeep;
use warren_config::{ExitSettings, NatInterface};
use warren_control::ClientChange;
use warren_daemon::device_watch;
use warren_daemon::helper::Helper;

use crate::fleet::StoreAddresses;

/// The exit's TUN device.
pub const DEVICE: &str = "warren-exit";
/// The inner MTU that is granted: the size of a QUIC datagram on a path with MTU 1500, less a margin that keeps GSO batches
/// whole.
pub(crate) const INNER_MTU: u16 = 1380;

/// The host as it was found, before the exit changes anything.
pub(crate) struct FoundHost {
    host: Host,
    facts: ExitHost,
    services: ServicePorts,
    needed: Needed,
}

impl FoundHost {
    /// Finds the facts about the host that the exit needs. `store`: the addresses of the fleet's store, if the exit belongs to
    /// one.
    ///
    /// # Errors
    /// When the host lacks the interface that the configuration names, or cannot be examined.
    pub(crate) async fn look(
        config: &ExitSettings,
        (registry, store): (&ClientRegistry, Option<&StoreAddresses>),
        journal: impl AsRef<Path>,
        helper: &Helper,
    ) -> anyhow::Result<Self> {
        let host = Host::open(journal).await?;
        refuse_missing_interface(config)?;
        let services = ServicePorts::look(helper.clone(), Instant::now()).await;
        let needed = Needed::look(store, registry, helper, &Needed::default()).await;
        let facts = facts_of(config, (registry, &needed), &host, &services).await?;
        Ok(Self { host, facts, services, needed })
    }

    /// Sets the host up. Also returns the table that outlives this daemon.
    ///
    /// # Errors
    /// Which step failed. The steps before it are undone.
    pub(crate) async fn set_up(self, hold_journal: impl AsRef<Path>) -> anyhow::Result<(HostSetup, Hold)> {
        let Self { mut host, facts, services, needed } = self;
        let mut hold = Hold::open(hold_journal).await?;
        // This table is made before forwarding is turned on. If the exit is killed at any later moment, the table stays in place.
        let held = hold.put(&facts).await.context("cannot make the table that keeps flows alive")?;
        let plan = exit_plan::exit(&facts);
        let upkeep = match host.apply(&plan).await {
            Ok(applied) => Upkeep::new(plan, applied, Instant::now()),
            Err(error) => {
                // An exit that cannot start must not leave its table behind.
                hold.remove().await?;
                return Err(error.into());
            }
        };
        let setup = HostSetup {
            host,
            upkeep,
            ruleset: exit_plan::ruleset(&facts),
            held,
            services,
            forwards_for_others: None,
            has_too_many_links: false,
            prefix_routes: Applied::default(),
            flows: PermittedFlows::default(),
            waiting: Vec::new(),
            withheld: Vec::new(),
            needed,
        };
        Ok((setup, hold))
    }
}

/// Everything that the exit has changed on its host. It is adapted whenever the host, the configuration or the clients change.
pub(crate) struct HostSetup {
    host: Host,
    upkeep: Upkeep,
    /// The rules of the firewall table that is in force.
    ruleset: String,
    /// The rules of the table that outlives this daemon.
    held: HeldRules,
    services: ServicePorts,
    /// Whether the host also forwards packets that are not from or for clients, as last logged.
    forwards_for_others: Option<bool>,
    /// Whether the host has so many networks on its links that the rules contain wider networks instead.
    has_too_many_links: bool,
    /// The routes to networks behind clients.
    prefix_routes: Applied,
    flows: PermittedFlows,
    /// Forwards that are not in force, as they were logged.
    waiting: Vec<Waiting>,
    /// Networks behind clients that are not in force, as they were logged.
    withheld: Vec<Withheld>,
    /// The addresses that no network behind a client may contain, as they were found last.
    needed: Needed,
}

impl HostSetup {
    /// When to call [`Self::look`] next.
    pub(crate) fn due(&self) -> Instant {
        self.upkeep.due()
    }

    /// Adapts to changes on the host, and restores everything that another program has undone. Logs failures.
    pub(crate) async fn look(
        &mut self,
        config: &ExitSettings,
        registry: &ClientRegistry,
        store: Option<&StoreAddresses>,
    ) {
        let began = Instant::now();
        let plan = self.follow(config, registry, store).await;
        self.upkeep.look(&mut self.host, plan, began).await;
    }

    /// Adapts the rules to the host: the networks on its links, whether it also forwards for others, and the ports of its
    /// services. Adapts rules and routes to the networks behind clients. Returns the exit's plan as it would be made now.
    /// `store`: the addresses of the fleet's store, if the exit belongs to a fleet.
    ///
    /// # Errors
    /// What could not be done. The next check tries it again.
    pub(crate) async fn follow(
        &mut self,
        config: &ExitSettings,
        registry: &ClientRegistry,
        store: Option<&StoreAddresses>,
    ) -> anyhow::Result<Plan> {
        self.needed = Needed::look(store, registry, self.services.helper(), &self.needed).await;
        let mut facts = facts_of(config, (registry, &self.needed), &self.host, &self.services).await?;
        self.log_withheld(prefixes::in_force(registry, &facts.surroundings, &self.needed).1);
        self.services.follow(&mut facts, Instant::now()).await;
        self.log_waiting(forwards::in_force(registry, &self.services.host_ports(config)).1);
        self.log_who_forwards(exit_plan::forwards_for_others(&facts));
        self.log_links(exit_plan::has_too_many_links(&facts));
        let ruleset = exit_plan::ruleset(&facts);
        // Replacing the table resets its counters, so an unchanged one is left alone.
        if ruleset != self.ruleset {
            self.host.replace_table(exit_plan::TABLE, &ruleset).await?;
            self.ruleset = ruleset;
        }
        // Flows end only after the new ruleset is in place. Otherwise, for instance, a removed forward could accept new connections
        // after its old ones have ended.
        self.flows.follow(&facts, registry);
        self.held.follow(&facts).await.context("cannot change the table that outlives this exit")?;
        self.host
            .change(&mut self.prefix_routes, &exit_plan::prefix_routes(&facts))
            .await
            .context("cannot route the networks behind clients")?;
        Ok(exit_plan::exit(&facts))
    }

    /// Refuses a change that forwards ports which this host needs itself.
    ///
    /// # Errors
    /// Which port is taken, and by what.
    pub(crate) async fn refuse_forward(
        &self,
        change: &ClientChange,
        config: &ExitSettings,
        registry: &ClientRegistry,
    ) -> anyhow::Result<()> {
        let ClientChange::AddForward { forward } = change else { return Ok(()) };
        let host = self.services.host_ports_now(config).await?;
        forwards::refuse_taken(*forward, &host, registry).map_err(anyhow::Error::msg)
    }

    /// The forwards that are not in force, because this host needs their ports.
    pub(crate) fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    /// Logs each forward that is not in force, once.
    fn log_waiting(&mut self, waiting: Vec<Waiting>) {
        waiting.iter().filter(|one| !self.waiting.contains(one)).for_each(|one| tracing::warn!("{one}"));
        self.waiting = waiting;
    }

    /// Logs each network that is not routed to its client, once.
    fn log_withheld(&mut self, withheld: Vec<Withheld>) {
        withheld.iter().filter(|one| !self.withheld.contains(one)).for_each(|one| tracing::warn!("{one}"));
        self.withheld = withheld;
    }

    fn log_who_forwards(&mut self, for_others: bool) {
        const SENTENCE: &str = "forwarding is turned on for the whole host, so this host also forwards packets that are not from or for clients; if clients cannot reach the internet, see `warren doctor`";
        match self.forwards_for_others.replace(for_others) {
            None if for_others => tracing::info!("{SENTENCE}"),
            Some(false) if for_others => tracing::warn!("{SENTENCE}"),
            _ => {}
        }
    }

    fn log_links(&mut self, are_too_many: bool) {
        if are_too_many && !self.has_too_many_links {
            tracing::warn!(
                "this host has more than 4,096 networks on its links, so clients do not reach wider networks that contain them; look for a neighbour \
                 that sends too many router advertisements, or set accept_ra to 0"
            );
        }
        self.has_too_many_links = are_too_many;
    }

    /// Returns once the exit's nftables table is gone.
    pub(crate) async fn table_lost(&mut self) {
        self.host.table_lost().await;
    }

    /// Lists the changes on the host, each in a few words.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.host.changes()
    }

    /// Undoes everything that the exit has changed on the host, including later changes.
    ///
    /// # Errors
    /// What could not be undone.
    pub(crate) async fn undo_all(&mut self) -> Result<(), UndoError> {
        self.host.undo_all().await
    }
}

/// Refuses an interface that the host does not have at the start. One that disappears later may come back.
///
/// # Errors
/// The name, and what to write instead.
pub(crate) fn refuse_missing_interface(config: &ExitSettings) -> anyhow::Result<()> {
    if let NatInterface::Name(name) = &config.nat.interface
        && !device_watch::exists(name)?
    {
        let file = config.path.display();
        bail!(
            "{file}: interface in [nat] is {name:?}, but this host has no such device; write \"auto\", or one that `ip link` shows"
        );
    }
    Ok(())
}

/// Finds the facts about the host on which this exit's plan depends.
async fn facts_of(
    config: &ExitSettings,
    (registry, needed): (&ClientRegistry, &Needed),
    host: &Host,
    services: &ServicePorts,
) -> anyhow::Result<ExitHost> {
    let interface = match &config.nat.interface {
        NatInterface::Auto => Egress::Auto,
        NatInterface::Name(name) => Egress::Device(DeviceName::new(name.clone())?),
    };
    let device = DeviceName::new(DEVICE)?;
    let surroundings = host.surroundings(&device).await?;
    Ok(ExitHost {
        device,
        mtu: INNER_MTU,
        ipv4: config.ipv4.map(gateway_ipv4),
        ipv6: config.ipv6.map(gateway_ipv6),
        nat_ipv4: config.nat.ipv4,
        nat_ipv6: config.nat.ipv6,
        interface,
        listen_ports: config.ports(),
        service_ports: services.kept(),
        allow: config.allow.clone(),
        prefixes: prefixes::in_force(registry, &surroundings, needed).0,
        surroundings,
        forwards: forwards::in_force(registry, &services.host_ports(config)).0,
        isolation: config.isolation,
        resolvers: config.dns.clone(),
        router_advertisements: facts::devices_taking_router_advertisements()?,
    })
}
