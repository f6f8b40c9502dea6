//! A datagram that says whose it is, and whether a byte of it was changed.

use bytes::Bytes;

/// Bytes behind the head.
const TAIL: usize = 180;

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

    /// Reads a datagram, of which no byte may have been changed.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let number = u64::from_be_bytes(bytes[2..10].try_into().unwrap());
        let speech = Self { client: bytes[0].into(), index: bytes[1].into(), number };
        assert_eq!(bytes[10..], speech.tail(), "changed on its way");
        speech
    }

    fn tail(self) -> Vec<u8> {
        let first = self.number.wrapping_mul(31).to_be_bytes()[7];
        (0..TAIL).map(|at| first.wrapping_add(u8::try_from(at).unwrap())).collect()
    }
}
