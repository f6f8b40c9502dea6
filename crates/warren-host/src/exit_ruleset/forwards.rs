//! Rules that forward ports of the exit's addresses to clients.
//!
//! Visitors keep their own addresses, because only the destination is translated. The rules check every packet of a translated
//! connection, not only the first. So once a forward is removed, its connections end.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::exit_host::ExitHost;
use crate::forwarded_ports::{ForwardedPorts, Ports, merged};
use crate::kill_switch::InboundProtocol;

/// The forwards to clients' addresses of one IP version.
pub(super) struct Forwards<'h> {
    /// nft's keyword for the IP version and its addresses.
    family: &'static str,
    forwards: Vec<(&'h ForwardedPorts, IpAddr)>,
}

impl<'h> Forwards<'h> {
    /// Returns the forwards grouped by IP version. A version without forwards is left out.
    pub(super) fn of(host: &'h ExitHost) -> Vec<Self> {
        let ipv4 = |forward: &'h ForwardedPorts| Some((forward, IpAddr::V4(forward.ipv4?)));
        let ipv6 = |forward: &'h ForwardedPorts| Some((forward, IpAddr::V6(forward.ipv6?)));
        let ipv4 = host.forwards.iter().filter(|_| host.ipv4.is_some()).filter_map(ipv4).collect();
        let ipv6 = host.forwards.iter().filter(|_| host.ipv6.is_some()).filter_map(ipv6).collect();
        let both = [("ip", ipv4), ("ip6", ipv6)].map(|(family, forwards)| Self { family, forwards });
        both.into_iter().filter(|version| !version.forwards.is_empty()).collect()
    }

    /// Returns the DNAT rules. Ports that keep their numbers are translated as a range. Other ports need one map entry each.
    fn translations(&self) -> Vec<String> {
        let Self { family, .. } = self;
        let mut rules = Vec::new();
        for protocol in [InboundProtocol::Tcp, InboundProtocol::Udp] {
            let its = || self.forwards.iter().filter(|(forward, _)| forward.ports.protocol == protocol);
            let (kept, moved): (Vec<_>, Vec<_>) =
                its().partition(|(forward, _)| forward.to == forward.ports.first);
            let kept: Vec<String> =
                kept.iter().map(|(forward, address)| format!("{} : {address}", forward.ports)).collect();
            let moved: Vec<String> =
                moved.iter().flat_map(|(forward, address)| each(forward, *address)).collect();
            if !kept.is_empty() {
                rules.push(format!("dnat {family} to {protocol} dport map {{ {} }}", kept.join(", ")));
            }
            if !moved.is_empty() {
                let to = format!("dnat {family} addr . port to {protocol} dport map");
                rules.push(format!("{to} {{ {} }}", moved.join(", ")));
            }
        }
        rules
    }

    /// Matches packets to forwarded services (with `daddr` and `dport`) or from them (with `saddr` and `sport`).
    fn services(&self, address: &str, port: &str) -> String {
        let Self { family, .. } = self;
        format!("{family} {address} . meta l4proto . th {port} {{ {} }}", self.targets().join(", "))
    }

    /// The services as elements of a set.
    fn targets(&self) -> Vec<String> {
        let mut of_client: BTreeMap<IpAddr, Vec<Ports>> = BTreeMap::new();
        for (forward, address) in &self.forwards {
            of_client.entry(*address).or_default().push(forward.target());
        }
        let elements = |(address, ports)| {
            merged(ports).into_iter().map(move |ports| format!("{address} . {} . {ports}", ports.protocol))
        };
        of_client.into_iter().flat_map(elements).collect()
    }
}

/// Returns a map entry for each port of a forward that changes port numbers.
fn each(forward: &ForwardedPorts, address: IpAddr) -> impl Iterator<Item = String> {
    let Ports { first, last, .. } = forward.ports;
    (first..=last).zip(forward.to..=u16::MAX).map(move |(port, to)| format!("{port} : {address} . {to}"))
}

/// Returns the rules that translate the destination of visitors' packets. `spoofed` matches packets with a client's source
/// address that did not come from a client.
pub(super) fn prerouting(forwards: &[Forwards<'_>], spoofed: Vec<String>) -> Vec<String> {
    // Spoofed packets are not translated, so they reach the input chain, which drops them.
    let spoofed = spoofed.into_iter().map(|spoofed| format!("{spoofed} return"));
    let elsewhere = ["fib daddr type != local return".to_owned()];
    let translations = forwards.iter().flat_map(Forwards::translations);
    spoofed.chain(elsewhere).chain(translations).collect()
}

/// Accepts visitors' packets to forwarded services, and the ICMP errors that routers on the visitor's path send about the
/// answers.
pub(super) fn to_forwarded(forwards: &[Forwards<'_>]) -> Vec<String> {
    let services = forwards.iter().map(|version| format!("{} accept", version.services("daddr", "dport")));
    services.chain(["ct state related accept".to_owned(), "counter drop".to_owned()]).collect()
}

/// Accepts the replies of forwarded services, and packets of clients that are visitors. A client's ICMP errors about visitors'
/// connections are not accepted, because the client could send one about another client's connection.
pub(super) fn from_forwarded(forwards: &[Forwards<'_>], device: &str, count_flows: &str) -> Vec<String> {
    let answers =
        |version: &Forwards<'_>| format!("ct direction reply {} accept", version.services("saddr", "sport"));
    let visits = |version: &Forwards<'_>| {
        format!("oifname \"{device}\" {} accept", version.services("daddr", "dport"))
    };
    let mut rules: Vec<String> = forwards.iter().map(answers).collect();
    rules.push("ct direction reply counter drop".into());
    rules.push(count_flows.into());
    rules.extend(forwards.iter().map(visits));
    rules
}
