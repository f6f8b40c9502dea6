//! The changes of one client that an operator may ask for, and the code that applies them.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Client, ClientRegistry, Forward, PortRange, RateLimit, RegistryError};
use crate::PublicKey;

/// A change of a client that an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant's comment covers its fields")]
pub enum ClientChange {
    /// Gives the client another name.
    Rename { to: String },
    /// Refuses the client from now on. The client keeps its addresses.
    Disable,
    /// Admits the client again.
    Enable,
    /// Changes the settings that are given.
    Set(ClientSettings),
    /// Forwards ports of the exit to the client.
    AddForward { forward: Forward },
    /// Removes the forward of exactly these ports of the exit.
    RemoveForward { ports: PortRange },
}

/// The settings of a client that an operator chooses. A setting that is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSettings {
    /// The client's inner IPv4 address.
    pub ipv4: Option<AddressChoice<Ipv4Addr>>,
    /// The client's inner IPv6 address.
    pub ipv6: Option<AddressChoice<Ipv6Addr>>,
    /// The networks behind the client that it may ask for.
    pub prefixes: Option<Vec<IpNet>>,
    /// The client's rate limit, for each direction.
    #[serde(default)]
    pub rate_limit: Option<RateChoice>,
    /// The key that replaces the current one once the client connects with it.
    #[serde(default)]
    pub public_key: Option<PublicKey>,
    /// Whether `public_key` may be a removed key.
    #[serde(default)]
    pub allow_removed: bool,
}

/// A rate limit, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateChoice {
    /// Up to this many bits per second each way.
    Limited(RateLimit),
    /// No limit.
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

/// Whether a client's address is fixed, or comes from the exit's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressChoice<Address> {
    /// This address, always.
    Fixed(Address),
    /// One from the exit's pool.
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
    /// The key that the client may have even if it is a removed key.
    fn allowed_key(&self) -> Option<PublicKey> {
        self.public_key.filter(|_| self.allow_removed)
    }

    /// Applies the settings to a registry's entry.
    fn apply(&self, client: &mut Client) {
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
            // Choosing the current key withdraws a next key.
            client.next_public_key = Some(key).filter(|next| *next != client.public_key);
        }
    }
}

impl ClientRegistry {
    /// Changes the client of this name.
    ///
    /// # Errors
    ///
    /// If there is no such client, or if a new value is invalid or belongs to another client.
    pub fn change(&mut self, name: &str, change: &ClientChange) -> Result<(), RegistryError> {
        match change {
            ClientChange::Rename { to } => self.rename(name, to),
            ClientChange::Disable => self.set_disabled(name, true).map(drop),
            ClientChange::Enable => self.set_disabled(name, false).map(drop),
            ClientChange::Set(settings) => {
                let mut client = self.named(name)?.clone();
                settings.apply(&mut client);
                // The key must be allowed first, because `replace` refuses a removed key.
                settings.allowed_key().map(|key| self.allow(key));
                self.replace(client)
            }
            ClientChange::AddForward { forward } => self.add_forward(name, *forward),
            ClientChange::RemoveForward { ports } => self.remove_forward(name, *ports),
        }
    }

    /// Forwards ports of the exit to a client. A forward that the client already has stays as it is.
    ///
    /// # Errors
    ///
    /// If no client has that name, or the ports are forwarded to a client already.
    fn add_forward(&mut self, name: &str, forward: Forward) -> Result<(), RegistryError> {
        let mut client = self.named(name)?.clone();
        if client.forwards.contains(&forward) {
            return Ok(());
        }
        let ports = forward.ports();
        let other = client.forwards.iter().map(|before| before.ports()).find(|other| other.overlaps(ports));
        if let Some(other) = other {
            // This check precedes the sorting of the forwards. Afterwards nothing shows which of two overlapping forwards is the
            // new one.
            return Err(RegistryError::PortsTwice { name: name.to_owned(), ports, other });
        }
        client.forwards.push(forward);
        client.forwards.sort_by_key(|forward| forward.ports());
        self.replace(client)
    }

    /// Removes a forward.
    ///
    /// # Errors
    ///
    /// If no client has that name, or it has no forward of exactly these ports.
    fn remove_forward(&mut self, name: &str, ports: PortRange) -> Result<(), RegistryError> {
        let mut client = self.named(name)?.clone();
        let count = client.forwards.len();
        client.forwards.retain(|forward| forward.ports() != ports);
        if client.forwards.len() == count {
            return Err(RegistryError::NoSuchForward { name: name.to_owned(), ports });
        }
        self.replace(client)
    }
}
