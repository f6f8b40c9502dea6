//! NAT rules, reduced to the ports that they match and the chains or destinations to which they lead.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use super::report::Published;

/// Chains with their rules, and the chains that packets enter first.
#[derive(Debug)]
pub(super) struct Rules<Chain> {
    pub(super) chains: BTreeMap<Chain, Vec<Rule<Chain>>>,
    pub(super) first: BTreeSet<Chain>,
}

/// A rule that jumps to a chain or changes the destination. A rule with several targets is stored as several rules.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule<Chain> {
    pub(super) ports: Ports,
    pub(super) way: Way<Chain>,
}

/// The destination ports that a rule selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// The rule has no condition on ports, or a condition that cannot be read.
    Any,
    These(Vec<RangeInclusive<u16>>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way<Chain> {
    /// The packet's destination is changed (DNAT or redirect).
    Elsewhere,
    To(Chain),
}

impl<Chain: Ord + Clone + std::fmt::Display> Rules<Chain> {
    pub(super) fn new() -> Self {
        Self { chains: BTreeMap::new(), first: BTreeSet::new() }
    }

    /// Returns the ports that are published by the first chains and by the chains to which these jump.
    pub(super) fn published(&self) -> Published {
        let mut walk = Walk { rules: self, seen: BTreeMap::new(), published: Published::default() };
        for chain in &self.first {
            walk.visit(chain, false);
        }
        walk.published
    }
}

struct Walk<'a, Chain> {
    rules: &'a Rules<Chain>,
    /// The chains that were visited. A key is a chain, and whether earlier rules had already selected ports. The value is whether
    /// the chain changes the destination of packets.
    seen: BTreeMap<(&'a Chain, bool), bool>,
    published: Published,
}

impl<'a, Chain: Ord + Clone + std::fmt::Display> Walk<'a, Chain> {
    fn visit(&mut self, chain: &'a Chain, are_picked: bool) -> bool {
        if let Some(known) = self.seen.get(&(chain, are_picked)) {
            return *known;
        }
        // Marking the chain as visited prevents an endless loop. The kernel does not allow loops, but a listing might contain
        // one.
        self.seen.insert((chain, are_picked), false);
        let mut leads_elsewhere = false;
        for Rule { ports, way } in self.rules.chains.get(chain).into_iter().flatten() {
            let picks = matches!(ports, Ports::These(_));
            let leads = match way {
                Way::Elsewhere => true,
                Way::To(target) => self.visit(target, are_picked || picks),
            };
            leads_elsewhere |= leads;
            match (ports, way) {
                (Ports::These(ports), _) if leads => self.published.ports.extend(ports.iter().cloned()),
                // If an earlier rule has selected ports, that rule is the one that publishes them.
                (Ports::Any, Way::Elsewhere) if !are_picked => {
                    self.published.unread.push(format!("a rule of {chain} that names no port"));
                }
                _ => {}
            }
        }
        self.seen.insert((chain, are_picked), leads_elsewhere);
        leads_elsewhere
    }
}
