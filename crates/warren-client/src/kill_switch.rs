//! A profile's kill switch: when it is closed, which packets of the daemon it lets out, and when it is opened again.
//!
//! Only `warren down` and `warren cleanup` open a closed kill switch, apart from a failed `up` that had closed it, and on-demand
//! if the profile allows that.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use tokio::time::timeout;
use warren_host::facts::{guest_networks, lan_beside, networks};
use warren_host::kill_switch::{self, ExecLetOut, KillSwitch, KillSwitchRules};
use warren_host::{CARRIER_MARK, GuestNetwork, NftError};

use crate::fleet::Fleet;
use warren_config::{ClientProfile, PortalOpener, RemoteExit};
use warren_daemon::daemon_directory::{self, DaemonDirectory};
use warren_daemon::output;
use warren_daemon::resolvers;

/// How many addresses of exits stay allowed. A further address replaces the oldest that no connection uses. A roster has up to 512
/// addresses. The remaining 128 are for the profile's exits and for the addresses to which names resolve.
const MOST_EXITS: usize = 640;
/// How many resolvers may be asked for an exit's name. A further resolver replaces the oldest.
const MOST_RESOLVERS: usize = 16;
const DNS_PORT: u16 = 53;
/// How long a status request waits for the kernel to say whether the table exists.
const TIME_TO_LOOK: Duration = Duration::from_secs(1);

/// The kill switch of a running daemon, whether it is closed or not in use.
#[derive(Debug, Default)]
pub(crate) struct Lockdown {
    closed: Option<KillSwitch>,
    exits: Vec<SocketAddr>,
    /// The resolvers that may be asked for exits' names. Empty if no exit has to be looked up.
    resolvers: Vec<SocketAddr>,
    /// The random firewall mark of queries for exits' names, which no other program can guess. `None` if no exit has to be looked
    /// up.
    query_mark: Option<u32>,
    /// The programs that `warren exec` has put inside or outside of the tunnel.
    exec: Option<ExecLetOut>,
    /// Whether the fleet's roster contains exits that must be looked up.
    roster_has_names: bool,
}

impl Lockdown {
    /// Closes the kill switch if the profile asks for one, or keeps it closed if it is closed already.
    ///
    /// # Errors
    /// When it should be closed but cannot be.
    pub(crate) async fn of(
        profile: &ClientProfile,
        fleet: &Fleet,
        directory: &DaemonDirectory,
    ) -> anyhow::Result<Self> {
        let roster_has_names = fleet.has_names();
        // A closed kill switch stays closed, even if the profile no longer asks for one. If an earlier daemon has opened it only because
        // this host was on a trusted network, it is closed again, because this host may have left that network since.
        let must_close = profile.kill_switch.enabled || directory.has_opened_at_home();
        if !must_close && !is_closed(directory)? {
            return Ok(Self { roster_has_names, ..Self::default() });
        }
        // The first version of the table already allows all known addresses, because each later change of the table takes time.
        let query_mark = query_mark(profile, roster_has_names)?;
        let mut resolvers =
            if query_mark.is_some() { name_servers(&resolvers::listed()) } else { Vec::new() };
        resolvers.truncate(MOST_RESOLVERS);
        let exits = addresses(profile, fleet);
        let mut lockdown = Self { closed: None, exits, resolvers, query_mark, exec: None, roster_has_names };
        let rules = lockdown.with_carrier(rules(profile).await?);
        lockdown.closed = Some(closed(profile, directory, rules).await?);
        Ok(lockdown)
    }

    /// The firewall mark by which the table recognises the daemon's own queries.
    pub(crate) fn query_mark(&self) -> u32 {
        self.query_mark.unwrap_or(CARRIER_MARK)
    }

    /// Whether this daemon keeps the kill switch closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Describes a problem with the table in the kernel. `None` if there is none.
    pub(crate) async fn trouble(&self) -> Option<String> {
        // The status must be answered even if nft hangs.
        match timeout(TIME_TO_LOOK, self.closed.as_ref()?.stands()).await.unwrap_or(Err(NftError::Gone)) {
            Ok(true) => None,
            Ok(false) => Some(
                "somebody has deleted or changed the kill switch's table, and traffic may leave outside the tunnel; the daemon closes \
                 it again within a second"
                    .to_owned(),
            ),
            Err(error) => Some(format!("cannot tell whether the kill switch is closed: {error}")),
        }
    }

    /// Lists the kill switch's changes to this host, each in a few words.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.closed.iter().map(KillSwitch::change).collect()
    }

    /// Applies a profile that was read again. Allows the traffic that the profile now allows, and closes the kill switch if
    /// the profile now asks for that. `listed` are the resolvers in this host's files.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn follow(
        &mut self,
        profile: &ClientProfile,
        directory: &DaemonDirectory,
        listed: &[IpAddr],
    ) -> anyhow::Result<()> {
        if self.closed.is_none() && !profile.kill_switch.enabled {
            return Ok(());
        }
        let rules = self.with_carrier(rules(profile).await?);
        match &mut self.closed {
            Some(closed) => closed.set(rules).await.context("cannot change the kill switch"),
            None => {
                self.closed = Some(closed(profile, directory, rules).await?);
                self.query_mark = query_mark(profile, self.roster_has_names)?;
                self.allow_resolvers(listed).await
            }
        }
    }

    /// Allows the carrier's packets to an exit. `is_used` tells whether a connection uses an address. These addresses stay allowed.
    ///
    /// # Errors
    /// When nft fails. The kill switch then blocks the carrier.
    pub(crate) async fn allow_exit(
        &mut self,
        exit: SocketAddr,
        is_used: impl Fn(SocketAddr) -> bool,
    ) -> anyhow::Result<()> {
        if !self.exits.contains(&exit) {
            // Every other address is allowed again before a connection to it is opened.
            if self.exits.len() >= MOST_EXITS
                && let Some(oldest) = self.exits.iter().position(|known| !is_used(*known))
            {
                self.exits.remove(oldest);
            }
            self.exits.push(exit);
        }
        self.update().await
    }

    /// Allows the carrier's packets to the exits of the fleet's roster, and blocks them to addresses that no longer belong to an
    /// exit. `is_exits` tells whether an address belongs to an exit. `listed` are the resolvers in this host's files.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn follow_roster(
        &mut self,
        fleet: &Fleet,
        is_exits: impl Fn(SocketAddr) -> bool,
        listed: &[IpAddr],
    ) -> anyhow::Result<()> {
        let known = std::mem::take(&mut self.exits).into_iter().filter(|exit| is_exits(*exit));
        self.exits = each_once(known.chain(fleet.addresses()));
        self.roster_has_names = fleet.has_names();
        if self.roster_has_names && self.closed.is_some() && self.query_mark.is_none() {
            self.query_mark = Some(drawn_mark()?);
            return self.allow_resolvers(listed).await;
        }
        self.update().await
    }

    /// Allows the daemon's own queries to the resolvers in this host's files, so that it can look up an exit's name. Resolvers
    /// that were allowed earlier stay allowed, because the files may now contain only the tunnel's resolvers.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn allow_resolvers(&mut self, listed: &[IpAddr]) -> anyhow::Result<()> {
        if self.query_mark.is_none() {
            return Ok(());
        }
        let mut listed = name_servers(listed);
        listed.truncate(MOST_RESOLVERS);
        // If none is new, the order stays, because each change of the table takes time.
        if listed.iter().any(|server| !self.resolvers.contains(server)) {
            self.resolvers.retain(|server| !listed.contains(server));
            self.resolvers.append(&mut listed);
            self.resolvers.drain(..self.resolvers.len().saturating_sub(MOST_RESOLVERS));
        }
        self.update().await
    }

    /// Allows this host's containers, the DHCP servers on its networks, and the private networks that it is on now, if the
    /// profile keeps the LAN reachable.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn allow_networks(
        &mut self,
        lan: Vec<IpNet>,
        guests: Vec<GuestNetwork>,
        on_link: Vec<IpNet>,
    ) -> anyhow::Result<()> {
        let Some(closed) = &mut self.closed else { return Ok(()) };
        let rules = KillSwitchRules { lan, guests, on_link, ..closed.rules().clone() };
        closed
            .set(rules)
            .await
            .context("cannot allow traffic to the LAN and to containers through the kill switch")
    }

    /// Lets out the programs that `warren exec` puts inside or outside of the tunnel.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn allow_exec(&mut self, exec: ExecLetOut) -> anyhow::Result<()> {
        self.exec = Some(exec);
        self.update().await
    }

    /// Opens the kill switch while the daemon keeps running. [`Self::close_again`] closes it again.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) async fn open(&mut self, directory: &DaemonDirectory) -> anyhow::Result<()> {
        // The journal is needed to open the kill switch, so it is released first.
        self.closed = None;
        open(directory).await.map(drop)
    }

    /// Closes the kill switch again after [`Self::open`], even if the profile has none.
    ///
    /// # Errors
    /// When it cannot be closed.
    pub(crate) async fn close_again(
        &mut self,
        profile: &ClientProfile,
        directory: &DaemonDirectory,
    ) -> anyhow::Result<()> {
        if self.query_mark.is_none() {
            self.query_mark = query_mark(profile, self.roster_has_names)?;
        }
        let rules = self.with_carrier(rules(profile).await?);
        self.closed = Some(closed(profile, directory, rules).await?);
        Ok(())
    }

    /// Closes the kill switch again if another program has opened or changed it. Returns a sentence that says so.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn repair(&mut self) -> anyhow::Result<Vec<String>> {
        let Some(closed) = &mut self.closed else { return Ok(Vec::new()) };
        let repaired = closed.repair().await.context("cannot close the kill switch again")?;
        Ok(repaired.then(|| "somebody has changed the kill switch's table".to_owned()).into_iter().collect())
    }

    /// Changes the table if the rules in force differ from the wanted rules, or if nft has failed before.
    async fn update(&mut self) -> anyhow::Result<()> {
        let Some(rules) = self.closed.as_ref().map(|closed| self.with_carrier(closed.rules().clone())) else {
            return Ok(());
        };
        let Some(closed) = &mut self.closed else { return Ok(()) };
        closed.set(rules).await.context("cannot let the carrier out of the kill switch")
    }

    /// Adds the carrier and the daemon's queries to the traffic that the rules allow.
    fn with_carrier(&self, rules: KillSwitchRules) -> KillSwitchRules {
        let Self { exits, resolvers, query_mark, exec, .. } = self;
        KillSwitchRules {
            carriers: exits.clone(),
            resolvers: resolvers.clone(),
            query_mark: *query_mark,
            exec: *exec,
            ..rules
        }
    }
}

/// Closes a profile's kill switch while no daemon runs. Returns whether it was open.
///
/// # Errors
/// When it cannot be closed, or a daemon holds it.
pub async fn close(profile: &ClientProfile, directory: &DaemonDirectory) -> anyhow::Result<bool> {
    close_by(profile, directory, rules(profile).await?).await
}

/// Closes a profile's kill switch before its daemon starts, with the rules that the daemon will need. The daemon then has to
/// change the table only if it has to look up an exit's name. Returns whether the kill switch was open.
///
/// # Errors
/// As [`close`].
pub(crate) async fn close_before_start(
    profile: &ClientProfile,
    fleet: &Fleet,
    directory: &DaemonDirectory,
) -> anyhow::Result<bool> {
    let rules = KillSwitchRules { carriers: addresses(profile, fleet), ..rules(profile).await? };
    close_by(profile, directory, rules).await
}

/// Closes a kill switch with these rules. Returns whether it was open.
async fn close_by(
    profile: &ClientProfile,
    directory: &DaemonDirectory,
    rules: KillSwitchRules,
) -> anyhow::Result<bool> {
    let was_open = !is_closed(directory)?;
    closed(profile, directory, rules).await?;
    Ok(was_open)
}

async fn closed(
    profile: &ClientProfile,
    directory: &DaemonDirectory,
    rules: KillSwitchRules,
) -> anyhow::Result<KillSwitch> {
    let closed = KillSwitch::close(directory.kill_switch(), profile.name.as_str(), rules).await;
    closed.context("cannot close the kill switch")
}

/// Opens a profile's kill switch. Returns whether it was closed.
///
/// # Errors
/// When it cannot be opened.
pub async fn open(directory: &DaemonDirectory) -> anyhow::Result<bool> {
    kill_switch::open(directory.kill_switch())
        .await
        .context("cannot open the kill switch; run `warren down` again once this is fixed")
}

/// Whether a profile's kill switch is closed.
///
/// # Errors
/// When its journal cannot be read.
pub fn is_closed(directory: &DaemonDirectory) -> anyhow::Result<bool> {
    let journal = directory.kill_switch();
    kill_switch::is_closed(&journal)
        .with_context(|| format!("cannot read {}; run as root", journal.display()))
}

/// The other profiles whose kill switches are closed, whether their daemons run or not. They block every profile that has no kill
/// switch of its own.
///
/// # Errors
/// When the runtime directory or a journal cannot be read.
pub(crate) fn closed_by_others(runtime_dir: &Path, name: &str) -> anyhow::Result<Vec<String>> {
    let mut closed = Vec::new();
    for (other, directory) in daemon_directory::all(runtime_dir)? {
        // The exit's directory is among those of the profiles, and has no kill switch.
        if other != name && other != daemon_directory::EXIT && is_closed(&directory)? {
            closed.push(other);
        }
    }
    Ok(closed)
}

/// Returns advice about other profiles' kill switches that block this profile. Empty if there are none.
pub(crate) fn blocked_by(name: &str, others: &[String]) -> String {
    let [first, ..] = others else { return String::new() };
    format!(
        "the kill switch of {} is closed and blocks this profile; run `warren down {first}` to open it, or `warren up {name} \
         --kill-switch` to allow the exit of {name} as well",
        others.join(" and of ")
    )
}

/// Warns if a kill switch is still closed.
pub(crate) fn remind(name: &str, directory: &DaemonDirectory) {
    // If the journal cannot be read, the kill switch counts as closed, because a needless reminder does less
    // harm than a missing one.
    if is_closed(directory).unwrap_or(true) {
        output::warn(format!(
            "the kill switch of {name} is closed and nothing leaves outside a tunnel; `warren up {name}` connects, `warren down \
             {name}` opens it"
        ));
    }
}

/// Returns the rules that follow from the profile alone, which do not allow any exit or resolver yet.
///
/// # Errors
/// When the profile leaves the tunnel's networks to the exit, or this host's networks cannot be read.
pub async fn rules(profile: &ClientProfile) -> anyhow::Result<KillSwitchRules> {
    if profile.routes.of_exit {
        bail!(
            "the kill switch of {} cannot be closed, because the networks to block must be known before an exit answers; list \
             them in include of [routes] instead of \"exit\"",
            profile.name
        );
    }
    let lan = match profile.routes.lan.is_reachable(true) {
        true => lan_beside(&profile.routes.include).await?,
        false => Vec::new(),
    };
    Ok(KillSwitchRules {
        include: profile.routes.include.clone(),
        exclude: profile.routes.exclude.clone(),
        lan,
        guests: guest_networks().await?,
        prefixes: profile.routes.prefixes.clone(),
        allow_inbound: profile.kill_switch.allow_inbound.clone(),
        on_link: networks().await?,
        portal: profile.kill_switch.portal != PortalOpener::Nobody,
        ..KillSwitchRules::default()
    })
}

/// The exits that the profile and the fleet's roster name by address.
fn addresses(profile: &ClientProfile, fleet: &Fleet) -> Vec<SocketAddr> {
    let address =
        |exit: &RemoteExit| Some(SocketAddr::new(exit.endpoint.host().parse().ok()?, exit.endpoint.port()));
    each_once(profile.exits().filter_map(address).chain(fleet.addresses()))
}

/// Returns each of these addresses once, up to the allowed number.
fn each_once(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    addresses.fold(Vec::new(), |mut once, address| {
        if !once.contains(&address) && once.len() < MOST_EXITS {
            once.push(address);
        }
        once
    })
}

/// Whether all exits are given by address, so that none has to be looked up.
pub(crate) fn names_all_by_address(profile: &ClientProfile) -> bool {
    profile.exits().all(|exit| exit.endpoint.host().parse::<IpAddr>().is_ok())
}

/// Draws a random mark for queries, if an exit has to be looked up.
///
/// # Errors
/// When the kernel has no random numbers.
fn query_mark(profile: &ClientProfile, roster_has_names: bool) -> anyhow::Result<Option<u32>> {
    let has_names = roster_has_names || !names_all_by_address(profile);
    has_names.then(drawn_mark).transpose()
}

/// Draws a random mark for queries.
fn drawn_mark() -> anyhow::Result<u32> {
    loop {
        // Draws again until the mark is usable, which nearly every random mark is.
        let mut mark = [0; 4];
        getrandom::fill(&mut mark).map_err(std::io::Error::other)?;
        let mark = u32::from_ne_bytes(mark);
        // Other programs may compare only the lower 16 bits of a mark, so these must be neither 0 nor the carrier's mark. The
        // excluded values of bits 16 to 23 are Tailscale's marks. Its rules make packets with these marks unreachable.
        if ![0, CARRIER_MARK].contains(&(mark & 0xffff))
            && ![0x4_0000, 0x8_0000].contains(&(mark & 0xff_0000))
        {
            return Ok(mark);
        }
    }
}

fn name_servers(addresses: &[IpAddr]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| SocketAddr::new(*address, DNS_PORT)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn resolvers_of_the_latest_network_replace_the_oldest() {
        let mut lockdown = Lockdown { query_mark: Some(7), ..Lockdown::default() };
        let resolver = |number: u8| IpAddr::from([192, 0, 2, number]);
        for number in 0..40 {
            // Each network has a resolver of its own and one that all networks list.
            let listed = [resolver(200), resolver(number)];
            lockdown.allow_resolvers(&listed).await.unwrap();
            let allowed =
                |address: &IpAddr| lockdown.resolvers.contains(&SocketAddr::new(*address, DNS_PORT));
            assert!(listed.iter().all(allowed), "network {number}: {:?}", lockdown.resolvers);
            assert!(lockdown.resolvers.len() <= MOST_RESOLVERS);
        }
        let allowed = lockdown.resolvers.clone();
        lockdown.allow_resolvers(&[resolver(39), resolver(30)]).await.unwrap();
        assert_eq!(lockdown.resolvers, allowed, "nothing is new, so the table stays as it is");
    }

    #[tokio::test]
    async fn exit_in_use_stays_allowed_however_many_others_are_tried() {
        let mut lockdown = Lockdown::default();
        let in_use: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let is_used = |address| address == in_use;
        lockdown.allow_exit(in_use, is_used).await.unwrap();
        for port in 1..2_000 {
            let other = SocketAddr::from(([198, 51, 100, 1], port));
            lockdown.allow_exit(other, is_used).await.unwrap();
            assert!(lockdown.exits.contains(&in_use) && lockdown.exits.contains(&other), "after {port}");
        }
        assert_eq!(lockdown.exits.len(), MOST_EXITS);
    }
}
