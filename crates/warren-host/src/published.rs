//! Ports that this host's NAT publishes: what comes to one goes to a container or to a virtual machine, and no socket shows it.
//!
//! They are destination ports that lead to a DNAT or a redirect from a hook at which packets come in. Rules of nftables are read as
//! JSON, and those of iptables as `iptables-save` prints them, since nft does not show all of an iptables rule.

mod iptables;
mod nftables;
mod rules;

use std::{collections::BTreeMap, io, ops::RangeInclusive, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use self::nftables::{Listing, SetName};
use crate::nft::{self, NftError};

/// What this host's rules publish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Destination ports, of whatever protocol.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Rules that may publish further ports and whose ports cannot be told, each in a few words.
    pub unread: Vec<String>,
}

/// Looks at this host's rules: takes a few seconds at most, and reads 8 MiB of each answer at most.
pub async fn look() -> Published {
    timeout(PATIENCE, look_at_all())
        .await
        .unwrap_or_else(|_| Published::unread(format!("its rules take more than {PATIENCE:?} to list")))
}

/// The tables of iptables from before nftables that this host has: who lists them needs CAP_NET_RAW, which the exit's service has not.
pub fn legacy_tables() -> Vec<String> {
    let legacy = iptables::VERSIONS.iter().filter(|version| version.has_legacy_rules());
    legacy.map(|version| format!("the rules of {}-legacy", version.name)).collect()
}

async fn look_at_all() -> Published {
    let (mut published, has_iptables) = match of_nftables().await {
        Ok(found) => found,
        Err(NftError::Missing) => (Published::default(), false),
        Err(error) => (Published::unread(format!("its nftables rules: {error}")), false),
    };
    for version in &iptables::VERSIONS {
        if !has_iptables && !version.has_legacy_rules() {
            continue;
        }
        match nft::said_by(&version.programs, &["-t", "nat"], MOST_BYTES).await {
            Ok(text) => published.add(iptables::published(&text, version.name)),
            Err(NftError::Missing) => {
                published.unread.push(format!("the rules of {}, which is not installed", version.name));
            }
            Err(error) => published.unread.push(format!("the rules of {}: {error}", version.name)),
        }
    }
    published.tidy();
    published
}

/// Also whether there are rules of iptables among them, which nft shows in part.
async fn of_nftables() -> Result<(Published, bool), NftError> {
    let text = nft::said(&["-j", "-t", "list", "ruleset"], MOST_BYTES).await?;
    let listing = Listing::parse(&text)?;
    let mut sets: BTreeMap<SetName, String> = BTreeMap::new();
    loop {
        let found = nftables::published(&listing, &sets);
        // What a set refers to is no other set, so that this ends after the second time.
        if found.wanted.is_empty() || sets.len() + found.wanted.len() > MOST_SETS {
            let mut published = found.published;
            if !found.wanted.is_empty() {
                published.unread.push(format!("more than {MOST_SETS} sets of ports"));
            }
            return Ok((published, found.has_iptables));
        }
        for name in found.wanted {
            // It may be gone by now; then it holds nothing.
            let listed = nft::said(&name.arguments(), MOST_BYTES).await.unwrap_or_default();
            sets.insert(name, listed);
        }
    }
}

impl Published {
    fn unread(what: String) -> Self {
        Self { ports: Vec::new(), unread: vec![what] }
    }

    fn add(&mut self, other: Self) {
        self.ports.extend(other.ports);
        self.unread.extend(other.unread);
    }

    /// Each once, in order. Ranges that would leave clients too few ports are no ports that can be kept from them.
    fn tidy(&mut self) {
        self.ports.sort_unstable_by_key(|range| (*range.start(), *range.end()));
        self.ports.dedup();
        let (wide, ports) = self.ports.drain(..).partition(|range| range.len() > WIDEST);
        self.ports = ports;
        let wide: Vec<RangeInclusive<u16>> = wide;
        self.unread.extend(wide.iter().map(|range| {
            format!("the ports {} to {}, which are too many to keep", range.start(), range.end())
        }));
        self.unread.sort();
        self.unread.dedup();
        self.unread.truncate(MOST_UNREAD);
    }
}

fn not_understood(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> NftError {
    NftError::Io(io::Error::new(io::ErrorKind::InvalidData, error))
}

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Some hundred thousand rules.
const MOST_BYTES: u64 = 8 * 1024 * 1024;
/// Sets that are asked for one by one.
const MOST_SETS: usize = 64;
/// Rules that are named.
const MOST_UNREAD: usize = 8;
/// Ports of the widest range that is kept from clients: with more, NAT would have no room beside it.
const WIDEST: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_named_once_and_ranges_that_are_too_wide_are_said_to_be() {
        let mut published = Published {
            ports: vec![36_000..=36_000, 1_024..=65_535, 80..=90, 36_000..=36_000],
            unread: vec!["b".into(), "a".into(), "b".into()],
        };
        published.tidy();
        assert_eq!(published.ports, [80..=90, 36_000..=36_000]);
        assert_eq!(published.unread, ["a", "b", "the ports 1024 to 65535, which are too many to keep"]);
    }
}
