//! The used proofs, each with the address that used it first. A proof from any other address is a replay.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
};

use super::proof::Proof;
use crate::planted::{Bug, is_planted};

/// Maximum number of proofs of one generation. A replay is detected during at least this many further handshakes. All remembered
/// proofs take at most about 4 MiB.
const GENERATION: usize = 32_768;

/// A memory of two generations. When the young one is full, the old one is discarded.
#[derive(Debug, Default)]
pub(super) struct Replays {
    young: HashMap<Proof, Shower>,
    old: HashMap<Proof, Shower>,
    hasher: RandomState,
}

/// A hash under a random key, stored instead of an address's 32 bytes.
type Shower = u64;

impl Replays {
    /// Remembers the address that uses a proof. Returns false if another address used it before.
    pub(super) fn admit(&mut self, proof: Proof, from: SocketAddr) -> bool {
        let from = self.shower(from);
        if let Some(first) = self.first(&proof) {
            return first == from || is_planted(Bug::ProofsReplayed);
        }
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(proof, from);
        true
    }

    /// Whether this address was the first to use one of these proofs.
    pub(super) fn know(&self, proofs: &[Proof], from: SocketAddr) -> bool {
        let from = self.shower(from);
        proofs.iter().any(|proof| self.first(proof) == Some(from))
    }

    fn first(&self, proof: &Proof) -> Option<Shower> {
        self.young.get(proof).or_else(|| self.old.get(proof)).copied()
    }

    fn shower(&self, address: SocketAddr) -> Shower {
        // Canonical: a dual-stack socket shows an IPv4 address as an IPv6 one.
        self.hasher.hash_one((address.ip().to_canonical(), address.port()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(number: usize) -> Proof {
        (number as u128).to_be_bytes()
    }

    fn address(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn a_proof_belongs_to_whom_showed_it_first() {
        let mut replays = Replays::default();
        assert!(!replays.know(&[proof(1)], address(1)));
        assert!(replays.admit(proof(1), address(1)));
        assert!(replays.admit(proof(1), address(1)));
        assert!(!replays.admit(proof(1), address(2)));
        assert!(replays.know(&[proof(9), proof(1)], address(1)));
        assert!(!replays.know(&[proof(9), proof(1)], address(2)));
        assert!(replays.admit(proof(1), "[::ffff:192.0.2.1]:1".parse().unwrap()));
    }

    #[test]
    fn at_least_a_generation_is_remembered_and_never_more_than_two() {
        let mut replays = Replays::default();
        for number in 0..=2 * GENERATION {
            assert!(replays.admit(proof(number), address(1)));
            assert!(replays.young.len() + replays.old.len() <= 2 * GENERATION);
        }
        assert!(!replays.admit(proof(GENERATION + 1), address(2)));
        assert!(replays.admit(proof(0), address(2)), "what is long past is forgotten");
    }
}
