//! A minimal parser of QUIC long headers (RFC 9000 section 17.2), which recognises connection attempts.

/// The long header bit, version 1's type bits, and their value in an Initial.
const LONG_HEADER: u8 = 0x80;
const TYPE: u8 = 0x30;
const INITIAL: u8 = 0x00;
const VERSION_1: u32 = 1;

/// Whether a datagram starts with a long header.
pub(crate) fn is_long(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & LONG_HEADER != 0)
}

/// A parsed long header.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum LongHeader<'a> {
    /// An Initial of version 1.
    Initial {
        /// The destination connection ID.
        destination: &'a [u8],
        /// The token. Empty if the Initial has none.
        token: &'a [u8],
    },
    /// Another packet of version 1. The QUIC library never answers it if it belongs to no connection.
    Later {
        /// The destination connection ID.
        destination: &'a [u8],
    },
}

impl<'a> LongHeader<'a> {
    /// Parses the first packet of a datagram. `None` if it has another version or is truncated.
    pub(super) fn read(datagram: &'a [u8]) -> Option<Self> {
        let (&first, rest) = datagram.split_first()?;
        let (version, rest) = rest.split_first_chunk()?;
        // In other versions only the connection IDs are in a known place (RFC 8999).
        if u32::from_be_bytes(*version) != VERSION_1 {
            return None;
        }
        let (destination, rest) = id(rest)?;
        if first & TYPE != INITIAL {
            return Some(Self::Later { destination });
        }
        let (_source, rest) = id(rest)?;
        let (length, rest) = variable_length_integer(rest)?;
        let token = rest.get(..usize::try_from(length).ok()?)?;
        Some(Self::Initial { destination, token })
    }
}

fn id(from: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = from.split_first()?;
    rest.split_at_checked(length.into())
}

/// Parses a variable-length integer (RFC 9000 section 16).
fn variable_length_integer(from: &[u8]) -> Option<(u64, &[u8])> {
    let first = *from.first()?;
    // The two upper bits say how long the integer is: 1, 2, 4 or 8 bytes.
    let (bytes, rest) = from.split_at_checked(1 << (first >> 6))?;
    let value =
        bytes.iter().skip(1).fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: [u8; 5] = [0xc3, 0, 0, 0, 1];

    #[test]
    fn an_initial_is_read() {
        let packet = [&HEAD[..], &[3, 1, 2, 3], &[1, 9], &[0x40, 2, 7, 8], &[0; 9]].concat();
        let expected = LongHeader::Initial { destination: &[1, 2, 3], token: &[7, 8] };
        assert_eq!(LongHeader::read(&packet), Some(expected));
        assert!(is_long(&packet));
    }

    #[test]
    fn other_types_versions_and_stumps_are_told_apart() {
        let later = LongHeader::Later { destination: &[7, 8] };
        assert_eq!(LongHeader::read(&[0xe0, 0, 0, 0, 1, 2, 7, 8]), Some(later));
        assert_eq!(LongHeader::read(&[0xe0, 0, 0, 0, 1, 2, 7]), None);
        assert_eq!(LongHeader::read(&[0xc0, 0xba, 0xba, 0xba, 0xba, 0, 0, 0]), None);
        let packet = [&HEAD[..], &[3, 1, 2, 3], &[1, 9], &[2, 7, 8]].concat();
        for length in 0..packet.len() {
            assert_eq!(LongHeader::read(&packet[..length]), None, "{length}");
        }
        assert!(!is_long(&[0x7f]) && !is_long(&[]));
    }

    #[test]
    fn integers_are_read_as_the_rfc_s_examples() {
        let read = |bytes: &[u8]| variable_length_integer(bytes).map(|(value, rest)| (value, rest.len()));
        assert_eq!(
            read(&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c]),
            Some((151_288_809_941_952_652, 0))
        );
        assert_eq!(read(&[0x9d, 0x7f, 0x3e, 0x7d, 1]), Some((494_878_333, 1)));
        assert_eq!(read(&[0x25]), Some((37, 0)));
        assert_eq!(read(&[0x40]), None);
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_is_out_of_bounds(bytes in prop::collection::vec(any::<u8>(), 0..64), fix: bool) {
            let packet = if fix { [&HEAD[..], &bytes].concat() } else { bytes };
            if let Some(LongHeader::Initial { destination, token }) = LongHeader::read(&packet) {
                prop_assert!(destination.len() + token.len() <= packet.len());
            }
        }
    }
}
