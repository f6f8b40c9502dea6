//! A datagram of the simulation. Its content shows who sent it and whether any byte was changed.

use bytes::Bytes;

/// Bytes after the head: of most datagrams, and of those in a burst.
const TAIL: usize = 180;
const LONG_TAIL: usize = 1_100;

/// Of every `BURST_OF` datagrams, `BURST` come in one burst, which is more than a connection takes at once.
const BURST: u64 = 10;
const BURST_OF: u64 = 64;

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Speech {
    pub(super) client: usize,
    pub(super) index: u32,
    pub(super) number: u64,
}

impl Speech {
    pub(super) fn write(self) -> Bytes {
        let mut bytes = vec![u8::try_from(self.client).unwrap(), u8::try_from(self.index).unwrap()];
        bytes.extend(self.number.to_be_bytes());
        let tail = self.tail();
        bytes.extend(tail);
        bytes.into()
    }

    /// Reads a datagram. No byte of it may have been changed.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let number = u64::from_be_bytes(bytes[2..10].try_into().unwrap());
        let speech = Self { client: bytes[0].into(), index: bytes[1].into(), number };
        assert_eq!(bytes[10..], speech.tail(), "changed on its way");
        speech
    }

    /// Whether this datagram and the next one should be sent together.
    pub(super) fn is_in_burst(self) -> bool {
        self.number % BURST_OF < BURST
    }

    fn tail(self) -> Vec<u8> {
        let first = self.number.wrapping_mul(31).to_be_bytes()[7];
        let length = if self.is_in_burst() { LONG_TAIL } else { TAIL };
        (0..length).map(|at| first.wrapping_add(u8::try_from(at % 256).unwrap())).collect()
    }
}
