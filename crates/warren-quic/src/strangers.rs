//! What an exit does with those it does not know: whether it is silent to them, how many handshakes it has under way, and
//! how many attempts it turned away for which reason.
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

/// Whether an exit is silent to strangers, which proofs it has seen, how many handshakes it has under way, what it turned away, and
/// which connection IDs are its own. Clones share it: the workers of an exit are one to strangers. Another process has another.
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
    /// Makes an exit's policy; without one of their own, endpoints answer everybody.
    pub fn new(silent: bool) -> Self {
        let this = Self::default();
        this.set_silent(silent);
        this
    }

    /// Changes whether the exit is silent; running connections are not concerned.
    pub fn set_silent(&self, silent: bool) {
        self.0.silent.store(silent, Relaxed);
    }

    /// Returns whether strangers get no answer at all.
    pub fn is_silent(&self) -> bool {
        self.0.silent.load(Relaxed)
    }

    /// Returns how many attempts were turned away so far.
    pub fn turned_away(&self, why: Turned) -> u64 {
        self.count_of(why).map_or(0, |count| count.load(Relaxed))
    }

    /// Returns how many handshakes are under way, and how many took too long so far.
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

    /// The handshakes under way.
    pub(crate) fn crowd(&self) -> &Crowd {
        &self.0.crowd
    }

    /// Tells the connection IDs of this process from its predecessor's.
    pub(crate) fn process(&self) -> &ProcessKey {
        &self.0.process
    }

    /// Asked once for an Initial whose proof is right, never for a packet of a connection.
    fn replays(&self) -> MutexGuard<'_, Replays> {
        self.0.replays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why an attempt to connect was turned away, or put off.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Turned {
    /// The exit is silent, and the packet proves nothing.
    NoProof,
    /// The exit is silent, and another address has shown the same proof.
    Replayed,
    /// Many handshakes were under way, so the address must be proven first (Retry).
    AddressUnproven,
    /// Too many handshakes were under way, and this one gave its place to a newer one.
    Displaced,
}

impl Turned {
    /// Every reason, in the order of its values.
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

    /// Returns what happened, as a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::NoProof => {
                "A packet without proof of knowing the exit's key was dropped, as the exit is silent."
            }
            Self::Replayed => {
                "An Initial was dropped whose proof another address had shown, as the exit is silent."
            }
            Self::AddressUnproven => {
                "Many handshakes were under way, and the client was asked to prove its address."
            }
            Self::Displaced => {
                "Too many handshakes were under way, and an old one was ended to make room for a new one."
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
