//! The framing of packets and fragments in QUIC datagrams (DESIGN.md section 6).
//!
//! A datagram is one header byte and a body. The header byte has the kind in the high nibble and the flags in the low one. The
//! body is a packet, or a fragment: `id: u32, total: u16, offset: u16` in big endian, then the payload. A numbered datagram
//! has a trailer after its body.

use std::ops::Range;

use bytes::BufMut;

use crate::ip::MAX_PACKET;
use crate::planted::{Bug, is_planted};
use crate::reason::DropReason;
use crate::wire::{u16_at, u32_at};

mod kind;
mod numbered;

pub use kind::{FRAGMENT_OVERHEAD, PACKET_OVERHEAD, TRAILER};
pub use numbered::{Lane, NOTHING_BELOW_LEN, Number, Numbering, Place, append_trailer, write_nothing_below};

/// Maximum number of fragments of a packet. The largest packet needs 58 in QUIC's smallest datagrams. Every fragment except the
/// last must hold at least 1/64 of its packet, so that a few bytes cannot make a receiver reserve a whole packet.
pub const MAX_FRAGMENTS: usize = 64;

/// The flags of a packet, repeated in each of its fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    partial_checksum: bool,
}

impl Flags {
    /// No flag.
    pub const NONE: Self = Self::new(false);
    /// The transport checksum is partial: the receiver's kernel completes it.
    pub const PARTIAL_CHECKSUM: Self = Self::new(true);

    const PARTIAL_CHECKSUM_BIT: u8 = 1;

    /// Makes flags that say whether the transport checksum is partial.
    pub const fn new(partial_checksum: bool) -> Self {
        Self { partial_checksum }
    }

    /// Whether the transport checksum is partial.
    pub const fn partial_checksum(self) -> bool {
        self.partial_checksum
    }

    fn from_nibble(nibble: u8) -> Option<Self> {
        let is_partial = nibble != 0 && !is_planted(Bug::FlagLost);
        // The other three bits are reserved. A datagram that sets one is refused.
        (nibble & !Self::PARTIAL_CHECKSUM_BIT == 0).then_some(Self::new(is_partial))
    }

    fn header_byte(self, kind: u8) -> u8 {
        kind << 4 | u8::from(self.partial_checksum)
    }
}

/// The content of one QUIC datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// A packet that is not validated yet. Never empty.
    Packet {
        /// The packet's flags.
        flags: Flags,
        /// The packet's bytes.
        packet: &'a [u8],
    },
    /// A fragment of a packet.
    Fragment(Fragment<'a>),
}

impl<'a> Datagram<'a> {
    /// Parses the framing of a datagram that is not numbered.
    ///
    /// # Errors
    /// [`DropReason::BadDatagram`] for another kind, a reserved flag, a truncated header or an empty body.
    /// [`DropReason::BadFragment`] for a fragment that is empty, out of bounds, the whole packet, or less than 1/64 of it without
    /// being the last.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, DropReason> {
        Self::parse_kind(datagram, 0)
    }

    /// Parses the framing of a datagram that is not numbered, or whose trailer [`Numbering::cut`] has cut off. The first byte
    /// may still say that the datagram is numbered.
    ///
    /// # Errors
    /// The errors of [`Self::parse`].
    pub fn parse_without_trailer(datagram: &'a [u8]) -> Result<Self, DropReason> {
        Self::parse_kind(datagram, kind::NUMBERED)
    }

    /// Parses a datagram, ignoring these bits of its kind.
    #[inline]
    fn parse_kind(datagram: &'a [u8], ignored: u8) -> Result<Self, DropReason> {
        let [first, body @ ..] = datagram else { return Err(DropReason::BadDatagram) };
        let flags = Flags::from_nibble(first & 0x0f).ok_or(DropReason::BadDatagram)?;
        match first >> 4 & !ignored {
            kind::PACKET if !body.is_empty() => Ok(Self::Packet { flags, packet: body }),
            kind::FRAGMENT if datagram.len() >= FRAGMENT_OVERHEAD => {
                let fragment = Fragment {
                    flags,
                    id: u32_at(body, 0),
                    total: u16_at(body, 4),
                    offset: u16_at(body, 6),
                    payload: &datagram[FRAGMENT_OVERHEAD..],
                };
                if fragment.is_possible() {
                    Ok(Self::Fragment(fragment))
                } else {
                    Err(DropReason::BadFragment)
                }
            }
            _ => Err(DropReason::BadDatagram),
        }
    }
}

/// A part of a packet that was too large for one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// The packet's flags.
    pub flags: Flags,
    /// The packet's number among the connection's fragmented packets, wrapping.
    pub id: u32,
    /// Length of the whole packet in bytes.
    pub total: u16,
    /// Offset of the payload in the packet, in bytes.
    pub offset: u16,
    /// The fragment's part of the packet.
    pub payload: &'a [u8],
}

impl Fragment<'_> {
    /// Whether the payload is a proper part of the packet: not empty, within its bounds, not all of it, and not too small.
    pub(crate) fn is_possible(&self) -> bool {
        let total = usize::from(self.total);
        let end = usize::from(self.offset) + self.payload.len();
        !self.payload.is_empty()
            && self.payload.len() < total
            && end <= total
            && (self.is_large_enough() || end == total)
    }

    /// Whether the fragment holds at least 1/[`MAX_FRAGMENTS`] of the packet. Only the last fragment may hold less.
    pub(crate) fn is_large_enough(&self) -> bool {
        self.payload.len() >= usize::from(self.total) / MAX_FRAGMENTS
    }
}

/// Appends a datagram with a whole packet to `out`. `parts` are the packet's bytes.
pub fn write_packet(flags: Flags, parts: &[&[u8]], out: &mut impl BufMut) {
    out.put_u8(flags.header_byte(kind::PACKET));
    for part in parts {
        out.put_slice(part);
    }
}

/// Appends a datagram with the bytes `range` of a packet to `out`. `parts` are the whole packet's bytes. Header and range come
/// from [`Fragmenter::fragments`].
pub fn write_fragment(
    header: &[u8; FRAGMENT_OVERHEAD],
    range: Range<usize>,
    parts: &[&[u8]],
    out: &mut impl BufMut,
) {
    out.put_slice(header);
    let mut part_start = 0;
    for part in parts {
        // A part outside the range yields an empty slice.
        let start = range.start.saturating_sub(part_start).min(part.len());
        let end = range.end.saturating_sub(part_start).min(part.len());
        out.put_slice(&part[start..end.max(start)]);
        part_start += part.len();
    }
}

/// Splits packets that are larger than a connection's datagrams into fragments. Each connection has its own fragmenter.
#[derive(Clone, Debug, Default)]
pub struct Fragmenter {
    next_id: u32,
}

impl Fragmenter {
    /// Makes a fragmenter whose first packet gets id 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans the fragments of one packet: the header of each, and the range of the packet's bytes that follows it.
    ///
    /// A packet has at least two fragments, of nearly equal size. No datagram is longer than `max_datagram` bytes. Yields
    /// nothing, and uses no id, if that is impossible: for a packet of less than 2 or more than 65,535 bytes, or one that
    /// would need more than [`MAX_FRAGMENTS`].
    pub fn fragments(&mut self, flags: Flags, packet_len: usize, max_datagram: usize) -> Fragments {
        let room = max_datagram.saturating_sub(FRAGMENT_OVERHEAD);
        let total = match u16::try_from(packet_len) {
            // A packet of one byte cannot have two fragments.
            // The other condition also refuses datagrams without room for a payload.
            Ok(total) if total >= 2 && room.saturating_mul(MAX_FRAGMENTS) >= packet_len => total,
            _ => return Fragments { flags, id: self.next_id, total: 0, count: 0, next: 0 },
        };
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        // Makes at least two, because a receiver refuses a fragment that is the whole packet.
        Fragments { flags, id, total, count: packet_len.div_ceil(room).max(2), next: 0 }
    }
}

/// The fragments of one packet, from [`Fragmenter::fragments`].
#[derive(Clone, Debug)]
pub struct Fragments {
    flags: Flags,
    id: u32,
    total: u16,
    count: usize,
    next: usize,
}

impl Fragments {
    /// The offset of fragment `index`. The first `total % count` fragments are one byte longer than the others.
    fn start(&self, index: usize) -> usize {
        let total = usize::from(self.total);
        index * (total / self.count) + index.min(total % self.count)
    }

    fn header(&self, offset: u16) -> [u8; FRAGMENT_OVERHEAD] {
        let [i0, i1, i2, i3] = self.id.to_be_bytes();
        let [t0, t1] = self.total.to_be_bytes();
        let [o0, o1] = offset.to_be_bytes();
        [self.flags.header_byte(kind::FRAGMENT), i0, i1, i2, i3, t0, t1, o0, o1]
    }
}

impl Iterator for Fragments {
    type Item = ([u8; FRAGMENT_OVERHEAD], Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            return None;
        }
        let range = self.start(self.next)..self.start(self.next + 1);
        self.next += 1;
        // Always fits: the offset is below `total`, which is a `u16`.
        let offset = u16::try_from(range.start).ok()?;
        Some((self.header(offset), range))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Fragments {}

const _: () = assert!(MAX_PACKET == u16::MAX as usize, "a fragment's total must hold any packet's length");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_those_of_the_document() {
        let document = include_str!("../../../docs/wire-protocol.md");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let packet = [
            0x45, 0, 0, 28, 0, 0, 0, 0, 0x40, 17, 0, 0, 10, 66, 0, 2, 203, 0, 113, 2, 0x75, 0x30, 0, 7, 0, 8,
            0xff, 0xff,
        ];
        let mut whole = Vec::new();
        write_packet(Flags::NONE, &[&packet], &mut whole);
        let mut shown = vec![format!("packet {} -> {}", hex(&packet), hex(&whole))];
        let mut fragmenter = Fragmenter { next_id: 7 };
        for (part, (header, range)) in
            fragmenter.fragments(Flags::PARTIAL_CHECKSUM, packet.len(), 23).enumerate()
        {
            let mut fragment = Vec::new();
            write_fragment(&header, range, &[&packet], &mut fragment);
            shown.push(format!("{} of 2, id 7, partial checksum -> {}", part + 1, hex(&fragment)));
        }
        assert_eq!(shown.len(), 3);
        for line in shown {
            assert!(document.contains(&format!("{line}\n")), "docs/wire-protocol.md lacks {line}");
        }
    }

    #[test]
    fn a_packet_is_one_byte_and_its_parts() {
        for (flags, first) in [(Flags::NONE, 0x00), (Flags::PARTIAL_CHECKSUM, 0x01)] {
            let mut datagram = Vec::new();
            write_packet(flags, &[&[1, 2], &[], &[3]], &mut datagram);
            assert_eq!(datagram, [first, 1, 2, 3]);
            assert_eq!(Datagram::parse(&datagram), Ok(Datagram::Packet { flags, packet: &[1, 2, 3] }));
        }
    }

    #[test]
    fn a_fragment_is_nine_bytes_and_its_payload() {
        let mut fragmenter = Fragmenter { next_id: 0x0102_0304 };
        let parts: [&[u8]; 3] = [&[1, 2], &[3, 4, 5, 6], &[7]];
        let datagrams: Vec<Vec<u8>> = fragmenter
            .fragments(Flags::PARTIAL_CHECKSUM, 7, 13)
            .map(|(header, range)| {
                let mut datagram = Vec::new();
                write_fragment(&header, range, &parts, &mut datagram);
                datagram
            })
            .collect();
        assert_eq!(
            datagrams,
            [&[0x11, 1, 2, 3, 4, 0, 7, 0, 0, 1, 2, 3, 4][..], &[0x11, 1, 2, 3, 4, 0, 7, 0, 4, 5, 6, 7],]
        );
        let flags = Flags::PARTIAL_CHECKSUM;
        let second = Fragment { flags, id: 0x0102_0304, total: 7, offset: 4, payload: &[5, 6, 7] };
        assert_eq!(Datagram::parse(&datagrams[1]), Ok(Datagram::Fragment(second)));
    }

    #[test]
    fn reserved_kinds_and_flags_are_refused() {
        for first in 0..=u8::MAX {
            let datagram = [first, 0, 0, 0, 0, 0, 9, 0, 0, 1];
            let is_known = matches!(first, 0x00 | 0x01 | 0x10 | 0x11);
            assert_eq!(Datagram::parse(&datagram).is_ok(), is_known, "{first:#04x}");
            if !is_known {
                assert_eq!(Datagram::parse(&datagram), Err(DropReason::BadDatagram));
            }
        }
    }

    #[test]
    fn datagrams_without_a_body_are_refused() {
        for datagram in [&[][..], &[0], &[1], &[0x10], &[0x10, 0, 0, 0, 0, 0, 9, 0]] {
            assert_eq!(Datagram::parse(datagram), Err(DropReason::BadDatagram));
        }
    }

    #[test]
    fn fragments_that_cannot_be_one_of_several_are_refused() {
        let parse = |total: u8, offset: u8, length: usize| {
            let datagram = [&[0x10, 0, 0, 0, 0, 0, total, 0, offset][..], &vec![7; length]].concat();
            Datagram::parse(&datagram).map(|_| ())
        };
        assert_eq!(parse(9, 0, 8), Ok(()));
        assert_eq!(parse(9, 8, 1), Ok(()));
        for (total, offset, length) in
            [(9, 0, 0), (9, 9, 1), (9, 2, 8), (9, 0, 9), (9, 0, 10), (0, 0, 0), (0, 0, 1)]
        {
            assert_eq!(
                parse(total, offset, length),
                Err(DropReason::BadFragment),
                "{total} {offset} {length}"
            );
        }
    }

    #[test]
    fn what_cannot_be_cut_yields_nothing_and_uses_no_number() {
        let mut fragmenter = Fragmenter { next_id: u32::MAX };
        for (packet_len, max_datagram) in [
            (0, 1_200),
            (1, 1_200),
            (65_536, 1_200),
            (2_000, 9),
            (2_000, 0),
            // Needs 65 fragments, or the peer's datagrams are extremely small.
            (1_281, 29),
            (1_380, 10),
            (65_535, usize::from(u16::MAX) / 64 + FRAGMENT_OVERHEAD),
        ] {
            let fragments = fragmenter.fragments(Flags::NONE, packet_len, max_datagram);
            assert_eq!((fragments.len(), fragments.count()), (0, 0));
        }
        assert_eq!(fragmenter.fragments(Flags::NONE, 2, 1_200).len(), 2);
        assert_eq!(fragmenter.next_id, 0, "ids wrap");
    }

    #[test]
    fn the_largest_packet_in_the_smallest_datagrams_is_cut() {
        // The first size is the room that QUIC leaves in 1,200 bytes if connection IDs have their maximum length. The second
        // is the smallest size that works.
        for (max_datagram, count, smallest) in [(1_150, 58, 1_129), (1_024 + FRAGMENT_OVERHEAD, 64, 1_023)] {
            let fragments = Fragmenter::new().fragments(Flags::NONE, 65_535, max_datagram);
            assert_eq!(fragments.len(), count);
            let last = fragments.last().map(|(_, range)| range);
            assert_eq!(last, Some(65_535 - smallest..65_535));
        }
    }

    #[test]
    fn fragments_with_less_than_a_64th_of_their_packet_are_refused_but_for_the_last() {
        let parse = |total: u16, offset: u16, length: usize| {
            let (total, offset) = (total.to_be_bytes(), offset.to_be_bytes());
            let datagram = [&[0x10, 0, 0, 0, 0][..], &total, &offset, &vec![7; length]].concat();
            Datagram::parse(&datagram).map(|_| ())
        };
        for (total, smallest) in [(u16::MAX, 1_023), (1_280, 20), (1_279, 19), (128, 2), (127, 1), (2, 1)] {
            assert_eq!(parse(total, 0, smallest), Ok(()), "{total}");
            assert_eq!(parse(total, 0, smallest - 1), Err(DropReason::BadFragment), "{total}");
            assert_eq!(parse(total, total - 1, 1), Ok(()), "{total}");
        }
        assert_eq!(parse(u16::MAX, 0, 1), Err(DropReason::BadFragment));
        assert_eq!(parse(u16::MAX, u16::MAX - 2, 1), Err(DropReason::BadFragment));
    }
}
