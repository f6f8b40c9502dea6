//! What a seed brings, and a hash of what became of it.

use std::{cell::Cell, rc::Rc};

/// Numbers that a seed repeats (xorshift).
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound.max(1)
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.next().to_be_bytes()[0]);
    }

    pub(super) fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.fill(&mut bytes);
        bytes
    }
}

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
