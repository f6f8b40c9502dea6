//! Removing an address from connection tracking when its client loses it, so that no flow of one client reaches the
//! next client with that address.

use std::{io, net::IpAddr};

use rustix::{
    io::Errno,
    net::{AddressFamily, netlink},
};

use crate::netlink_request::{self, Asked, NLM_F_ACK, NLM_F_DUMP};

/// Removes every flow that one of these addresses began or received. Returns how many. It blocks, and takes a while on
/// a busy exit.
///
/// # Errors
/// If the kernel cannot be asked. A kernel without connection tracking has nothing to remove.
pub fn forget(addresses: &[IpAddr]) -> io::Result<usize> {
    let mut forgotten = 0;
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        for flow in flows(family)?.iter().filter(|flow| flow.is_of(addresses)) {
            forgotten += usize::from(flow.forget(family)?);
        }
    }
    Ok(forgotten)
}

/// The identity of a flow: the attributes of its original direction, its number and its zone, as the kernel sent them.
struct Flow {
    addresses: Vec<IpAddr>,
    attributes: Vec<u8>,
}

impl Flow {
    fn parse(message: &[u8]) -> Option<Self> {
        let mut flow = Self { addresses: Vec::new(), attributes: Vec::new() };
        for (kind, value, whole) in Attributes(message.get(NFGENMSG..)?) {
            match kind {
                CTA_TUPLE_ORIG => {
                    let addresses = Attributes(value).find(|(kind, ..)| *kind == CTA_TUPLE_IP)?.1;
                    flow.addresses =
                        Attributes(addresses).filter_map(|(_, address, _)| ip(address)).collect();
                    flow.attributes.extend(whole);
                }
                // The number keeps the kernel from removing a later flow with the same addresses and ports. Without a zone, it
                // would look in zone 0.
                CTA_ID | CTA_ZONE => flow.attributes.extend(whole),
                _ => {}
            }
        }
        (!flow.addresses.is_empty()).then_some(flow)
    }

    fn is_of(&self, addresses: &[IpAddr]) -> bool {
        self.addresses.iter().any(|address| addresses.contains(address))
    }

    /// Returns whether the kernel removed it; the flow may have ended by now.
    fn forget(&self, family: AddressFamily) -> io::Result<bool> {
        ask(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, family, &self.attributes)?.is_done()
    }
}

fn flows(family: AddressFamily) -> io::Result<Vec<Flow>> {
    match ask(IPCTNL_MSG_CT_GET, NLM_F_DUMP, family, &[]) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PROTONOSUPPORT) => Ok(Vec::new()),
        asked => Ok(asked?.all(|_, message| Flow::parse(message))?.unwrap_or_default()),
    }
}

/// Sends `struct nfgenmsg` and attributes.
fn ask(kind: u16, flags: u16, family: AddressFamily, attributes: &[u8]) -> io::Result<Asked> {
    let family = u8::try_from(family.as_raw()).map_err(io::Error::other)?;
    let request = [&[family, 0, 0, 0], attributes].concat();
    netlink_request::ask(netlink::NETFILTER, NFNL_SUBSYS_CTNETLINK << 8 | kind, flags, &request)
}

fn ip(address: &[u8]) -> Option<IpAddr> {
    match *address {
        [a, b, c, d] => Some(IpAddr::from([a, b, c, d])),
        _ => Some(IpAddr::from(<[u8; 16]>::try_from(address).ok()?)),
    }
}

/// Splits consecutive attributes into type, value, and the whole with its padding.
struct Attributes<'m>(&'m [u8]);

impl<'m> Iterator for Attributes<'m> {
    type Item = (u16, &'m [u8], &'m [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16::from_ne_bytes(*self.0.first_chunk()?));
        // The two upper bits are flags: whether the attribute is nested, and whether it is in network byte order.
        let kind = u16::from_ne_bytes(self.0.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = self.0.get(4..length)?;
        let whole = self.0.get(..length.next_multiple_of(4)).unwrap_or(self.0);
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value, whole))
    }
}

/// `struct nfgenmsg`, and constants of linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h and linux/netlink.h.
const NFGENMSG: usize = 4;
const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const NLA_TYPE_MASK: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_is_known_by_the_addresses_of_its_first_direction() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = u16::try_from(4 + value.len()).unwrap();
            let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let addresses = [attribute(1, &[10, 66, 0, 2]), attribute(2, &[203, 0, 113, 2])].concat();
        let tuple = attribute(0x8001, &attribute(0x8001, &addresses));
        let reply = attribute(0x8002, &attribute(0x8001, &attribute(1, &[9, 9, 9, 9])));
        let id = attribute(CTA_ID, &[0, 0, 0, 7]);
        let message = [vec![2, 0, 0, 0], tuple.clone(), reply, id.clone()].concat();

        let flow = Flow::parse(&message).unwrap();

        assert!(flow.is_of(&[[10, 66, 0, 2].into()]) && flow.is_of(&[[203, 0, 113, 2].into()]));
        assert!(!flow.is_of(&[[9, 9, 9, 9].into()]));
        assert_eq!(flow.attributes, [tuple, id].concat());
        for cut in 0..message.len() {
            let _ = Flow::parse(&message[..cut]);
        }
    }
}
