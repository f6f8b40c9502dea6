//! A hash of what became of a seed.

use std::{cell::Cell, rc::Rc};

/// A hash of everything that was sent, when, to whom, and what became of it. What is left to chance in a run (TLS's
/// keys, connection IDs) changes the bytes on the wire and must change nothing here.
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
