//! Numbered datagrams: a lane and a number in a trailer at the very end, so that a framed packet needs no room in front of it.
//!
//! The trailer has 4 bytes in big endian: the lane in the top 6 bits, the number in the low 26. Numbering sets one bit of a
//! packet's or fragment's kind and changes nothing else before the trailer.

use bytes::{BufMut, Bytes, BytesMut};

use super::kind::{self, FRAGMENT_OVERHEAD, PACKET_OVERHEAD, TRAILER};
use crate::reason::DropReason;
use crate::wire::u32_at;

/// Length of the datagram that says that nothing below a number comes any more.
pub const NOTHING_BELOW_LEN: usize = 1 + TRAILER;

/// One of the 64 sequences of numbers that each direction of a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(u8);

impl Lane {
    /// Number of lanes.
    pub const COUNT: usize = 64;
    /// The lane whose datagrams never wait for each other.
    pub const UNORDERED: Self = Self(0);

    /// Makes the lane with this index, which is below [`Self::COUNT`].
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < Self::COUNT { Some(Self(index)) } else { None }
    }

    /// The ordered lane of a flow with this hash.
    pub fn of_flow(hash: u32) -> Self {
        const ORDERED: u32 = Lane::COUNT as u32 - 1;
        Self(u8::try_from(hash % ORDERED).unwrap_or(0) + 1)
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

/// Where a datagram belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its lane.
    pub lane: Lane,
    /// Its number in the lane.
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

/// What a received datagram says about numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// Nothing: a datagram without a trailer, not validated yet.
    Unnumbered,
    /// A packet or fragment with this place.
    Numbered(Place),
    /// No packet. Nothing below this place comes any more in its lane, which is ordered.
    NothingBelow(Place),
}

impl Numbering {
    /// Cuts the trailer off a datagram, if it has one.
    ///
    /// [`Datagram::parse_without_trailer`](super::Datagram::parse_without_trailer) reads what remains of a numbered datagram.
    ///
    /// # Errors
    /// [`DropReason::BadDatagram`] for a numbered datagram without a body, and for one that says that nothing comes below a number
    /// if it has flags, another length or an unordered lane.
    #[inline]
    pub fn cut(datagram: &mut Bytes) -> Result<Self, DropReason> {
        match datagram.first() {
            Some(first) if first >> 4 >= kind::NUMBERED_PACKET => Self::cut_trailer(datagram, *first),
            _ => Ok(Self::Unnumbered),
        }
    }

    #[cold]
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
    let Some(first) = framed.first_mut() else { return };
    *first |= kind::NUMBERED << 4;
    framed.put_u32(place.bits());
}

/// Appends a datagram to `out` that says that nothing below `place` comes any more. The lane must be ordered.
pub fn write_nothing_below(place: Place, out: &mut impl BufMut) {
    out.put_u8(kind::NOTHING_BELOW << 4);
    out.put_u32(place.bits());
}
