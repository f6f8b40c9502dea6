//! Removes flows from connection tracking. When a client loses an address, the flows of the address are removed, so that their
//! packets do not reach the next client with this address. When a forward is removed, its flows are removed too.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, netlink},
};

use crate::{
    kill_switch::InboundProtocol,
    netlink_request::{self, Asked, NLM_F_ACK, NLM_F_DUMP},
};

/// Removes every flow from or to one of these addresses. Returns the number of removed flows. This blocks, and takes a while on a
/// busy exit.
///
/// # Errors
/// If the kernel cannot be asked. A kernel without connection tracking has nothing to remove.
pub fn forget(addresses: &[IpAddr]) -> io::Result<usize> {
    forget_those(|flow| flow.is_of(addresses))
}

/// A flow to a port of this host that DNAT has redirected to another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentOn {
    /// TCP or UDP.
    pub protocol: InboundProtocol,
    /// The port of this host.
    pub port: u16,
    /// The destination of its packets.
    pub to: SocketAddr,
}

/// Removes each redirected flow for which `is_over` returns true. Returns the number of removed flows. This blocks, as [`forget`]
/// does.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn forget_sent_on(is_over: impl Fn(&SentOn) -> bool) -> io::Result<usize> {
    forget_those(|flow| flow.sent_on.as_ref().is_some_and(&is_over))
}

fn forget_those(is_one: impl Fn(&Flow) -> bool) -> io::Result<usize> {
    let mut forgotten = 0;
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        for flow in flows(family)?.iter().filter(|flow| is_one(flow)) {
            forgotten += usize::from(flow.forget(family)?);
        }
    }
    Ok(forgotten)
}

/// The identity of a flow: the attributes for its original direction, its ID and its zone, as the kernel sent them.
struct Flow {
    addresses: Vec<IpAddr>,
    attributes: Vec<u8>,
    sent_on: Option<SentOn>,
}

impl Flow {
    fn parse(message: &[u8]) -> Option<Self> {
        let mut flow = Self { addresses: Vec::new(), attributes: Vec::new(), sent_on: None };
        let (mut original, mut reply) = (None, None);
        for (kind, value, whole) in Attributes(message.get(NFGENMSG..)?) {
            match kind {
                CTA_TUPLE_ORIG => {
                    let addresses = Attributes(value).find(|(kind, ..)| *kind == CTA_TUPLE_IP)?.1;
                    flow.addresses =
                        Attributes(addresses).filter_map(|(_, address, _)| ip(address)).collect();
                    flow.attributes.extend(whole);
                    original = Ends::parse(value);
                }
                CTA_TUPLE_REPLY => reply = Ends::parse(value),
                // With the ID, the kernel does not remove a later flow that has the same addresses and ports. Without the zone,
                // it would search in zone 0.
                CTA_ID | CTA_ZONE => flow.attributes.extend(whole),
                _ => {}
            }
        }
        flow.sent_on = original.zip(reply).and_then(|(original, reply)| original.sent_on(&reply));
        (!flow.addresses.is_empty()).then_some(flow)
    }

    fn is_of(&self, addresses: &[IpAddr]) -> bool {
        self.addresses.iter().any(|address| addresses.contains(address))
    }

    /// Removes the flow. Returns false if the flow has already ended.
    fn forget(&self, family: AddressFamily) -> io::Result<bool> {
        ask(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, family, &self.attributes)?.is_done()
    }
}

/// The source and destination of one direction of a flow.
struct Ends {
    protocol: InboundProtocol,
    source: SocketAddr,
    destination: SocketAddr,
}

impl Ends {
    /// Parses a tuple. `None` for protocols other than TCP and UDP.
    fn parse(tuple: &[u8]) -> Option<Self> {
        let nested = |kind| Attributes(tuple).find(|(found, ..)| *found == kind).map(|(_, value, _)| value);
        let (addresses, ports) = (nested(CTA_TUPLE_IP)?, nested(CTA_TUPLE_PROTO)?);
        let [mut source, mut destination] = [None; 2];
        for (kind, address, _) in Attributes(addresses) {
            match kind {
                CTA_IP_V4_SRC | CTA_IP_V6_SRC => source = ip(address),
                CTA_IP_V4_DST | CTA_IP_V6_DST => destination = ip(address),
                _ => {}
            }
        }
        let field = |wanted| Attributes(ports).find(|(kind, ..)| *kind == wanted).map(|(_, value, _)| value);
        let port = |kind| Some(u16::from_be_bytes(field(kind)?.try_into().ok()?));
        let protocol = match field(CTA_PROTO_NUM)? {
            [IPPROTO_TCP] => InboundProtocol::Tcp,
            [IPPROTO_UDP] => InboundProtocol::Udp,
            _ => return None,
        };
        let source = SocketAddr::new(source?, port(CTA_PROTO_SRC_PORT)?);
        let destination = SocketAddr::new(destination?, port(CTA_PROTO_DST_PORT)?);
        Some(Self { protocol, source, destination })
    }

    /// Returns the destination to which the flow was redirected, which is the source of its replies. `None` if the replies come
    /// from the original destination.
    fn sent_on(&self, reply: &Self) -> Option<SentOn> {
        let to = reply.source;
        let sent_on = SentOn { protocol: self.protocol, port: self.destination.port(), to };
        (to.ip() != self.destination.ip()).then_some(sent_on)
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

/// Iterates over consecutive attributes. Returns each one's type, its value, and all of its bytes including padding.
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
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const NLA_TYPE_MASK: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn tuple(direction: u16, protocol: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let addresses = [attribute(1, &from.0), attribute(2, &to.0)].concat();
        let port = |kind, port: u16| attribute(kind, &port.to_be_bytes());
        let ports = [attribute(1, &[protocol]), port(2, from.1), port(3, to.1)].concat();
        attribute(0x8000 | direction, &[attribute(0x8001, &addresses), attribute(0x8002, &ports)].concat())
    }

    #[test]
    fn flow_that_was_sent_on_is_known_by_its_first_port_and_by_who_answers() {
        let (visitor, exit, client) = ([203, 0, 113, 2], [198, 51, 100, 2], [10, 66, 0, 2]);
        let message = |protocol, answers| {
            let original = tuple(1, protocol, (visitor, 5_000), (exit, 8_443));
            let reply = tuple(2, protocol, (answers, 443), (visitor, 5_000));
            [vec![2, 0, 0, 0], original, reply].concat()
        };
        let sent_on = |message: &[u8]| Flow::parse(message).unwrap().sent_on;

        let to = SocketAddr::from((client, 443));
        for (number, protocol) in [(6, InboundProtocol::Tcp), (17, InboundProtocol::Udp)] {
            assert_eq!(sent_on(&message(number, client)), Some(SentOn { protocol, port: 8_443, to }));
        }
        assert_eq!(sent_on(&message(6, exit)), None, "the exit itself answers");
        assert_eq!(sent_on(&message(132, client)), None, "SCTP is not forwarded");
        let whole = message(6, client);
        for cut in 0..whole.len() {
            let _ = Flow::parse(&whole[..cut]);
        }
    }

    #[test]
    fn flow_is_known_by_the_addresses_of_its_first_direction() {
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
