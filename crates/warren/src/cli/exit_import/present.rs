//! Finds the peers that are already clients, so that an import can be repeated.

use std::net::IpAddr;

use warren_config::counted;
use warren_control::{ClientView, NewClient};
use warren_wireguard::parse_public_key;

use super::wireguard::Peer;

/// Maximum number of names in a sentence.
const SHOWN: usize = 20;

/// The names of the clients that peers already have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Present {
    /// Clients with the settings that the import would give them.
    pub(super) same: Vec<String>,
    /// Clients with the same name and address, but another key than the import would keep.
    pub(super) other_key: Vec<String>,
}

impl Present {
    /// Removes the peers that are enrolled already from `peers`. `keeps_keys` says whether the import keeps
    /// the peers' keys.
    pub(super) fn take(
        peers: &mut Vec<Peer>,
        enrolled: &[ClientView],
        keeps_keys: bool,
        client_of: impl Fn(&Peer) -> Result<NewClient, String>,
    ) -> Self {
        let mut present = Self::default();
        peers.retain(|peer| {
            let key = peer.public_key.as_ref().filter(|_| keeps_keys);
            let key = key.and_then(|key| parse_public_key(&key.text).ok());
            let by_key = enrolled.iter().find(|view| view.wireguard && Some(view.public_key) == key);
            if let Some(view) = by_key {
                present.same.push(view.name.clone());
                return false;
            }
            // A peer that cannot be a client is kept, and refused later.
            let Ok(client) = client_of(peer) else { return true };
            let has = |address: IpAddr| {
                Some(address) == client.ipv4.map(IpAddr::V4) || Some(address) == client.ipv6.map(IpAddr::V6)
            };
            let is_same = |view: &&ClientView| {
                let addresses = [view.ipv4.map(IpAddr::V4), view.ipv6.map(IpAddr::V6)];
                view.name == client.name && addresses.into_iter().flatten().any(has)
            };
            let Some(view) = enrolled.iter().find(is_same) else { return true };
            let list = if keeps_keys { &mut present.other_key } else { &mut present.same };
            list.push(view.name.clone());
            false
        });
        present
    }

    /// Describes these peers, with one line for `same` and one for `other_key`.
    pub(super) fn text(&self) -> String {
        let kinds = [
            (&self.same, "already, and stays as it is", "already, and stay as they are"),
            (&self.other_key, "with another key, and keeps it", "with other keys, and keep them"),
        ];
        let lines = kinds.into_iter().filter(|(names, ..)| !names.is_empty()).map(|(names, one, several)| {
            let (verb, rest) = if names.len() == 1 { ("is", one) } else { ("are", several) };
            let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
            let more = match names.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{} {verb} enrolled {rest}: {shown}{more}\n", counted(names.len(), "client"))
        });
        lines.collect()
    }
}
