//! The rules that a client's forwards must keep among themselves.

use super::forward::{MAX_FORWARDS, MAX_MOVED_PORTS};
use super::{Client, RegistryError};

/// Checks a client's forwards among themselves. `moved` counts the ports that other clients' forwards send to a different port
/// number.
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
