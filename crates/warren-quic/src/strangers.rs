//! An exit's treatment of unknown peers: silent mode, the number of handshakes in progress, and counts of refused attempts by
//! reason.
//!
//! A silent exit answers an Initial only if its token proves knowledge of the exit's public key (`docs/silent-mode.md`).

mod admission;
mod gate;
mod initial;
mod process;
mod proof;
mod replays;
mod retry_tokens;
mod secrets;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

pub use self::admission::{Handshakes, Network};
use self::replays::Replays;
pub(crate) use self::{
    admission::{Admission, Crowd, Displaced, Seat},
    gate::Gate,
    initial::is_long,
    process::ProcessKey,
    proof::token,
    retry_tokens::RETRY_TOKEN_LIFETIME_IN_LIBRARY,
    secrets::{ExitSecrets, IdKey, OWN_ID_LENGTH},
};

/// The state of an exit towards strangers: silent mode, seen proofs, handshakes in progress, refused attempts, and the key of its
/// connection IDs. The workers of an exit share it through clones. Each process has its own.
#[derive(Clone, Debug, Default)]
pub struct Strangers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    silent: AtomicBool,
    replays: Mutex<Replays>,
    crowd: Crowd,
    process: ProcessKey,
    counts: [AtomicU64; Turned::ALL.len()],
}

impl Strangers {
    /// Makes an exit's policy. The default answers everybody.
    pub fn new(silent: bool) -> Self {
        let this = Self::default();
        this.set_silent(silent);
        this
    }

    /// Turns silent mode on or off. Running connections are not affected.
    pub fn set_silent(&self, silent: bool) {
        // `Relaxed`, because the flag guards no other memory.
        self.0.silent.store(silent, Relaxed);
    }

    /// Returns whether silent mode is on, in which strangers get no answer.
    pub fn is_silent(&self) -> bool {
        self.0.silent.load(Relaxed)
    }

    /// Returns the number of attempts refused for a reason so far.
    pub fn turned_away(&self, why: Turned) -> u64 {
        self.count_of(why).map_or(0, |count| count.load(Relaxed))
    }

    /// Returns the number of handshakes in progress, and the number that have timed out so far.
    pub fn handshakes(&self) -> Handshakes {
        self.crowd().handshakes()
    }

    pub(crate) fn count(&self, why: Turned) {
        if let Some(count) = self.count_of(why) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn count_of(&self, why: Turned) -> Option<&AtomicU64> {
        self.0.counts.get(why as usize)
    }

    /// The handshakes in progress.
    pub(crate) fn crowd(&self) -> &Crowd {
        &self.0.crowd
    }

    /// The key that distinguishes this process's connection IDs from its predecessor's.
    pub(crate) fn process(&self) -> &ProcessKey {
        &self.0.process
    }

    /// Locked once per Initial with a valid proof, never for a connection's packets.
    fn replays(&self) -> MutexGuard<'_, Replays> {
        self.0.replays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a connection attempt was refused or deferred.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Turned {
    /// The exit is silent, and the packet has no valid proof.
    NoProof,
    /// The exit is silent, and the proof was first used by another address.
    Replayed,
    /// Many handshakes were in progress, so the client must first prove its address (Retry).
    AddressUnproven,
    /// Too many handshakes were in progress, and a newer one replaced this one.
    Displaced,
}

impl Turned {
    /// Every reason, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::NoProof, Self::Replayed, Self::AddressUnproven, Self::Displaced];

    /// Returns the name that status and metrics use.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoProof => "no_proof",
            Self::Replayed => "replayed_proof",
            Self::AddressUnproven => "address_unproven",
            Self::Displaced => "displaced",
        }
    }

    /// Returns a sentence that says what happened.
    pub fn description(self) -> &'static str {
        match self {
            Self::NoProof => {
                "The exit is silent and dropped a packet that did not prove knowledge of its key."
            }
            Self::Replayed => {
                "The exit is silent and dropped an Initial whose proof another address had used before."
            }
            Self::AddressUnproven => {
                "Many handshakes were in progress, so the client was asked to prove its address."
            }
            Self::Displaced => {
                "Too many handshakes were in progress, so an old one was ended to make room for a new one."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_apart_and_by_all_clones() {
        let strangers = Strangers::new(true);
        for (index, why) in Turned::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, index);
            (0..=index).for_each(|_| strangers.clone().count(why));
        }
        for (index, why) in Turned::ALL.into_iter().enumerate() {
            assert_eq!(strangers.turned_away(why), index as u64 + 1, "{}", why.name());
        }
        assert!(strangers.is_silent() && !Strangers::default().is_silent());
    }
}
