//! Facts about the host that plans are computed from.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipnet::IpNet;

pub use crate::own_addresses::{OutsideLink, OwnAddresses};
use crate::{
    DeviceName, GuestNetwork, Ports,
    kill_switch::InboundProtocol,
    listeners::{Listener, listeners, socket},
    netlink::Netlink,
    private_networks, sysctl,
};

/// Devices whose IPv6 default route comes from router advertisements and would be lost once the host forwards.
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn devices_taking_router_advertisements() -> io::Result<Vec<DeviceName>> {
    devices_where("ipv6", |device| {
        let takes = sysctl::read(&sysctl::device_key("ipv6", device, "accept_ra"))?;
        let forwards = sysctl::read(&sysctl::device_key("ipv6", device, "forwarding"))?;
        Ok(takes.as_deref() == Some("1") && forwards.as_deref() == Some("0"))
    })
}

/// Devices with strict reverse path filtering (`rp_filter` 1). Such a device drops an arriving packet unless the route back to
/// the packet's sender leads through this device.
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn devices_with_strict_reverse_path() -> io::Result<Vec<DeviceName>> {
    let for_all = sysctl::read("net.ipv4.conf.all.rp_filter")?;
    if for_all.as_deref() == Some("2") {
        return Ok(Vec::new());
    }
    devices_where("ipv4", |device| {
        let own = sysctl::read(&sysctl::device_key("ipv4", device, "rp_filter"))?;
        // The kernel uses the larger one of the device's value and the value for all devices.
        Ok(own.as_deref() == Some("1") || (own.as_deref() == Some("0") && for_all.as_deref() == Some("1")))
    })
}

/// Returns the private networks that may stay reachable outside a tunnel to `include`: those to which this host is directly
/// connected, other than by a Warren tunnel. Call this within a tokio runtime.
///
/// Only the networks of this host's own addresses count. Routes that a DHCP server or a router pushes do not add networks.
///
/// # Errors
/// If the kernel cannot be asked.
pub async fn lan_beside(include: &[IpNet]) -> io::Result<Vec<IpNet>> {
    let networks = Netlink::open()?.private_networks().await?;
    Ok(private_networks::beside(networks, include))
}

/// The networks that this host is directly connected to, other than by a Warren tunnel. Call this within a tokio
/// runtime.
///
/// # Errors
/// If the kernel cannot be asked.
pub async fn networks() -> io::Result<Vec<IpNet>> {
    Netlink::open()?.networks().await
}

/// The networks of containers and virtual machines on this host. Call this within a tokio runtime.
///
/// # Errors
/// If the kernel cannot be asked.
pub async fn guest_networks() -> io::Result<Vec<GuestNetwork>> {
    Netlink::open()?.guest_networks().await
}

/// Returns the addresses of this host and of its gateways. Call this within a tokio runtime.
///
/// # Errors
/// If the kernel cannot be asked.
pub async fn own_addresses() -> io::Result<OwnAddresses> {
    Netlink::open()?.own_addresses().await
}

/// The devices of this host, without the loopback device and Warren's tunnels. Call this within a tokio runtime.
///
/// # Errors
/// If the kernel cannot be asked.
pub async fn outside_links() -> io::Result<Vec<OutsideLink>> {
    Netlink::open()?.outside_links().await
}

/// The ports on which TCP listens on this host for other hosts, in order.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn listening_ports() -> io::Result<Vec<u16>> {
    let for_others = |listener: &Listener| {
        ![IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)].contains(&listener.address)
    };
    let mut ports: Vec<u16> =
        listeners()?.iter().filter(|listener| for_others(listener)).map(|listener| listener.port).collect();
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

/// Returns the ports of services on this host, in order: those of listening TCP and SCTP sockets, and of UDP and UDP-Lite sockets
/// that are not connected.
///
/// The cost depends on the number of listeners and UDP sockets, but not on the number of TCP connections.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn service_ports() -> io::Result<Vec<ServicePort>> {
    let mut ports: BTreeMap<u16, bool> = BTreeMap::new();
    for Listener { port, user, .. } in
        listeners()?.into_iter().filter(|listener| !listener.address.is_loopback())
    {
        *ports.entry(port).or_default() |= is_system_user(user);
    }
    for protocol in ["udp", "udp6", "udplite", "udplite6"] {
        match File::open(format!("/proc/thread-self/net/{protocol}")) {
            Ok(table) => {
                for ServicePort { port, is_system } in served(BufReader::new(table))? {
                    // The port counts as a system user's if any of its sockets belongs to a system user.
                    *ports.entry(port).or_default() |= is_system;
                }
            }
            // The file is missing without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // A host without SCTP has no such file. The length is limited, because an endpoint can have thousands of addresses.
    let mut endpoints = String::new();
    if let Ok(table) = File::open("/proc/thread-self/net/sctp/eps")
        && table.take(MOST_OF_SCTP).read_to_string(&mut endpoints).is_ok()
    {
        for ServicePort { port, is_system } in served_by_sctp(&endpoints) {
            *ports.entry(port).or_default() |= is_system;
        }
    }
    Ok(ports.into_iter().map(|(port, is_system)| ServicePort { port, is_system }).collect())
}

/// Returns the TCP and UDP ports that this host's programs need for themselves. For TCP, these are the ports of listening
/// sockets. For UDP, these are the ports of unconnected sockets of root and system users. Ephemeral ports, which the kernel may
/// assign to any program, are left out.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn own_ports() -> io::Result<Vec<Ports>> {
    let port = |protocol, port| Ports { protocol, first: port, last: port };
    let listeners = listeners()?.into_iter().filter(|listener| !listener.address.is_loopback());
    let mut ports: Vec<Ports> = listeners.map(|listener| port(InboundProtocol::Tcp, listener.port)).collect();
    for table in ["udp", "udp6"] {
        let served = match File::open(format!("/proc/thread-self/net/{table}")) {
            Ok(table) => served(BufReader::new(table))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let of_services = served.iter().filter(|service| service.is_system && service.port < EPHEMERAL);
        ports.extend(of_services.map(|service| port(InboundProtocol::Udp, service.port)));
    }
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

/// The first ephemeral port by the kernel's default (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: u16 = 32_768;

/// A port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The port's number.
    pub port: u16,
    /// Whether root or a system user has a socket at this port.
    pub is_system: bool,
}

/// Maximum number of bytes that are read from the list of SCTP endpoints.
const MOST_OF_SCTP: u64 = 1024 * 1024;

/// The ports of SCTP endpoints that accept associations. Their sockets have the state of a listening TCP socket
/// (`SCTP_SS_LISTENING`).
fn served_by_sctp(endpoints: &str) -> impl Iterator<Item = ServicePort> + '_ {
    const LISTEN: &str = "10";
    endpoints.lines().skip(1).filter_map(|line| {
        // The columns are ENDPT SOCK STY SST HBKT LPORT UID INODE LADDRS.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, state, _, port, user, _, addresses @ ..] = words.as_slice() else { return None };
        let is_loopback = addresses.iter().all(|address| *address == "127.0.0.1" || *address == "::1");
        let port =
            port.parse().ok().filter(|_| *state == LISTEN && (addresses.is_empty() || !is_loopback))?;
        Some(ServicePort { port, is_system: user.parse().is_ok_and(is_system_user) })
    })
}

/// The service ports in one of UDP's tables of proc(5).
fn served(table: impl BufRead) -> io::Result<Vec<ServicePort>> {
    const NO_PEER: u8 = 0x07;
    let mut ports = Vec::new();
    for line in table.lines().skip(1) {
        let Some((state, Listener { port, address, user })) = socket(&line?) else { continue };
        if state == NO_PEER && !address.is_loopback() {
            ports.push(ServicePort { port, is_system: is_system_user(user) });
        }
    }
    Ok(ports)
}

/// Whether a user ID belongs to root or a service: it is below that of the first ordinary user (`UID_MIN` of login.defs(5)), or
/// in the range of systemd's `DynamicUser`.
fn is_system_user(user: u32) -> bool {
    const FIRST_PERSON: u32 = 1_000;
    const DYNAMIC: RangeInclusive<u32> = 61_184..=65_519;
    user < FIRST_PERSON || DYNAMIC.contains(&user)
}

/// Whether this kernel has IPv6 at all.
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn has_ipv6() -> io::Result<bool> {
    Ok(!sysctl::devices("ipv6")?.is_empty())
}

/// Whether `device` accepts IPv6 addresses. This is so if the kernel has IPv6 and `disable_ipv6` is not set for the device.
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn takes_ipv6(device: &DeviceName) -> io::Result<bool> {
    let disabled = sysctl::read(&sysctl::device_key("ipv6", device, "disable_ipv6"))?;
    Ok(disabled.as_deref() == Some("0"))
}

/// Whether a newly made device can have IPv6 addresses.
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn new_devices_take_ipv6() -> io::Result<bool> {
    for device in ["all", "default"] {
        if sysctl::read(&format!("net.ipv6.conf.{device}.disable_ipv6"))?.as_deref() != Some("0") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn devices_where(
    family: &str,
    mut holds: impl FnMut(&DeviceName) -> io::Result<bool>,
) -> io::Result<Vec<DeviceName>> {
    let mut devices = Vec::new();
    for name in sysctl::devices(family)? {
        if ["all", "default", "lo"].contains(&name.as_str()) {
            continue;
        }
        if let Ok(device) = DeviceName::new(name)
            && holds(&device)?
        {
            devices.push(device);
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_endpoints_and_sockets_of_udp_without_a_peer_that_others_reach() {
        let udp = "  sl  local_address rem_address   st tx_queue\n\
             0: 020200C0:C001 097100CB:01BB 01 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0\n\
             1: 00000000:CA6C 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 1 2 0 0\n\
             2: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 0:0\n";

        let port = |port, is_system| ServicePort { port, is_system };
        assert_eq!(served(udp.as_bytes()).unwrap(), [port(51_820, false)]);
        for (user, is_system) in [(0, true), (999, true), (1_000, false), (61_184, true), (65_534, false)] {
            assert_eq!(is_system_user(user), is_system, "{user}");
        }

        let sctp = " ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS\n\
             0 0 0   10  29   36412     0 17801 0.0.0.0\n\
             0 0 2   7   30   40000     0 17802 192.0.2.1\n\
             0 0 2   10  31   50000     0 17803 127.0.0.1\n";
        assert_eq!(served_by_sctp(sctp).collect::<Vec<_>>(), [port(36_412, true)]);
    }
}
