//! The forwards of one client in the registry: added, removed and checked.

use super::forward::{MAX_FORWARDS, MAX_MOVED_PORTS};
use super::{Client, ClientRegistry, Forward, PortRange, RegistryError};

impl ClientRegistry {
    /// Lets ports of the exit lead to a client. A forward that it has already stays as it is.
    ///
    /// # Errors
    ///
    /// If no client has that name, or the ports lead to a client already.
    pub(super) fn add_forward(&mut self, name: &str, forward: Forward) -> Result<(), RegistryError> {
        let mut client = self.named(name)?.clone();
        if client.forwards.contains(&forward) {
            return Ok(());
        }
        client.forwards.push(forward);
        client.forwards.sort_by_key(|forward| forward.ports());
        self.replace(client)
    }

    /// Takes back a forward.
    ///
    /// # Errors
    ///
    /// If no client has that name, or it has no forward of exactly these ports.
    pub(super) fn remove_forward(&mut self, name: &str, ports: PortRange) -> Result<(), RegistryError> {
        let mut client = self.named(name)?.clone();
        let count = client.forwards.len();
        client.forwards.retain(|forward| forward.ports() != ports);
        if client.forwards.len() == count {
            return Err(RegistryError::NoSuchForward { name: name.to_owned(), ports });
        }
        self.replace(client)
    }
}

/// Checks a client's forwards among themselves. `moved` is the number of ports that other clients' forwards rename.
pub(super) fn check_forwards(client: &Client, moved: usize) -> Result<(), RegistryError> {
    let name = || client.name.clone();
    let count = client.forwards.len();
    if count > MAX_FORWARDS {
        return Err(RegistryError::TooManyForwards { name: name(), count });
    }
    for (position, forward) in client.forwards.iter().enumerate() {
        let ports = forward.ports();
        let before = client.forwards.iter().take(position).map(|before| before.ports());
        if let Some(other) = before.into_iter().find(|other| other.overlaps(ports)) {
            return Err(RegistryError::PortsTwice { name: name(), ports, other });
        }
    }
    let own: usize = client.forwards.iter().map(|forward| forward.moved_ports()).sum();
    let count = moved + own;
    if own > 0 && count > MAX_MOVED_PORTS {
        return Err(RegistryError::TooManyMovedPorts { name: name(), count });
    }
    Ok(())
}
