//! The Internet checksum: ones' complement sums (RFC 1071), incremental updates (RFC 1624) and the pseudo-header.

use std::net::IpAddr;
use std::ops::Add;

/// A ones' complement sum in progress.
///
/// Sums of consecutive pieces of data may be added if every piece except the last has an even length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Sums `bytes` as big-endian 16-bit words. An odd last byte is the high byte of its word.
    pub fn of(bytes: &[u8]) -> Self {
        // Neither the byte order of the words nor their width matters until the end (RFC 1071 section 2 (B) and (C)).
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0; 4];
        // Zeros after the rest do not change the sum.
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        // The words were read in the machine's order, which swaps the bytes of the sum on a little-endian one.
        Self(u64::from(u16::from_be(fold(sum))))
    }

    /// The sum folded to 16 bits, as in a partial checksum field. It is 0 only if everything added was 0.
    pub fn folded(self) -> u16 {
        fold(self.0)
    }

    /// The checksum: the complement of the sum.
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// The checksum for a transport header. In UDP, 0 means "no checksum", so 0 is sent as 0xffff, which is equal (RFC 768).
    pub fn transport_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

impl Add for Sum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        // No overflow: every piece is folded to 16 bits before it is added.
        Self(self.0 + other.0)
    }
}

impl From<u16> for Sum {
    fn from(word: u16) -> Self {
        Self(word.into())
    }
}

/// The sum of the pseudo-header of TCP or UDP without its length field (RFC 9293 section 3.1, RFC 8200 section 8.1). Add the
/// length with [`Sum::from`].
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8) -> Sum {
    address(source) + address(destination) + Sum::from(u16::from(protocol))
}

/// Returns the checksum after one of its words changed from `old` to `new` (RFC 1624 equation 3).
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    // RFC 1141's shorter form can give the wrong one of the two zeros of ones' complement.
    (Sum::from(!checksum) + Sum::from(!old) + Sum::from(new)).checksum()
}

fn address(address: IpAddr) -> Sum {
    match address {
        IpAddr::V4(address) => Sum::of(&address.octets()),
        IpAddr::V6(address) => Sum::of(&address.octets()),
    }
}

fn fold(mut sum: u64) -> u16 {
    // Adding the carries may carry again.
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071 section 3.
    const EXAMPLE: [u8; 8] = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];

    /// RFC 1071 to the letter: word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_rfc_example_adds_up() {
        assert_eq!(Sum::of(&EXAMPLE).folded(), 0xddf2);
        assert_eq!(Sum::of(&EXAMPLE).checksum(), !0xddf2);
    }

    #[test]
    fn an_odd_last_byte_is_a_high_byte() {
        assert_eq!(Sum::of(&[]).folded(), 0);
        assert_eq!(Sum::of(&[0x12]).folded(), 0x1200);
        assert_eq!(Sum::of(&[0x12, 0x34, 0x56]).folded(), 0x1234 + 0x5600);
    }

    #[test]
    fn runs_of_even_length_may_be_added() {
        let whole = Sum::of(&EXAMPLE[..7]).folded();
        for split in [0, 2, 4, 6] {
            let (left, right) = EXAMPLE[..7].split_at(split);
            assert_eq!((Sum::of(left) + Sum::of(right)).folded(), whole);
        }
    }

    #[test]
    fn a_sum_that_complements_to_zero_is_sent_as_its_equal() {
        assert_eq!(Sum::from(0xffff).checksum(), 0);
        assert_eq!(Sum::from(0xffff).transport_checksum(), 0xffff);
        assert_eq!(Sum::from(0x1234).transport_checksum(), !0x1234);
    }

    #[test]
    fn the_rfc_1624_example_updates_to_zero() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest::proptest! {
        #[test]
        fn the_wide_sum_is_the_narrow_sum(bytes: Vec<u8>) {
            assert_eq!(Sum::of(&bytes).folded(), slow(&bytes));
        }

        #[test]
        fn an_update_equals_a_new_sum(mut bytes in proptest::collection::vec(1u8.., 4..64), new: u16) {
            let old = u16::from_be_bytes([bytes[0], bytes[1]]);
            let before = Sum::of(&bytes).checksum();
            bytes[..2].copy_from_slice(&new.to_be_bytes());
            assert_eq!(update(before, old, new), Sum::of(&bytes).checksum());
        }
    }
}
