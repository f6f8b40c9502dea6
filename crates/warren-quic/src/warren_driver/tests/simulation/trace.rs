//! A hash of the run that a seed produced.

use std::{cell::Cell, rc::Rc};

/// A hash of everything that was sent: when, to whom, and what became of it. TLS's keys and connection IDs are
/// random in each run. They change the bytes on the wire, but must not change this hash.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace(Rc<Cell<u64>>);

impl Trace {
    pub(super) fn note(&self, what: impl IntoIterator<Item = u64>) {
        // FNV-1a, by words.
        let hash = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        self.0.set(what.into_iter().fold(self.0.get(), hash));
    }

    pub(super) fn hash(&self) -> u64 {
        self.0.get()
    }
}
