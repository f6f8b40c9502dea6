//! Where an exit's clients are kept: behind a running exit's control socket, or in the registry file of a stopped one.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use warren_quic::key::PublicKey;
use warren_session::PeerKey;
use warren_session::clients::{Client, ClientRegistry, Invitation, RateLimit, RegistryError};
use warren_session::exit::check_clients;

use super::view::{ClientView, InvitationView, RemovedView};
use crate::config::{ExitConfig, load_clients, lock_clients, save_clients};

/// An exit's clients. Every change is durable when its function returns.
pub(crate) trait ClientStore {
    /// Enrols a client.
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()>;
    /// Enrols all of them, or none.
    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()>;
    /// Every client, by name.
    fn list(&mut self) -> anyhow::Result<Vec<ClientView>>;
    /// Takes an invitation in.
    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()>;
    /// The invitations that nobody has used yet, by name.
    fn invitations(&mut self) -> anyhow::Result<Vec<InvitationView>>;
    /// The keys that were taken from clients, by name.
    fn removed(&mut self) -> anyhow::Result<Vec<RemovedView>>;
    /// Removes a client, cutting it off if it is connected, or withdraws the invitation of that name.
    fn remove(&mut self, name: &str) -> anyhow::Result<()>;
    /// Changes a client; its session goes on unless that concerns it.
    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<()>;
}

/// A client to enrol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewClient {
    pub(crate) name: String,
    pub(crate) public_key: PublicKey,
    /// Addresses that are always the client's.
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
    /// Networks behind it that it may ask for.
    #[serde(default)]
    pub(crate) prefixes: Vec<IpNet>,
    #[serde(default)]
    pub(crate) rate_limit: Option<RateLimit>,
    /// Whether its key may be one that was taken from a client.
    #[serde(default)]
    pub(crate) allow_removed: bool,
}

impl NewClient {
    /// A client without networks behind it and without a limit.
    pub(crate) fn new(
        name: String,
        public_key: PublicKey,
        ipv4: Option<Ipv4Addr>,
        ipv6: Option<Ipv6Addr>,
    ) -> Self {
        let (prefixes, rate_limit) = (Vec::new(), None);
        Self { name, public_key, ipv4, ipv6, prefixes, rate_limit, allow_removed: false }
    }

    /// The removed key that is enrolled again with it.
    pub(crate) fn allowed_key(&self) -> Option<PeerKey> {
        self.allow_removed.then_some(PeerKey(self.public_key.0))
    }

    /// The registry's entry for it.
    pub(crate) fn to_client(&self, created: SystemTime) -> Client {
        let mut client = Client::new(self.name.clone(), PeerKey(self.public_key.0), created);
        client.ipv4 = self.ipv4;
        client.ipv6 = self.ipv6;
        client.prefixes.clone_from(&self.prefixes);
        client.rate_limit = self.rate_limit;
        client
    }
}

/// What is changed about a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientChange {
    Rename { to: String },
    Disable,
    Enable,
    Set(ClientSettings),
}

/// What an operator chooses for a client; what is not there stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientSettings {
    pub(crate) ipv4: Option<AddressChoice<Ipv4Addr>>,
    pub(crate) ipv6: Option<AddressChoice<Ipv6Addr>>,
    pub(crate) prefixes: Option<Vec<IpNet>>,
    #[serde(default)]
    pub(crate) rate_limit: Option<RateChoice>,
    /// The key that it has from its next connection with it on.
    #[serde(default)]
    pub(crate) public_key: Option<PublicKey>,
    /// Whether that may be one that was taken from a client.
    #[serde(default)]
    pub(crate) allow_removed: bool,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RateChoice {
    Limited(RateLimit),
    Off,
}

impl RateChoice {
    fn limit(self) -> Option<RateLimit> {
        match self {
            Self::Limited(rate) => Some(rate),
            Self::Off => None,
        }
    }
}

/// An address that is always the client's, or one that the exit gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AddressChoice<Address> {
    Fixed(Address),
    Automatic,
}

impl<Address> AddressChoice<Address> {
    fn fixed(self) -> Option<Address> {
        match self {
            Self::Fixed(address) => Some(address),
            Self::Automatic => None,
        }
    }
}

impl ClientSettings {
    /// The removed key that a client gets again.
    pub(crate) fn allowed_key(&self) -> Option<PeerKey> {
        self.public_key.filter(|_| self.allow_removed).map(|key| PeerKey(key.0))
    }

    /// Makes the changes in a registry's entry.
    pub(crate) fn apply(&self, client: &mut Client) {
        if let Some(choice) = self.ipv4 {
            client.ipv4 = choice.fixed();
        }
        if let Some(choice) = self.ipv6 {
            client.ipv6 = choice.fixed();
        }
        if let Some(prefixes) = &self.prefixes {
            client.prefixes.clone_from(prefixes);
        }
        if let Some(choice) = self.rate_limit {
            client.rate_limit = choice.limit();
        }
        if let Some(key) = self.public_key {
            // The key that it has already takes the other promise back.
            client.next_public_key = Some(PeerKey(key.0)).filter(|next| *next != client.public_key);
        }
    }
}

/// The registry file of an exit that does not run.
#[derive(Debug)]
pub(crate) struct StoppedExit {
    path: PathBuf,
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
}

impl StoppedExit {
    /// How long a command waits for another one to finish.
    const PATIENCE: Duration = Duration::from_secs(2);

    pub(crate) fn new(config: &ExitConfig, state_directory: &Path) -> Self {
        Self { path: config.clients_path(state_directory), ipv4: config.ipv4, ipv6: config.ipv6 }
    }

    /// Reads, changes and writes the registry under its lock; a change with which the exit could no longer start is refused.
    fn edit(
        &self,
        change: impl FnOnce(&mut ClientRegistry) -> Result<(), RegistryError>,
    ) -> anyhow::Result<()> {
        let _lock = lock_clients(&self.path, Self::PATIENCE)?;
        let mut registry = load_clients(&self.path)?;
        let check = |registry: &ClientRegistry| check_clients(self.ipv4, self.ipv6, registry);
        let could_start = check(&registry).is_ok();
        change(&mut registry)?;
        if could_start {
            check(&registry)?;
        }
        Ok(save_clients(&self.path, &registry)?)
    }
}

impl ClientStore for StoppedExit {
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()> {
        self.edit(|registry| {
            client.allowed_key().map(|key| registry.allow(key));
            registry.add(client.to_client(SystemTime::now()))
        })
    }

    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()> {
        let now = SystemTime::now();
        self.edit(|registry| clients.iter().try_for_each(|client| registry.add(client.to_client(now))))
    }

    fn list(&mut self) -> anyhow::Result<Vec<ClientView>> {
        let registry = load_clients(&self.path)?;
        Ok(registry.iter().map(|client| ClientView::of(client, None)).collect())
    }

    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()> {
        self.edit(|registry| registry.invite(invitation.clone(), SystemTime::now()))
    }

    fn invitations(&mut self) -> anyhow::Result<Vec<InvitationView>> {
        let registry = load_clients(&self.path)?;
        Ok(registry.open_invitations(SystemTime::now()).into_iter().map(InvitationView::of).collect())
    }

    fn removed(&mut self) -> anyhow::Result<Vec<RemovedView>> {
        let registry = load_clients(&self.path)?;
        Ok(registry.removed_keys().into_iter().map(RemovedView::of).collect())
    }

    fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        self.edit(|registry| registry.remove(name, SystemTime::now()).map(drop))
    }

    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<()> {
        self.edit(|registry| match change {
            ClientChange::Rename { to } => registry.rename(name, to),
            ClientChange::Disable => registry.set_disabled(name, true).map(drop),
            ClientChange::Enable => registry.set_disabled(name, false).map(drop),
            ClientChange::Set(settings) => {
                let client = registry.by_name(name).cloned();
                let mut client =
                    client.ok_or_else(|| RegistryError::NoSuchClient { name: name.to_owned() })?;
                settings.apply(&mut client);
                settings.allowed_key().map(|key| registry.allow(key));
                registry.replace(client)
            }
        })
    }
}
