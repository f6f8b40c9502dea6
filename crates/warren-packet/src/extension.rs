//! Walks the extension headers of an IPv6 packet (RFC 8200 section 4).

/// Maximum number of extension headers walked, twice the number that RFC 8200 section 4.1 recommends. The limit bounds the cost
/// of a hostile packet.
const MAX_HEADERS: usize = 12;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// Length of the fragment header, which has no length field.
const FRAGMENT_LENGTH: usize = 8;

/// The result of walking the headers after the fixed IPv6 header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The transport protocol, or the type of the header at which the walk stopped.
    pub(crate) protocol: u8,
    /// Offset of the transport header. `None` after a fragment header or a truncated one.
    pub(crate) transport: Option<usize>,
    pub(crate) is_fragment: bool,
    /// Whether the transport checksum covers the fixed header's addresses.
    pub(crate) plain_addresses: bool,
}

/// Walks the chain that begins at `offset` with a header of type `next`.
pub(crate) fn walk(bytes: &[u8], mut next: u8, mut offset: usize) -> Chain {
    let mut plain_addresses = true;
    // Takes one step more than the limit on headers, because the last step finds the transport protocol.
    for _ in 0..=MAX_HEADERS {
        let rest = bytes.get(offset..).unwrap_or_default();
        let length = match (next, rest) {
            // Only the first fragment contains the headers that follow, so the walk stops at every fragment header.
            (FRAGMENT, _) => {
                let protocol = if rest.len() >= FRAGMENT_LENGTH { rest[0] } else { FRAGMENT };
                return Chain { protocol, transport: None, is_fragment: true, plain_addresses };
            }
            (HOP_BY_HOP, [_, units, ..]) => 8 + 8 * usize::from(*units),
            // This header may hold the home address option, which replaces the source (RFC 6275 section 11.3.1). Other
            // destination options are rare, so the options are not read.
            (DESTINATION_OPTIONS, [_, units, ..]) => {
                plain_addresses = false;
                8 + 8 * usize::from(*units)
            }
            (ROUTING, [_, units, _, segments_left, ..]) => {
                // While segments are left, the checksum covers the final destination, which this header has (RFC 8200 section
                // 8.1).
                plain_addresses &= *segments_left == 0;
                8 + 8 * usize::from(*units)
            }
            // This length is in units of 4 bytes, minus two units (RFC 4302 section 2.2).
            (AUTHENTICATION, [_, units, ..]) => {
                plain_addresses = false;
                8 + 4 * usize::from(*units)
            }
            // Truncated before the bytes that the arms above read.
            (HOP_BY_HOP | ROUTING | AUTHENTICATION | DESTINATION_OPTIONS, _) => break,
            (protocol, _) => {
                return Chain { protocol, transport: Some(offset), is_fragment: false, plain_addresses };
            }
        };
        if length > rest.len() {
            break;
        }
        next = rest[0];
        offset += length;
    }
    Chain { protocol: next, transport: None, is_fragment: false, plain_addresses }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: u8 = 6;

    /// A header of 8 bytes times `1 + units`, whose fourth byte is `fourth`.
    fn header(next: u8, units: u8, fourth: u8) -> Vec<u8> {
        let mut bytes = vec![0; 8 + 8 * usize::from(units)];
        (bytes[0], bytes[1], bytes[3]) = (next, units, fourth);
        bytes
    }

    #[test]
    fn a_packet_without_extension_headers_starts_with_its_transport_header() {
        let expected = Chain { protocol: TCP, transport: Some(0), is_fragment: false, plain_addresses: true };
        assert_eq!(walk(&[], TCP, 0), expected);
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let mut authentication = header(ROUTING, 1, 0);
        authentication[1] = 2; // 16 bytes in its own unit
        let bytes = [header(AUTHENTICATION, 2, 0), authentication, header(TCP, 0, 0)].concat();
        let chain = walk(&bytes, HOP_BY_HOP, 0);
        assert_eq!((chain.protocol, chain.transport), (TCP, Some(48)));
    }

    #[test]
    fn a_header_cut_short_ends_the_walk_without_transport() {
        for kind in [HOP_BY_HOP, ROUTING, AUTHENTICATION, DESTINATION_OPTIONS] {
            let bytes = header(TCP, 0, 0);
            assert_eq!(walk(&bytes, kind, 0).transport, Some(8));
            for length in 0..8 {
                let chain = walk(&bytes[..length], kind, 0);
                assert_eq!((chain.protocol, chain.transport, chain.is_fragment), (kind, None, false));
            }
            assert_eq!(walk(&[TCP, 255, 0, 0, 0, 0, 0, 0], kind, 0).transport, None);
        }
    }

    #[test]
    fn a_fragment_header_hides_the_transport_header() {
        let bytes = [header(FRAGMENT, 0, 0), header(TCP, 0, 0), vec![0; 20]].concat();
        let chain = walk(&bytes, HOP_BY_HOP, 0);
        assert_eq!(chain, Chain { protocol: TCP, transport: None, is_fragment: true, plain_addresses: true });
        assert!(walk(&[], FRAGMENT, 0).is_fragment);
    }

    #[test]
    fn headers_that_move_an_address_are_told() {
        for (kind, fourth, plain) in [
            (HOP_BY_HOP, 1, true),
            (ROUTING, 0, true),
            (ROUTING, 1, false),
            (DESTINATION_OPTIONS, 0, false),
            (AUTHENTICATION, 0, false),
        ] {
            assert_eq!(walk(&header(TCP, 0, fourth), kind, 0).plain_addresses, plain, "{kind} {fourth}");
        }
    }

    #[test]
    fn an_endless_chain_is_given_up() {
        let chain = |count: usize| walk(&vec![0; 8 * count], HOP_BY_HOP, 0);
        assert_eq!(chain(8_000).transport, None);
        let mut honest = vec![0; 8 * MAX_HEADERS];
        honest[8 * MAX_HEADERS - 8] = TCP;
        assert_eq!(walk(&honest, HOP_BY_HOP, 0).transport, Some(8 * MAX_HEADERS));
    }
}
