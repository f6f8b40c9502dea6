//! Removes flows from connection tracking: those of an address that a client loses, so that their packets do not reach the next
//! client with this address, and those that an exit's rules no longer accept. Without this they would continue, because the rules
//! accept the packets of known flows.

use std::{
    collections::BTreeSet,
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
pub fn forget(addresses: &BTreeSet<IpAddr>) -> io::Result<usize> {
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

/// Removes each flow for which `is_one` returns true. Returns the number of removed flows. This blocks, as [`forget`] does.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn forget_those(is_one: impl Fn(&Flow) -> bool) -> io::Result<usize> {
    let mut forgotten = 0;
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        for flow in flows(family)?.iter().filter(|flow| is_one(flow)) {
            forgotten += usize::from(flow.forget(family)?);
        }
    }
    Ok(forgotten)
}

/// A tracked flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The source of the first packet.
    pub source: IpAddr,
    /// The destination of the first packet.
    pub destination: IpAddr,
    /// The host that answers. It differs from `destination` if DNAT has redirected the flow.
    pub answers_from: IpAddr,
    /// The port at which that host answers. `None` for protocols other than TCP and UDP.
    pub port: Option<u16>,
    /// The redirection by DNAT, if there is one.
    pub sent_on: Option<SentOn>,
    /// The flow's identity: the attributes for its original direction, its ID and its zone, as the kernel sent them.
    attributes: Vec<u8>,
}

impl Flow {
    /// Whether the first packet came from or went to one of these addresses.
    pub fn is_of(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        addresses.contains(&self.source) || addresses.contains(&self.destination)
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let mut attributes = Vec::new();
        let (mut original, mut reply) = (None, None);
        for (kind, value, whole) in Attributes(message.get(NFGENMSG..)?) {
            match kind {
                CTA_TUPLE_ORIG => {
                    attributes.extend(whole);
                    original = Some(value);
                }
                CTA_TUPLE_REPLY => reply = Some(value),
                // With the ID, the kernel does not remove a later flow that has the same addresses and ports. Without the zone,
                // it would search in zone 0.
                CTA_ID | CTA_ZONE => attributes.extend(whole),
                _ => {}
            }
        }
        let (source, destination) = addresses(original?)?;
        let answers_from = reply.and_then(addresses).map_or(destination, |(source, _)| source);
        let (original, reply) = (original.and_then(Ends::parse), reply.and_then(Ends::parse));
        let port = reply.as_ref().map(|reply| reply.source.port());
        let sent_on = original.zip(reply).and_then(|(original, reply)| original.sent_on(&reply));
        Some(Self { source, destination, answers_from, port, sent_on, attributes })
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
        let ports = nested(CTA_TUPLE_PROTO)?;
        let (source, destination) = addresses(tuple)?;
        let field = |wanted| Attributes(ports).find(|(kind, ..)| *kind == wanted).map(|(_, value, _)| value);
        let port = |kind| Some(u16::from_be_bytes(field(kind)?.try_into().ok()?));
        let protocol = match field(CTA_PROTO_NUM)? {
            [IPPROTO_TCP] => InboundProtocol::Tcp,
            [IPPROTO_UDP] => InboundProtocol::Udp,
            _ => return None,
        };
        let source = SocketAddr::new(source, port(CTA_PROTO_SRC_PORT)?);
        let destination = SocketAddr::new(destination, port(CTA_PROTO_DST_PORT)?);
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

/// The source and destination address of a tuple.
fn addresses(tuple: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (_, addresses, _) = Attributes(tuple).find(|(kind, ..)| *kind == CTA_TUPLE_IP)?;
    let [mut source, mut destination] = [None; 2];
    for (kind, address, _) in Attributes(addresses) {
        match kind {
            CTA_IP_V4_SRC | CTA_IP_V6_SRC => source = ip(address),
            CTA_IP_V4_DST | CTA_IP_V6_DST => destination = ip(address),
            _ => {}
        }
    }
    Some((source?, destination?))
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
        let flow = Flow::parse(&message(6, client)).unwrap();
        assert_eq!((flow.answers_from, flow.port), (client.into(), Some(443)));
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
    fn flow_is_known_by_the_addresses_of_its_first_direction_and_by_who_answers() {
        let addresses = [attribute(1, &[10, 66, 0, 2]), attribute(2, &[203, 0, 113, 2])].concat();
        let tuple = attribute(0x8001, &attribute(0x8001, &addresses));
        let reply =
            attribute(0x8002, &attribute(0x8001, &[attribute(1, &[9; 4]), attribute(2, &[8; 4])].concat()));
        let id = attribute(CTA_ID, &[0, 0, 0, 7]);
        let message = [vec![2, 0, 0, 0], tuple.clone(), reply, id.clone()].concat();

        let flow = Flow::parse(&message).unwrap();

        assert_eq!((flow.source, flow.destination), ([10, 66, 0, 2].into(), [203, 0, 113, 2].into()));
        assert_eq!((flow.answers_from, flow.port), ([9, 9, 9, 9].into(), None));
        assert_eq!(flow.attributes, [tuple, id].concat());
        for cut in 0..message.len() {
            let _ = Flow::parse(&message[..cut]);
        }
    }
}
