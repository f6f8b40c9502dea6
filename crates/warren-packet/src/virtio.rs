//! The header before every packet of a TUN device with vnet_hdr (`linux/virtio_net.h`).

use crate::ip::Malformed;

/// Length of the header in bytes, the default of `TUNSETVNETHDRSZ`.
pub const LEN: usize = 10;

/// Flag: the checksum at `checksum_start + checksum_offset` is partial. It holds only the pseudo-header's sum.
pub const NEEDS_CSUM: u8 = 1;
/// Flag: the kernel has verified the checksum.
pub const DATA_VALID: u8 = 2;

/// Offload type: one packet.
pub const GSO_NONE: u8 = 0;
/// Offload type: TCP over IPv4, to be segmented (TSO4).
pub const GSO_TCPV4: u8 = 1;
/// Offload type: TCP over IPv6, to be segmented (TSO6).
pub const GSO_TCPV6: u8 = 4;
/// Offload type: UDP over IPv4 or IPv6, to be segmented into datagrams (USO).
pub const GSO_UDP_L4: u8 = 5;
/// Bit added to the TCP types: the first segment has CWR set.
pub const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`. Its fields are in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// [`GSO_NONE`] or another offload type, with or without [`GSO_ECN`].
    pub gso_type: u8,
    /// Length of all headers in bytes. Only a hint.
    pub header_length: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Where summing starts, in bytes from the packet's start.
    pub checksum_start: u16,
    /// Where the checksum field is, in bytes from `checksum_start`.
    pub checksum_offset: u16,
}

impl VirtioNetHeader {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if there are fewer than [`LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some(&[flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1]) = bytes.first_chunk::<LEN>() else {
            return Err(Malformed::Truncated { length: bytes.len() });
        };
        Ok(Self {
            flags,
            gso_type,
            header_length: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            checksum_start: u16::from_ne_bytes([s0, s1]),
            checksum_offset: u16::from_ne_bytes([o0, o1]),
        })
    }

    /// Writes the header as the kernel reads it.
    pub fn to_bytes(self) -> [u8; LEN] {
        let [h0, h1] = self.header_length.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.checksum_start.to_ne_bytes();
        let [o0, o1] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// Whether the packet's transport checksum is partial.
    pub fn needs_checksum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_bytes() {
        let header = VirtioNetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            header_length: 54,
            gso_size: 1448,
            checksum_start: 34,
            checksum_offset: 16,
        };
        assert_eq!(VirtioNetHeader::parse(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn fields_stand_where_the_kernel_has_them() {
        let header =
            VirtioNetHeader { gso_size: 0x0102, checksum_offset: 0x0304, ..VirtioNetHeader::default() };
        let bytes = header.to_bytes();
        assert_eq!(bytes[4..6], 0x0102u16.to_ne_bytes());
        assert_eq!(bytes[8..10], 0x0304u16.to_ne_bytes());
    }

    #[test]
    fn a_short_header_is_refused() {
        assert_eq!(VirtioNetHeader::parse(&[0; 9]), Err(Malformed::Truncated { length: 9 }));
        assert!(VirtioNetHeader::parse(&[0; 11]).is_ok());
    }
}
