//! Finds the ports that this host's NAT publishes: packets to them are redirected to a container or virtual machine. No socket of
//! this host shows these ports.
//!
//! They are the destination ports in rules for incoming packets that end in a DNAT or a redirect. Rules of nftables are read as
//! JSON, and those of iptables as `iptables-save` prints them, because nft does not show all of an iptables rule.

mod iptables;
mod nftables;
mod report;
mod rules;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::timeout;

use self::nftables::Listing;
pub use self::report::Published;
use crate::nft::{self, NftError};

/// Lists the ports that this host's rules publish. Takes at most a few seconds, and reads at most 8 MiB of each program's output.
pub async fn look() -> Published {
    timeout(PATIENCE, look_at_all())
        .await
        .unwrap_or_else(|_| Published::unread(format!("its rules take more than {PATIENCE:?} to list")))
}

/// Lists the NAT tables of legacy iptables on this host. Their rules cannot be read, because this needs CAP_NET_RAW, which the
/// exit's service lacks.
pub fn legacy_tables() -> Vec<String> {
    let legacy = iptables::VERSIONS.iter().filter(|version| version.has_legacy_rules());
    legacy.map(|version| format!("the rules of {}-legacy", version.name)).collect()
}

async fn look_at_all() -> Published {
    let all_families = || iptables::VERSIONS.iter().map(|version| version.family.to_owned()).collect();
    let (mut published, with_iptables): (_, BTreeSet<String>) = match of_nftables().await {
        Ok(found) => found,
        Err(NftError::Missing) => (Published::default(), BTreeSet::new()),
        // Even if nft's output cannot be read, iptables may be able to list its own rules.
        Err(error) => (Published::unread(format!("its nftables rules: {error}")), all_families()),
    };
    for version in &iptables::VERSIONS {
        let is_seen_by_nft = with_iptables.contains(version.family);
        if !is_seen_by_nft && !version.has_legacy_rules() {
            continue;
        }
        match nft::said_by(&version.programs, &["-t", "nat"], MOST_BYTES).await {
            // The program may succeed without printing any rule, because nft has changed the table or the program is of the other
            // kind of iptables (legacy or nft).
            Ok(text) if is_seen_by_nft && !iptables::has_rules(&text) => {
                published.unread.push(format!("the rules of {}, which it does not show", version.name));
            }
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

/// Reads nft's ruleset. Also returns the families in whose NAT tables iptables has rules, because nft shows those rules only in
/// part.
async fn of_nftables() -> Result<(Published, BTreeSet<String>), NftError> {
    let listing = listing().await?;
    let mut sets = BTreeMap::new();
    let mut unlisted = Vec::new();
    loop {
        let found = nftables::published(&listing, &sets);
        // Sets do not refer to other sets, so the loop ends in its second round.
        if found.wanted.is_empty() || sets.len() + found.wanted.len() > MOST_SETS {
            let mut published = found.published;
            published.unread.append(&mut unlisted);
            if !found.wanted.is_empty() {
                published.unread.push(format!("more than {MOST_SETS} sets of ports"));
            }
            return Ok((published, found.with_iptables));
        }
        for name in found.wanted {
            let listed = nft::said(&name.arguments(), MOST_BYTES).await;
            // The set may have been deleted meanwhile. In that case the error does not occur in the next listing.
            let elements = listed.and_then(|text| name.elements(&text)).unwrap_or_else(|error| {
                unlisted.push(format!("{name}: {error}"));
                Vec::new()
            });
            sets.insert(name, elements);
        }
    }
}

/// Lists the ruleset. nft 1.0.6 prints stray memory in place of the flag `owner` of the exit's table. If that memory is not valid
/// text, nft aborts. So nft is run again in that case.
async fn listing() -> Result<Listing, NftError> {
    let ask = async || Listing::parse(&nft::said(&["-j", "-t", "list", "ruleset"], MOST_BYTES).await?);
    for _ in 1..MOST_ATTEMPTS {
        if let Ok(listing) = ask().await {
            return Ok(listing);
        }
    }
    ask().await
}

/// Maximum number of attempts to get a readable list from nft.
const MOST_ATTEMPTS: usize = 4;
/// How long the whole listing may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of the output of nft. About twenty thousand rules fit.
const MOST_BYTES: u64 = 8 * 1024 * 1024;
/// Maximum number of sets, each of which needs a run of nft.
const MOST_SETS: usize = 64;
