//! The net: four hosts, the links between them, and faults of a path.

use super::{InternetHost, Namespace, eventually, root, seconds};

/// A network with a client, a router, an exit and an internet host. Dropping this value removes all of them.
#[derive(Debug)]
pub struct Net {
    pub client: Namespace,
    pub router: Namespace,
    pub exit: Namespace,
    pub internet: InternetHost,
}

/// A version of IP, outside or inside the tunnel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Family {
    V4,
    V6,
}

impl Net {
    pub const CLIENT_V4: &str = "192.0.2.2";
    pub const CLIENT_V6: &str = "2001:db8:1::2";
    pub const EXIT_V4: &str = "198.51.100.2";
    pub const EXIT_V6: &str = "2001:db8:2::2";
    pub const INTERNET_V4: &str = "203.0.113.2";
    pub const INTERNET_V6: &str = "2001:db8:3::2";
    /// A setting that an exit needs here. The internet and the clients' own networks have documentation addresses,
    /// which an exit refuses by default.
    pub const ALLOW_INTERNET: &str = "\n[access]\nallow = [\"192.0.2.0/24\", \"198.18.0.0/15\", \"203.0.113.0/24\", \"2001:db8:1::/48\", \"2001:db8:3::/48\"]\n";

    /// Makes the net. Returns `None` without root.
    pub fn new() -> Option<Self> {
        if !root() {
            return None;
        }
        let router = Namespace::new("router");
        router.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").ok();
        let client = Namespace::new("client");
        let exit = Namespace::new("exit");
        let internet = Namespace::new("internet");
        connect(
            &router,
            "client",
            "192.0.2.1/24",
            "2001:db8:1::1/64",
            &client,
            Self::CLIENT_V4,
            Self::CLIENT_V6,
        );
        connect(&router, "exit", "198.51.100.1/24", "2001:db8:2::1/64", &exit, Self::EXIT_V4, Self::EXIT_V6);
        connect(
            &router,
            "internet",
            "203.0.113.1/24",
            "2001:db8:3::1/64",
            &internet,
            Self::INTERNET_V4,
            Self::INTERNET_V6,
        );
        Some(Self { client, router, exit, internet: InternetHost::start(internet) })
    }

    /// Makes a second client's host on its own link to the router.
    pub fn second_client(&self) -> Namespace {
        let client = Namespace::new("second");
        connect(
            &self.router,
            "second",
            "192.0.3.1/24",
            "2001:db8:4::1/64",
            &client,
            "192.0.3.2",
            "2001:db8:4::2",
        );
        client
    }

    /// Makes `count` more clients' hosts. Host N has 192.0.(10 + N).2; each has its own link.
    pub fn clients_beside(&self, count: u8) -> Vec<Namespace> {
        let make = |number: u8| {
            let host = Namespace::new(&format!("beside{number}"));
            let (v4, v6) =
                (format!("192.0.{}", 10 + number), format!("2001:db8:{:x}:", 0x100 + u16::from(number)));
            connect(
                &self.router,
                &format!("beside{number}"),
                &format!("{v4}.1/24"),
                &format!("{v6}:1/64"),
                &host,
                &format!("{v4}.2"),
                &format!("{v6}:2"),
            );
            host
        };
        (0..count).map(make).collect()
    }

    /// Makes a namespace behind the client's host, like a container.
    pub fn container_behind_client(&self) -> Namespace {
        let container = Namespace::new("container");
        connect(
            &self.client,
            "container",
            "172.30.0.1/24",
            "fd30::1/64",
            &container,
            "172.30.0.2",
            "fd30::2",
        );
        self.client.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").ok();
        self.router
            .sh("ip route add 172.30.0.0/24 via 192.0.2.2; ip -6 route add fd30::/64 via 2001:db8:1::2")
            .ok();
        container
    }

    /// Makes a host on its own LAN behind `gateway`, which does not forward yet.
    pub fn host_behind(gateway: &Namespace, gateway_addresses: [&str; 2], addresses: [&str; 2]) -> Namespace {
        let host = Namespace::new("behind");
        let [gateway_v4, gateway_v6] = gateway_addresses;
        let [v4, v6] = addresses;
        connect(gateway, "lan", gateway_v4, gateway_v6, &host, v4, v6);
        host
    }

    /// Limits packets between client and exit to `mtu` bytes. The router reports this to senders of longer packets.
    pub fn narrow_path(&self, mtu: u16) {
        // The client's packets use a separate table, so the path between exit and internet stays wide.
        let versions = if mtu >= 1280 { &[4, 6][..] } else { &[4] };
        for version in versions {
            // These routes take precedence over those that the kernel has added with the addresses.
            let (client, exit) = if *version == 4 {
                ("192.0.2.0/24 dev to-client", "198.51.100.0/24")
            } else {
                ("2001:db8:1::/64 dev to-client metric 1", "2001:db8:2::/64")
            };
            let router = |line: &str| self.router.sh(&format!("ip -{version} {line} mtu lock {mtu}")).ok();
            router(&format!("route replace {client}"));
            router(&format!("route replace {exit} dev to-exit table 100"));
            let rules = self.router.sh(&format!("ip -{version} rule")).ok();
            if !rules.contains("to-client") {
                self.router.sh(&format!("ip -{version} rule add iif to-client lookup 100")).ok();
            }
        }
    }

    /// Makes the router silently drop packets of more than `mtu` bytes between client and exit.
    pub fn narrow_path_silently(&self, mtu: u16) {
        for host in [&self.client, &self.exit] {
            // Segmentation offload is turned off, because the router would treat a GSO batch as one long packet.
            host.sh("ethtool -K eth0 tx-udp-segmentation off").ok();
        }
        self.filter(&format!(
            "udp dport 443 meta length > {mtu} drop; udp sport 443 meta length > {mtu} drop;"
        ));
    }

    /// Makes the router drop all carrier packets in both directions until [`Self::unfilter`].
    pub fn black_hole(&self) {
        self.filter("udp dport 443 drop; udp sport 443 drop;");
    }

    /// Applies nftables rules to all packets that the router receives from client and exit.
    pub fn filter(&self, rules: &str) {
        self.unfilter();
        for device in ["to-client", "to-exit"] {
            self.router
                .sh(&format!(
                    "nft 'table netdev {device} {{ chain received {{ \
                     type filter hook ingress device \"{device}\" priority 0; {rules} }}; }}'"
                ))
                .ok();
        }
    }

    /// Removes the rules of [`Self::filter`].
    pub fn unfilter(&self) {
        for device in ["to-client", "to-exit"] {
            self.router.sh(&format!("nft 'add table netdev {device}; delete table netdev {device}'")).ok();
        }
    }
}

/// Links a host's `eth0` to the router's `to-NAME`, with addresses and default routes of both versions.
fn connect(
    router: &Namespace,
    name: &str,
    router_v4: &str,
    router_v6: &str,
    host: &Namespace,
    v4: &str,
    v6: &str,
) {
    let device = format!("to-{name}");
    router.sh(&format!("ip link add {device} type veth peer name eth0 netns {}", host.name())).ok();
    router.sh(&format!("ip addr add {router_v4} dev {device}; ip addr add {router_v6} dev {device}")).ok();
    router.sh(&format!("ip link set {device} up")).ok();
    host.sh(&format!("ip addr add {v4}/24 dev eth0; ip addr add {v6}/64 dev eth0; ip link set eth0 up")).ok();
    let without_prefix = |address: &str| address.split('/').next().unwrap_or_default().to_owned();
    host.sh(&format!("ip -4 route add default via {}", without_prefix(router_v4))).ok();
    host.sh(&format!("ip -6 route add default via {}", without_prefix(router_v6))).ok();
    for (end, device) in [(router, device.as_str()), (host, "eth0")] {
        let link_local = format!("ip -6 -o address show dev {device} scope link | grep -q fe80");
        eventually(seconds(5), "the link has its own addresses", || end.sh(&link_local).succeeded());
    }
}
