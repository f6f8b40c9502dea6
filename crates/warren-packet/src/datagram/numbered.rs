//! Numbered datagrams: a lane and a number in a trailer at the very end, so that a framed packet needs no room in front of it.
//!
//! The trailer has 4 bytes in big endian: the lane in the top 6 bits, the number in the low 26. Numbering sets one bit of a
//! packet's or fragment's kind and changes nothing else before the trailer.

use bytes::{BufMut, Bytes, BytesMut};

use super::kind::{self, FRAGMENT_OVERHEAD, PACKET_OVERHEAD, TRAILER};
use crate::reason::DropReason;
use crate::wire::u32_at;

/// Length of a "nothing below" datagram, which says that no number below its own will follow.
pub const NOTHING_BELOW_LEN: usize = 1 + TRAILER;

/// One of the 64 sequences of numbers that each direction of a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(u8);

impl Lane {
    /// Number of lanes.
    pub const COUNT: usize = 64;
    /// The lane whose datagrams never wait for each other.
    pub const UNORDERED: Self = Self(0);

    const ORDERED: u32 = 63;

    /// Makes the lane with this index, which is below [`Self::COUNT`].
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < Self::COUNT { Some(Self(index)) } else { None }
    }

    /// The ordered lane of a flow with this hash.
    pub fn of_flow(hash: u32) -> Self {
        // The remainder is below 63, so the last byte holds all of it.
        let [.., index] = (hash % Self::ORDERED).to_be_bytes();
        Self(index + 1)
    }

    /// Whether datagrams wait for those with lower numbers.
    pub const fn is_ordered(self) -> bool {
        self.0 != Self::UNORDERED.0
    }

    /// The lane's index, from 0 to 63.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A datagram's number in its lane: 26 bits that wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Number(u32);

impl Number {
    /// How many numbers there are.
    pub const COUNT: u32 = 1 << 26;
    /// The first number of a lane.
    pub const ZERO: Self = Self(0);

    /// Makes a number from the low 26 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value % Self::COUNT)
    }

    /// The number as 26 bits.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `steps` later.
    pub const fn plus(self, steps: u32) -> Self {
        Self::new(self.0.wrapping_add(steps))
    }

    /// How many steps this number comes after `earlier`, from 0 to 2^26 - 1.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) % Self::COUNT
    }
}

/// The place of a datagram in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The datagram's lane.
    pub lane: Lane,
    /// The datagram's number in the lane.
    pub number: Number,
}

impl Place {
    fn from_bits(bits: u32) -> Self {
        let [first, ..] = bits.to_be_bytes();
        Self { lane: Lane(first >> 2), number: Number::new(bits) }
    }

    fn bits(self) -> u32 {
        u32::from(self.lane.0) << 26 | self.number.0
    }
}

/// The number of a received datagram, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// The datagram has no trailer, and so no number. The rest of the datagram is not validated yet.
    Unnumbered,
    /// A packet or fragment with this place.
    Numbered(Place),
    /// The datagram contains no packet. It says that no lower number will follow in this ordered lane.
    NothingBelow(Place),
}

impl Numbering {
    /// Cuts the trailer off a datagram, if it has one.
    ///
    /// [`Datagram::parse_without_trailer`](super::Datagram::parse_without_trailer) reads what remains of a numbered datagram. A
    /// connection that does not number its datagrams needs neither of these functions, because
    /// [`Datagram::parse`](super::Datagram::parse) refuses numbered datagrams.
    ///
    /// # Errors
    /// [`DropReason::BadDatagram`] for a numbered datagram without a body, and for a "nothing below" datagram with flags,
    /// another length or an unordered lane.
    #[inline]
    pub fn cut(datagram: &mut Bytes) -> Result<Self, DropReason> {
        match datagram.first() {
            Some(first) if first >> 4 >= kind::NUMBERED_PACKET => Self::cut_trailer(datagram, *first),
            _ => Ok(Self::Unnumbered),
        }
    }

    // Out of line, so that a datagram without a number costs one comparison.
    #[inline(never)]
    fn cut_trailer(datagram: &mut Bytes, first: u8) -> Result<Self, DropReason> {
        let overhead = match first >> 4 {
            kind::NUMBERED_PACKET => PACKET_OVERHEAD,
            kind::NUMBERED_FRAGMENT => FRAGMENT_OVERHEAD,
            kind::NOTHING_BELOW if first & 0x0f == 0 && datagram.len() == NOTHING_BELOW_LEN => {
                let place = Place::from_bits(u32_at(datagram, 1));
                return if place.lane.is_ordered() {
                    Ok(Self::NothingBelow(place))
                } else {
                    Err(DropReason::BadDatagram)
                };
            }
            kind::NOTHING_BELOW => return Err(DropReason::BadDatagram),
            // Reserved kinds, which `Datagram` refuses.
            _ => return Ok(Self::Unnumbered),
        };
        if datagram.len() <= overhead + TRAILER {
            return Err(DropReason::BadDatagram);
        }
        let body = datagram.len() - TRAILER;
        let place = Place::from_bits(u32_at(datagram, body));
        datagram.truncate(body);
        Ok(Self::Numbered(place))
    }
}

/// Numbers a framed packet or fragment in place. The buffer does not move if it has [`TRAILER`] bytes of spare capacity.
pub fn append_trailer(framed: &mut BytesMut, place: Place) {
    // An empty buffer has no kind to change.
    let Some(first) = framed.first_mut() else { return };
    *first |= kind::NUMBERED << 4;
    framed.put_u32(place.bits());
}

/// Appends a "nothing below" datagram to `out`: no number below `place` will follow in its lane. The lane must be ordered.
pub fn write_nothing_below(place: Place, out: &mut impl BufMut) {
    out.put_u8(kind::NOTHING_BELOW << 4);
    out.put_u32(place.bits());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{Datagram, Flags, Fragmenter, write_fragment, write_packet};

    const PACKET: [u8; 28] = [
        0x45, 0, 0, 28, 0, 0, 0, 0, 0x40, 17, 0, 0, 10, 66, 0, 2, 203, 0, 113, 2, 0x75, 0x30, 0, 7, 0, 8,
        0xff, 0xff,
    ];

    fn place(lane: u8, number: u32) -> Place {
        Place { lane: Lane::new(lane).unwrap(), number: Number::new(number) }
    }

    fn whole() -> BytesMut {
        let mut framed = BytesMut::new();
        write_packet(Flags::NONE, &[&PACKET], &mut framed);
        framed
    }

    /// The second of two fragments of the packet.
    fn part() -> BytesMut {
        let mut framed = BytesMut::new();
        let mut fragmenter = Fragmenter::new();
        for id in 0..=7 {
            framed.clear();
            let last = fragmenter.fragments(Flags::PARTIAL_CHECKSUM, PACKET.len(), 23).last();
            let (header, range) = last.unwrap();
            write_fragment(&header, range, &[&PACKET], &mut framed);
            assert_eq!(framed[4], id);
        }
        framed
    }

    fn cut(datagram: &[u8]) -> (Result<Numbering, DropReason>, Bytes) {
        let mut rest = Bytes::copy_from_slice(datagram);
        (Numbering::cut(&mut rest), rest)
    }

    #[test]
    fn numbered_datagrams_are_those_of_the_document() {
        let document = include_str!("../../../../docs/wire-protocol.md");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (mut packet, mut fragment, mut nothing) = (whole(), part(), Vec::new());
        append_trailer(&mut packet, place(5, 258));
        append_trailer(&mut fragment, place(63, Number::COUNT - 1));
        write_nothing_below(place(5, 260), &mut nothing);
        for line in [
            format!("the packet, lane 5, number 258 -> {}", hex(&packet)),
            format!("the fragment 2 of 2, lane 63, number 67108863 -> {}", hex(&fragment)),
            format!("below lane 5, number 260 -> {}", hex(&nothing)),
        ] {
            assert!(document.contains(&format!("{line}\n")), "docs/wire-protocol.md lacks {line}");
        }
    }

    #[test]
    fn a_trailer_is_cut_off_and_the_rest_reads_as_before() {
        for framed in [whole(), part()] {
            for at in [place(0, 0), place(1, 1), place(63, Number::COUNT - 1), place(31, 0x0123_4567)] {
                let mut numbered = framed.clone();
                append_trailer(&mut numbered, at);
                assert_eq!(numbered.len(), framed.len() + TRAILER);
                assert_eq!(Datagram::parse(&numbered), Err(DropReason::BadDatagram), "it has a trailer");
                let (found, rest) = cut(&numbered);
                assert_eq!(found, Ok(Numbering::Numbered(at)));
                assert_eq!(Datagram::parse_without_trailer(&rest), Datagram::parse(&framed));
                assert_eq!(Datagram::parse_without_trailer(&framed), Datagram::parse(&framed));
            }
        }
    }

    #[test]
    fn a_trailer_moves_no_buffer_that_has_room() {
        let mut framed = BytesMut::with_capacity(PACKET_OVERHEAD + PACKET.len() + TRAILER);
        write_packet(Flags::NONE, &[&PACKET], &mut framed);
        let before = framed.as_ptr();
        append_trailer(&mut framed, place(9, 9));
        assert_eq!(framed.as_ptr(), before);
        append_trailer(&mut BytesMut::new(), place(9, 9));
    }

    #[test]
    fn unnumbered_and_reserved_kinds_stay_as_they_are() {
        for first in (0..=u8::MAX).filter(|first| !matches!(first >> 4, 2..=4)) {
            let datagram = [first, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
            assert_eq!(cut(&datagram), (Ok(Numbering::Unnumbered), Bytes::copy_from_slice(&datagram)));
            let read = Datagram::parse_without_trailer(&datagram);
            assert_eq!(read, Datagram::parse(&datagram), "{first:#04x}");
        }
        assert_eq!(cut(&[]), (Ok(Numbering::Unnumbered), Bytes::new()));
    }

    #[test]
    fn numbered_datagrams_without_a_body_are_refused() {
        for (first, shortest) in [(0x20, 6), (0x21, 6), (0x30, 14), (0x31, 14)] {
            for length in 1..shortest {
                let datagram = [&[first][..], &vec![0; length - 1]].concat();
                assert_eq!(cut(&datagram).0, Err(DropReason::BadDatagram), "{first:#04x} {length}");
            }
            let datagram = [&[first][..], &vec![0; shortest - 1]].concat();
            assert_eq!(cut(&datagram).0, Ok(Numbering::Numbered(place(0, 0))));
        }
    }

    #[test]
    fn nothing_below_has_five_bytes_and_an_ordered_lane() {
        let mut datagram = Vec::new();
        write_nothing_below(place(1, 77), &mut datagram);
        assert_eq!(datagram.len(), NOTHING_BELOW_LEN);
        assert_eq!(cut(&datagram).0, Ok(Numbering::NothingBelow(place(1, 77))));
        for wrong in
            [&[0x40][..], &[0x40, 4, 0, 0], &[0x40, 4, 0, 0, 0, 0], &[0x41, 4, 0, 0, 0], &[0x40, 3, 0, 0, 0]]
        {
            assert_eq!(cut(wrong).0, Err(DropReason::BadDatagram), "{wrong:02x?}");
        }
    }

    #[test]
    fn numbers_wrap_and_flows_spread_over_ordered_lanes() {
        let last = Number::new(Number::COUNT - 1);
        assert_eq!(last.plus(1), Number::ZERO);
        assert_eq!((Number::ZERO.since(last), last.since(Number::ZERO)), (1, Number::COUNT - 1));
        assert_eq!(Number::new(u32::MAX), last);
        for hash in [0, 1, 62, 63, u32::MAX] {
            let lane = Lane::of_flow(hash);
            assert!(lane.is_ordered());
            assert_eq!(lane.index(), 1 + hash as usize % 63);
        }
        assert!(!Lane::UNORDERED.is_ordered());
        assert_eq!(Lane::new(64), None);
    }
}
