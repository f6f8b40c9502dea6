//! The network that this host is in, recognised by its addresses and by its router's hardware address.
//!
//! The name of a Wi-Fi network is not used, because anybody can give a network any name.

use std::{fmt, io, net::IpAddr, str::FromStr};

use ipnet::IpNet;

use crate::{DeviceName, Family, netlink::Netlink};

/// A trusted network as a profile describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedNetwork {
    /// The network's name for people.
    pub name: String,
    /// The network to which this host's address belongs there, in CIDR notation.
    pub network: IpNet,
    /// The hardware address of its router.
    pub router: HardwareAddress,
}

/// An Ethernet or Wi-Fi address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareAddress([u8; 6]);

/// The network through which this host reaches the internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentNetwork {
    /// The device of the default route.
    pub device: DeviceName,
    /// The networks of the device's addresses, without link-local ones.
    pub networks: Vec<IpNet>,
    /// The default route's router.
    pub router: IpAddr,
    /// The router's hardware address. `None` if the router has not answered.
    pub hardware: Option<HardwareAddress>,
    /// Whether the router has answered recently. An old neighbour entry does not count.
    pub is_confirmed: bool,
}

impl CurrentNetwork {
    /// Finds the network that this host is in. If the router has not answered lately, makes the kernel ask it by ARP or neighbour
    /// discovery. Nothing else is sent. `None` if there is no default route with a router, or if IPv4 and IPv6 lead to different
    /// devices.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub async fn look() -> io::Result<Option<Self>> {
        let netlink = Netlink::open()?;
        let mut ways = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            ways.extend(netlink.default_way(family).await?);
        }
        let Some(way) = ways.first().copied() else { return Ok(None) };
        let (Some(router), true) = (way.router, ways.iter().all(|other| other.device == way.device)) else {
            return Ok(None);
        };
        let Some((device, networks)) = netlink.connected(way.device).await? else { return Ok(None) };
        let neighbour = netlink.neighbour(way.device, router).await?;
        let (hardware, is_confirmed) = neighbour.unwrap_or((None, false));
        if !is_confirmed && let Err(error) = netlink.ask_neighbour(way.device, router).await {
            tracing::debug!("cannot ask {router} for its hardware address: {error}");
        }
        Ok(Some(Self { device, networks, router, hardware, is_confirmed }))
    }

    /// Whether this is the network that a profile describes, even if the router's neighbour entry is not confirmed.
    pub fn is(&self, trusted: &TrustedNetwork) -> bool {
        self.hardware == Some(trusted.router)
            && self.networks.iter().any(|network| network.trunc() == trusted.network.trunc())
    }

    /// Returns the text by which a profile trusts this network: `name`, the network and the router's hardware address. `None`
    /// while the router has not answered.
    pub fn as_setting(&self, name: &str) -> Option<String> {
        Some(format!("{name} {} {}", self.networks.first()?.trunc(), self.hardware?))
    }
}

impl HardwareAddress {
    /// Reads the address from a kernel message. `None` if it is not an Ethernet address, or all zeros.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        <[u8; 6]>::try_from(bytes).ok().filter(|bytes| *bytes != [0; 6]).map(Self)
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for HardwareAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = Vec::new();
        for part in text.split([':', '-']) {
            let is_plain = part.len() == 2 && !part.starts_with('+');
            bytes.push(u8::from_str_radix(part, 16).ok().filter(|_| is_plain).ok_or(())?);
        }
        Self::of(&bytes).ok_or(())
    }
}

impl FromStr for TrustedNetwork {
    type Err = ();

    /// Reads a name, a network and a hardware address, with spaces in between.
    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [name, network, router] = words.as_slice() else { return Err(()) };
        let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        if name.len() > LONGEST_NAME || !name.chars().all(is_plain) {
            return Err(());
        }
        let network: IpNet = network.parse().map_err(|_| ())?;
        // A network with prefix length 0 is all of an IP version, and not the network of a router.
        if network.prefix_len() == 0 {
            return Err(());
        }
        Ok(Self { name: (*name).to_owned(), network: network.trunc(), router: router.parse()? })
    }
}

impl fmt::Display for TrustedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.network, self.router)
    }
}

const LONGEST_NAME: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_is_recognised_by_its_addresses_and_its_router_together() {
        let home: TrustedNetwork = "home 192.168.1.0/24 4C-11-bf-00-00-01".parse().unwrap();
        assert_eq!(home.to_string(), "home 192.168.1.0/24 4c:11:bf:00:00:01");
        let current = CurrentNetwork {
            device: DeviceName::new("wlan0").unwrap(),
            networks: vec!["192.168.1.7/24".parse().unwrap()],
            router: "192.168.1.1".parse().unwrap(),
            hardware: "4c:11:bf:00:00:01".parse().ok(),
            is_confirmed: true,
        };
        assert!(current.is(&home));
        assert_eq!(current.as_setting("home"), Some(home.to_string()));
        let other_router = CurrentNetwork { hardware: "4c:11:bf:00:00:02".parse().ok(), ..current.clone() };
        let other_network =
            CurrentNetwork { networks: vec!["192.168.1.7/25".parse().unwrap()], ..current.clone() };
        let silent = CurrentNetwork { hardware: None, ..current };
        assert!(![other_router, other_network, silent].iter().any(|network| network.is(&home)));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "home",
            "192.168.1.0/24 4c:11:bf:00:00:01",
            "home 192.168.1.0/24",
            "home 192.168.1.0/33 4c:11:bf:00:00:01",
            "home 0.0.0.0/0 4c:11:bf:00:00:01",
            "home 192.168.1.0/24 4c:11:bf:00:00",
            "home 192.168.1.0/24 00:00:00:00:00:00",
            "home 192.168.1.0/24 4c:11:bf:00:00:+1",
            "my home 192.168.1.0/24 4c:11:bf:00:00:01",
            "ho\"me 192.168.1.0/24 4c:11:bf:00:00:01",
        ] {
            assert_eq!(text.parse::<TrustedNetwork>(), Err(()), "{text}");
        }
    }
}
