//! One incomplete packet.

use std::time::Instant;

use crate::datagram::{Flags, Fragment};
use crate::planted::{Bug, is_planted};
use crate::reason::DropReason;

/// A packet whose fragments have all arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassembled {
    /// The packet's flags.
    pub flags: Flags,
    /// The packet's bytes, not yet validated.
    pub packet: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Assembly {
    id: u32,
    flags: Flags,
    started: Instant,
    /// A buffer of the packet's full length.
    packet: Vec<u8>,
    /// A bitmap of the bytes of `packet` that have arrived.
    filled: Vec<u64>,
    missing: usize,
}

impl Assembly {
    /// Makes an empty assembly for the packet of `fragment`.
    pub(super) fn new(started: Instant, fragment: &Fragment<'_>) -> Self {
        let total = usize::from(fragment.total);
        Self {
            id: fragment.id,
            flags: fragment.flags,
            started,
            // Reserved at once. `Assembler` has counted the whole length against its limit.
            packet: vec![0; total],
            filled: vec![0; total.div_ceil(BITS)],
            missing: total,
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Length of the whole packet in bytes.
    pub(super) fn total(&self) -> usize {
        self.packet.len()
    }

    /// Adds a fragment whose payload lies within its own `total`. Returns whether the packet is complete.
    pub(super) fn add(&mut self, fragment: &Fragment<'_>) -> Result<bool, DropReason> {
        if usize::from(fragment.total) != self.total() || fragment.flags != self.flags {
            return Err(DropReason::BadFragment);
        }
        let start = usize::from(fragment.offset);
        let end = start + fragment.payload.len();
        for (word, mask) in masks(start, end) {
            // The bits of earlier words stay set, which does no harm: the caller drops the assembly.
            if self.filled[word] & mask != 0 && !is_planted(Bug::OverlapTaken) {
                return Err(DropReason::BadFragment);
            }
            self.filled[word] |= mask;
        }
        self.packet[start..end].copy_from_slice(fragment.payload);
        self.missing -= fragment.payload.len();
        Ok(self.missing == 0)
    }

    /// The packet, once [`Self::add`] has returned true.
    pub(super) fn into_packet(self) -> Reassembled {
        Reassembled { flags: self.flags, packet: self.packet }
    }
}

const BITS: usize = u64::BITS as usize;

/// The bitmap words of the bits `start..end`, each with a mask of those bits.
fn masks(start: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    (start / BITS..end.div_ceil(BITS)).map(move |word| {
        let from = start.saturating_sub(word * BITS);
        let to = (end - word * BITS).min(BITS);
        (word, (u64::MAX >> (BITS - to)) & (u64::MAX << from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_exactly_their_bits() {
        for (start, end) in [(0, 1), (0, 64), (0, 65), (63, 64), (63, 65), (64, 128), (5, 200), (127, 129)] {
            let mut bits: Vec<usize> = Vec::new();
            for (word, mask) in masks(start, end) {
                bits.extend((0..BITS).filter(|bit| mask >> bit & 1 == 1).map(|bit| word * BITS + bit));
            }
            assert_eq!(bits, (start..end).collect::<Vec<_>>());
        }
    }
}
