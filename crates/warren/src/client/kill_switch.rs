//! A profile's kill switch: when it is closed, what its daemon lets out, and who opens it again.
//!
//! Once closed it is opened by `warren down` and `warren cleanup` alone, and by an `up` that had to close it first and then failed.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;
use ipnet::IpNet;
use warren_host::GuestNetwork;
use warren_host::facts::{guest_networks, private_networks};
use warren_host::kill_switch::{self, KillSwitch, KillSwitchRules};

use crate::cli::output;
use crate::config::{ClientProfile, RemoteExit};
use crate::daemon_dir::{self, DaemonDir};
use crate::resolvers;

/// Exits' addresses that stay allowed; the oldest go first.
const MOST_EXITS: usize = 64;
/// Resolvers that may be asked for an exit's name.
const MOST_RESOLVERS: usize = 16;
const DNS_PORT: u16 = 53;

/// The closed kill switch of a running daemon, or that it has none.
#[derive(Debug, Default)]
pub(crate) struct Lockdown {
    closed: Option<KillSwitch>,
    exits: Vec<SocketAddr>,
    /// Who may be asked for exits' names; none where all exits are known by their addresses.
    resolvers: Vec<SocketAddr>,
    has_names: bool,
}

impl Lockdown {
    /// Closes the kill switch if the profile asks for it, or keeps it closed if it is.
    ///
    /// # Errors
    /// When it is to be closed and cannot be.
    pub(crate) async fn of(profile: &ClientProfile, directory: &DaemonDir) -> anyhow::Result<Self> {
        if !profile.kill_switch.enabled && !is_closed(directory)? {
            return Ok(Self::default());
        }
        // With all that is known by now, as each change of the table takes a while.
        let has_names = has_names(profile);
        let mut resolvers = if has_names { name_servers(&resolvers::listed()) } else { Vec::new() };
        resolvers.truncate(MOST_RESOLVERS);
        let exits = addresses(profile);
        let carriers = [exits.as_slice(), resolvers.as_slice()].concat();
        let rules = KillSwitchRules { carriers, ..rules(profile).await? };
        let closed = KillSwitch::close(directory.kill_switch(), profile.name.as_str(), rules).await?;
        Ok(Self { closed: Some(closed), exits, resolvers, has_names })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// What it has changed on this host, in a few words.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.closed.iter().map(KillSwitch::change).collect()
    }

    /// Lets out what a profile that was read again lets out, and closes if it asks for that now; `listed` are the resolvers that
    /// this host's files list.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn follow(
        &mut self,
        profile: &ClientProfile,
        directory: &DaemonDir,
        listed: &[IpAddr],
    ) -> anyhow::Result<()> {
        let carriers = [self.exits.as_slice(), self.resolvers.as_slice()].concat();
        let rules = KillSwitchRules { carriers, ..rules(profile).await? };
        match &mut self.closed {
            Some(closed) => closed.set(rules).await.context("cannot change the kill switch"),
            None if profile.kill_switch.enabled => {
                let name = profile.name.as_str();
                self.closed = Some(KillSwitch::close(directory.kill_switch(), name, rules).await?);
                self.has_names = has_names(profile);
                self.allow_resolvers(listed).await
            }
            None => Ok(()),
        }
    }

    /// Lets the carrier's packets go to an exit.
    ///
    /// # Errors
    /// When nft fails; the carrier is then shut in.
    pub(crate) async fn allow_exit(&mut self, exit: SocketAddr) -> anyhow::Result<()> {
        if self.exits.contains(&exit) {
            return Ok(());
        }
        self.exits.push(exit);
        if self.exits.len() > MOST_EXITS {
            self.exits.remove(0);
        }
        self.update().await
    }

    /// Lets the carrier's packets go to the resolvers that this host's files list now too, so that the daemon's own, marked
    /// queries find an exit by its name. Those of before stay: the files may name the tunnel's own by now.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn allow_resolvers(&mut self, listed: &[IpAddr]) -> anyhow::Result<()> {
        if !self.has_names {
            return Ok(());
        }
        let known = self.resolvers.len();
        let mut found = name_servers(listed);
        found.retain(|server| !self.resolvers.contains(server));
        self.resolvers.append(&mut found);
        self.resolvers.truncate(MOST_RESOLVERS);
        if self.resolvers.len() == known {
            return Ok(());
        }
        self.update().await
    }

    /// Lets out what goes to the private networks that this host is on now, if the profile has them reachable, and to its
    /// containers.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn allow_networks(
        &mut self,
        lan: Vec<IpNet>,
        guests: Vec<GuestNetwork>,
    ) -> anyhow::Result<()> {
        let Some(closed) = &mut self.closed else { return Ok(()) };
        let rules = KillSwitchRules { lan, guests, ..closed.rules().clone() };
        closed.set(rules).await.context("cannot let the LAN and containers out of the kill switch")
    }

    /// Closes it again if somebody has opened or changed it, and says so.
    ///
    /// # Errors
    /// When nft fails.
    pub(crate) async fn repair(&mut self) -> anyhow::Result<Vec<String>> {
        let Some(closed) = &mut self.closed else { return Ok(Vec::new()) };
        let repaired = closed.repair().await.context("cannot close the kill switch again")?;
        Ok(repaired.then(|| "somebody has changed the kill switch's table".to_owned()).into_iter().collect())
    }

    async fn update(&mut self) -> anyhow::Result<()> {
        let Some(closed) = &mut self.closed else { return Ok(()) };
        let carriers = [self.exits.as_slice(), self.resolvers.as_slice()].concat();
        let rules = KillSwitchRules { carriers, ..closed.rules().clone() };
        closed.set(rules).await.context("cannot let the carrier out of the kill switch")
    }
}

/// Closes a profile's kill switch without a daemon. Returns whether it was open.
///
/// # Errors
/// When it cannot be closed, or a daemon has it.
pub(crate) async fn close(profile: &ClientProfile, directory: &DaemonDir) -> anyhow::Result<bool> {
    let was_open = !is_closed(directory)?;
    let rules = rules(profile).await?;
    KillSwitch::close(directory.kill_switch(), profile.name.as_str(), rules).await?;
    Ok(was_open)
}

/// Opens a profile's kill switch. Returns whether it was closed.
///
/// # Errors
/// When it cannot be opened.
pub(crate) async fn open(directory: &DaemonDir) -> anyhow::Result<bool> {
    kill_switch::open(directory.kill_switch())
        .await
        .context("cannot open the kill switch; run `warren down` again once this is mended")
}

/// Whether a profile's kill switch is closed.
///
/// # Errors
/// When its journal cannot be read.
pub(crate) fn is_closed(directory: &DaemonDir) -> anyhow::Result<bool> {
    let journal = directory.kill_switch();
    kill_switch::is_closed(&journal)
        .with_context(|| format!("cannot read {}; run as root", journal.display()))
}

/// The other profiles whose kill switches are closed, whether their daemons run or not: what has no kill switch of its own is shut
/// in by them.
///
/// # Errors
/// When the runtime directory or a journal cannot be read.
pub(crate) fn closed_by_others(runtime_dir: &Path, name: &str) -> anyhow::Result<Vec<String>> {
    let mut closed = Vec::new();
    for (other, directory) in daemon_dir::all(runtime_dir)? {
        if other != name && is_closed(&directory)? {
            closed.push(other);
        }
    }
    Ok(closed)
}

/// Says that a kill switch is still closed, if it is.
pub(crate) fn remind(name: &str, directory: &DaemonDir) {
    if is_closed(directory).unwrap_or(true) {
        output::warn(format!(
            "the kill switch of {name} is closed and nothing leaves outside a tunnel; `warren up {name}` connects, `warren down \
             {name}` opens it"
        ));
    }
}

/// What is let out before anything is known but the profile.
///
/// # Errors
/// When the kernel cannot be asked for the networks.
pub(crate) async fn rules(profile: &ClientProfile) -> anyhow::Result<KillSwitchRules> {
    let lan = if profile.lan { private_networks().await? } else { Vec::new() };
    Ok(KillSwitchRules {
        include: profile.include.clone(),
        exclude: profile.exclude.clone(),
        lan,
        guests: guest_networks().await?,
        prefixes: profile.prefixes.clone(),
        allow_inbound: profile.kill_switch.allow_inbound.clone(),
        carriers: Vec::new(),
    })
}

/// The profile's exits that it names by address.
fn addresses(profile: &ClientProfile) -> Vec<SocketAddr> {
    let address =
        |exit: &RemoteExit| Some(SocketAddr::new(exit.endpoint.host().parse().ok()?, exit.endpoint.port()));
    profile.exits().filter_map(address).take(MOST_EXITS).collect()
}

/// Whether an exit has to be looked up.
fn has_names(profile: &ClientProfile) -> bool {
    profile.exits().any(|exit| exit.endpoint.host().parse::<IpAddr>().is_err())
}

fn name_servers(addresses: &[IpAddr]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| SocketAddr::new(*address, DNS_PORT)).collect()
}
