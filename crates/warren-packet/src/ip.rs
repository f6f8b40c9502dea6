//! A view of one whole IPv4 or IPv6 packet with checked lengths.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::extension;
use crate::wire::{array_at, u16_at};

/// Protocol numbers that this crate knows (IANA assigned Internet protocol numbers).
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// Longest packet that Warren carries, in bytes: the limit of IPv4 and of a fragment's `total`.
pub const MAX_PACKET: usize = 65_535;

pub(crate) const IPV4_HEADER: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;

/// A whole IP packet: its version is 4 or 6, its header is complete, and its length equals the length in the header.
///
/// ```
/// use warren_packet::ip::{IpPacket, protocol};
/// use warren_packet::tuple::FiveTuple;
///
/// // UDP from 10.66.0.2 port 30000 to 203.0.113.2 port 7, without payload.
/// let bytes = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol::UDP, 0, 0, 10, 66, 0, 2, 203, 0, 113, 2, //
///     0x75, 0x30, 0, 7, 0, 8, 0, 0,
/// ];
/// let packet = IpPacket::parse(&bytes)?;
/// assert_eq!(packet.transport(), Some(20));
/// assert_eq!(FiveTuple::of(&packet).destination_port, 7);
/// assert!(IpPacket::parse(&bytes[..27]).is_err());
/// # Ok::<_, warren_packet::Malformed>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket<'a> {
    bytes: &'a [u8],
    version: IpVersion,
    protocol: u8,
    transport: Option<usize>,
    is_fragment: bool,
    plain_addresses: bool,
}

impl<'a> IpPacket<'a> {
    /// Checks that `bytes` is exactly one IP packet.
    ///
    /// Truncated extension headers do not make a packet malformed, because a router would forward it too. For such a packet,
    /// [`Self::transport`] is `None`.
    ///
    /// # Errors
    /// [`Malformed`] says which length or version is wrong. IPv6 jumbograms are refused.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let first = *bytes.first().ok_or(Malformed::Truncated { length: 0 })?;
        match first >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            version => Err(Malformed::Version { version }),
        }
    }

    /// The packet itself.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The version of IP.
    pub fn version(&self) -> IpVersion {
        self.version
    }

    /// The source address of the outermost header.
    pub fn source(&self) -> IpAddr {
        match self.version {
            IpVersion::V4 => Ipv4Addr::from(array_at::<4>(self.bytes, 12)).into(),
            IpVersion::V6 => Ipv6Addr::from(array_at::<16>(self.bytes, 8)).into(),
        }
    }

    /// The destination address of the outermost header.
    pub fn destination(&self) -> IpAddr {
        match self.version {
            IpVersion::V4 => Ipv4Addr::from(array_at::<4>(self.bytes, 16)).into(),
            IpVersion::V6 => Ipv6Addr::from(array_at::<16>(self.bytes, 24)).into(),
        }
    }

    /// The protocol number of the payload. For IPv6, it is the one after the extension headers, or the type of the header at
    /// which walking them stopped.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Offset of the transport header in bytes. It is at most the packet's length, so the header itself may be missing. `None`
    /// for a fragment and for extension headers that cannot be walked.
    pub fn transport(&self) -> Option<usize> {
        self.transport
    }

    /// Whether this is a fragment, including the first one. An IPv6 packet with a fragment header counts as a fragment even if it
    /// is whole (RFC 6946).
    pub fn is_fragment(&self) -> bool {
        self.is_fragment
    }

    /// The length of the IPv4 header with its options, or of the fixed IPv6 header, in bytes.
    pub fn header_length(&self) -> usize {
        match self.version {
            IpVersion::V4 => usize::from(self.bytes[0] & 0x0f) * 4,
            IpVersion::V6 => IPV6_HEADER,
        }
    }

    /// Whether the pseudo-header of the transport checksum uses the header's addresses. With a source route, a home address
    /// option or an authentication header it may use others (RFC 8200 section 8.1, RFC 1122 section 4.1.3.2).
    pub(crate) fn has_plain_addresses(&self) -> bool {
        self.plain_addresses
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, Malformed> {
        // The header checksum is left to the receiving kernel, which drops packets with a wrong one (`ip_rcv`).
        let length = bytes.len();
        if length < IPV4_HEADER {
            return Err(Malformed::Truncated { length });
        }
        let header_length = usize::from(bytes[0] & 0x0f) * 4;
        if header_length < IPV4_HEADER || header_length > length {
            return Err(Malformed::HeaderLength { header_length });
        }
        // A TUN device adds no padding, unlike Ethernet, so both lengths must agree.
        let claimed = usize::from(u16_at(bytes, 2));
        if claimed != length {
            return Err(Malformed::TotalLength { claimed, actual: length });
        }
        // The MF bit and the fragment offset (RFC 791 section 3.1).
        let is_fragment = u16_at(bytes, 6) & 0x3fff != 0;
        Ok(Self {
            bytes,
            version: IpVersion::V4,
            protocol: bytes[9],
            transport: (!is_fragment).then_some(header_length),
            is_fragment,
            plain_addresses: !has_source_route(&bytes[IPV4_HEADER..header_length]),
        })
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let length = bytes.len();
        if length < IPV6_HEADER {
            return Err(Malformed::Truncated { length });
        }
        let claimed = IPV6_HEADER + usize::from(u16_at(bytes, 4));
        // IPv6's length field leaves out the fixed header, so a packet may have up to 40 bytes more than Warren carries.
        if claimed != length || length > MAX_PACKET {
            return Err(Malformed::TotalLength { claimed, actual: length });
        }
        let chain = extension::walk(bytes, bytes[6], IPV6_HEADER);
        Ok(Self {
            bytes,
            version: IpVersion::V6,
            protocol: chain.protocol,
            transport: chain.transport,
            is_fragment: chain.is_fragment,
            plain_addresses: chain.plain_addresses,
        })
    }
}

/// Whether IPv4 options contain a loose or strict source route, or are invalid (RFC 791 section 3.1).
fn has_source_route(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    loop {
        options = match options {
            [] | [END, ..] => return false,
            [NO_OPERATION, rest @ ..] => rest,
            [LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, ..] => return true,
            // Invalid options count as a source route, because it is unclear which addresses the checksum covers.
            [_, length, ..] => match options.get(usize::from(*length)..) {
                Some(rest) if *length >= 2 => rest,
                _ => return true,
            },
            [_] => return true,
        };
    }
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Why bytes from the TUN device or a peer are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too short for a fixed header.
    #[error("{length} bytes are too short for the header")]
    Truncated {
        /// The actual number of bytes.
        length: usize,
    },
    /// Neither IPv4 nor IPv6.
    #[error("IP version {version} is neither 4 nor 6")]
    Version {
        /// The value of the version field.
        version: u8,
    },
    /// An IPv4 header length below 20 bytes or beyond the packet.
    #[error("an IPv4 header of {header_length} bytes does not fit the packet")]
    HeaderLength {
        /// The value of the header length field, in bytes.
        header_length: usize,
    },
    /// The length in the header differs from the actual length, or exceeds what Warren carries.
    #[error("the header says {claimed} bytes, the packet has {actual}")]
    TotalLength {
        /// The length in the header, in bytes.
        claimed: usize,
        /// The actual number of bytes.
        actual: usize,
    },
    /// An unexpected offload type, or one that does not match the packet's IP version or protocol.
    #[error("offload type {gso_type:#04x} does not fit the packet")]
    Offload {
        /// The type in the virtio header.
        gso_type: u8,
    },
    /// A super-packet with a segment size of 0.
    #[error("a super-packet has a segment size of 0")]
    SegmentSize,
    /// The checksum to complete lies outside the packet's payload.
    #[error("a checksum from byte {start} with its field at {field} lies outside the payload")]
    ChecksumPosition {
        /// Where summing starts.
        start: usize,
        /// Offset of the checksum field from the packet's start.
        field: usize,
    },
    /// The headers to rewrite are too long.
    #[error("{header_length} bytes of headers are too many to rewrite")]
    HeaderTooLong {
        /// Length of the headers that must be rewritten.
        header_length: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(header_words: u8, total: u16, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        bytes[0] = 0x40 | header_words;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes[9] = protocol::UDP;
        bytes
    }

    fn v6(payload: u16, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        bytes[0] = 0x60;
        bytes[4..6].copy_from_slice(&payload.to_be_bytes());
        bytes[6] = protocol::TCP;
        bytes
    }

    #[test]
    fn nothing_and_other_versions_are_refused() {
        assert_eq!(IpPacket::parse(&[]), Err(Malformed::Truncated { length: 0 }));
        assert_eq!(IpPacket::parse(&[0x50; 40]), Err(Malformed::Version { version: 5 }));
    }

    #[test]
    fn ipv4_lengths_must_agree() {
        assert!(IpPacket::parse(&v4(5, 20, 20)).is_ok());
        assert!(IpPacket::parse(&v4(15, 60, 60)).is_ok());
        assert_eq!(IpPacket::parse(&v4(5, 20, 20)[..19]), Err(Malformed::Truncated { length: 19 }));
        assert_eq!(IpPacket::parse(&v4(4, 20, 20)), Err(Malformed::HeaderLength { header_length: 16 }));
        assert_eq!(IpPacket::parse(&v4(6, 20, 20)), Err(Malformed::HeaderLength { header_length: 24 }));
        for claimed in [0, 39, 41, 65_535] {
            let error = Malformed::TotalLength { claimed: claimed.into(), actual: 40 };
            assert_eq!(IpPacket::parse(&v4(5, claimed, 40)), Err(error));
        }
    }

    #[test]
    fn ipv6_lengths_must_agree() {
        assert!(IpPacket::parse(&v6(0, 40)).is_ok());
        assert!(IpPacket::parse(&v6(65_495, 65_535)).is_ok());
        assert_eq!(IpPacket::parse(&v6(0, 40)[..39]), Err(Malformed::Truncated { length: 39 }));
        for (claimed, actual) in [(0, 41), (1, 40), (65_495, 65_536), (65_496, 65_536)] {
            assert!(IpPacket::parse(&v6(claimed, actual)).is_err(), "{claimed} of {actual}");
        }
    }

    #[test]
    fn jumbograms_are_refused() {
        let mut jumbogram = v6(0, 70_000);
        jumbogram[6] = 0; // hop-by-hop
        jumbogram[40..48].copy_from_slice(&[protocol::UDP, 0, 0xc2, 4, 0, 1, 0x11, 0x48]);
        assert!(matches!(IpPacket::parse(&jumbogram), Err(Malformed::TotalLength { claimed: 40, .. })));
    }

    #[test]
    fn every_ipv4_fragment_is_one() {
        for (field, is_fragment) in
            [(0x0000, false), (0x4000, false), (0x8000, false), (0x2000, true), (1, true)]
        {
            let mut bytes = v4(5, 28, 28);
            bytes[6..8].copy_from_slice(&u16::to_be_bytes(field));
            let packet = IpPacket::parse(&bytes).unwrap();
            assert_eq!(packet.is_fragment(), is_fragment, "{field:#06x}");
            assert_eq!(packet.transport(), (!is_fragment).then_some(20));
        }
    }

    #[test]
    fn source_routes_are_found_among_ipv4_options() {
        for (options, plain) in [
            (&[1, 1, 0, 131][..], true),
            (&[148, 4, 0, 0], true),
            (&[1, 131, 3, 4], false),
            (&[148, 4, 0, 0, 137, 3, 4, 0], false),
            (&[7, 0, 0, 0], false),
            (&[7, 9, 0, 0], false),
            (&[1, 1, 1, 7], false),
        ] {
            let length = u8::try_from(20 + options.len()).unwrap();
            let mut bytes = v4(length / 4, length.into(), length.into());
            bytes[20..].copy_from_slice(options);
            assert_eq!(IpPacket::parse(&bytes).unwrap().has_plain_addresses(), plain, "{options:?}");
        }
    }
}
