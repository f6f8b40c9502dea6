//! Finds problems of this host's own network. Without a network, probing an exit makes no sense.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use warren_host::facts::{OutsideLink, outside_links};

use crate::exits;

/// Addresses for documentation (RFC 5737, RFC 3849), which stand for any address on the internet here. Nothing is sent to them.
const ANYWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 443),
];

/// Checks this host's devices, addresses and routes. Returns a message that says why this host cannot reach `remote`, and what to
/// do. If no address is known, the message is about the internet instead. `None` if nothing is wrong.
pub(super) async fn find(remote: Option<SocketAddr>) -> Option<String> {
    let links = outside_links().await.ok()?;
    let source = match remote {
        Some(remote) => source_towards(remote),
        None => ANYWHERE.into_iter().find_map(source_towards),
    };
    sentence(&links, remote, source)
}

/// Whether this host has a route to an exit's address, outside any tunnel.
pub(crate) fn has_route(remote: SocketAddr) -> bool {
    source_towards(remote).is_some()
}

/// The address from which this host would send carrier packets to `remote`, if it has a route.
fn source_towards(remote: SocketAddr) -> Option<IpAddr> {
    let socket = exits::bind(remote).ok()?;
    // Connecting a UDP socket sends nothing. It makes the kernel choose a route and a source address.
    socket.connect(remote).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

fn sentence(links: &[OutsideLink], remote: Option<SocketAddr>, source: Option<IpAddr>) -> Option<String> {
    let to = remote.map_or_else(|| "the internet".to_owned(), |remote| remote.to_string());
    if let Some(source) = source {
        // The kernel keeps the routes of a device that has lost its carrier, so a route alone does not prove that the device
        // works.
        let link = links.iter().find(|link| link.addresses.contains(&source))?;
        return (!link.has_carrier).then(|| {
            format!(
                "no network: {}, through which this host reaches {to}, is not connected; plug its cable in or join a Wi-Fi network",
                link.name
            )
        });
    }
    let connected: Vec<&OutsideLink> = links.iter().filter(|link| link.has_carrier).collect();
    if connected.is_empty() {
        return Some(format!(
            "no network: {} not connected; plug a cable in or join a Wi-Fi network",
            match names(links.iter()) {
                none if none.is_empty() => "this host has no network device, and so is".to_owned(),
                names => format!("{names} of this host {}", if links.len() == 1 { "is" } else { "are" }),
            }
        ));
    }
    if connected.iter().all(|link| link.addresses.is_empty()) {
        return Some(format!(
            "no network: this host is connected by {}, but has no address; wait for DHCP, or set one",
            names(connected.into_iter())
        ));
    }
    Some(format!(
        "no network: this host has no route to {to}; check its default route with `ip route` and `ip -6 route`, or connect to \
         another network"
    ))
}

fn names<'l>(links: impl Iterator<Item = &'l OutsideLink>) -> String {
    links.map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_missing_network_has_its_own_sentence() {
        let link = |name: &str, has_carrier, addresses: &[&str]| OutsideLink {
            name: name.to_owned(),
            has_carrier,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let (unplugged, wifi) = (link("eth0", false, &["192.168.1.2"]), link("wlan0", true, &[]));
        let container = link("docker0", true, &["172.17.0.1"]);
        let remote = "198.51.100.2:443".parse().ok();
        let source = "192.168.1.2".parse().ok();
        for (links, source, part) in [
            (vec![], None, "has no network device"),
            (vec![link("eth0", false, &[])], None, "eth0 of this host is not connected"),
            (vec![wifi.clone()], None, "connected by wlan0, but has no address"),
            (vec![container.clone()], None, "no route to 198.51.100.2:443"),
            (
                vec![unplugged.clone(), container],
                source,
                "eth0, through which this host reaches 198.51.100.2:443, is not",
            ),
        ] {
            let said = sentence(&links, remote, source).unwrap();
            assert!(said.starts_with("no network: ") && said.contains(part) && said.contains(';'), "{said}");
        }
        let plugged = OutsideLink { has_carrier: true, ..unplugged };
        assert_eq!(sentence(&[plugged, wifi.clone()], remote, source), None);
        assert!(sentence(&[wifi], None, None).unwrap().contains("no address"));
    }
}
