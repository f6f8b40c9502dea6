//! Addresses that are not on the internet. These are the addresses that the IANA special-purpose address registries (RFC 6890,
//! RFC 8190) do not call globally reachable, and the IPv6 addresses that are translated to IPv4.

use ipnet::IpNet;

use crate::Family;

/// Networks that are not on the internet, except for their parts in [`internet_within`].
pub(crate) fn not_internet(family: Family) -> &'static [&'static str] {
    match family {
        Family::Ipv4 => NOT_INTERNET_IPV4,
        Family::Ipv6 => NOT_INTERNET_IPV6,
    }
}

/// Returns the globally reachable networks inside those of [`not_internet`].
pub(crate) fn internet_within(family: Family) -> &'static [&'static str] {
    match family {
        Family::Ipv4 => INTERNET_WITHIN_IPV4,
        Family::Ipv6 => INTERNET_WITHIN_IPV6,
    }
}

/// Whether no part of `network` is on the internet.
pub(crate) fn is_special(network: &IpNet) -> bool {
    let family = Family::of(network);
    // Every entry parses, as a test below shows.
    let parsed = |list: &'static [&str]| list.iter().filter_map(|text| text.parse::<IpNet>().ok());
    parsed(not_internet(family)).any(|special| special.contains(network))
        && !parsed(internet_within(family))
            .any(|internet| internet.contains(network) || network.contains(&internet))
}

/// The IPv4 special-purpose address registry, multicast (RFC 5771), and the public address of Azure's host platform
/// (168.63.129.16).
const NOT_INTERNET_IPV4: &[&str] = &[
    "0.0.0.0/8",        // this network (RFC 791)
    "10.0.0.0/8",       // private (RFC 1918)
    "100.64.0.0/10",    // shared, carrier-grade NAT (RFC 6598)
    "127.0.0.0/8",      // loopback (RFC 1122)
    "168.63.129.16/32", // Azure's platform
    "169.254.0.0/16",   // link-local, and the clouds' metadata service (RFC 3927)
    "172.16.0.0/12",    // private (RFC 1918)
    "192.0.0.0/24",     // IETF protocols (RFC 6890), DS-Lite (RFC 7335), NAT64 discovery (RFC 7050)
    "192.0.2.0/24",     // documentation (RFC 5737)
    "192.88.99.0/24",   // 6to4 relays, deprecated (RFC 7526), 6a44 relays (RFC 6751)
    "192.168.0.0/16",   // private (RFC 1918)
    "198.18.0.0/15",    // benchmarking (RFC 2544)
    "198.51.100.0/24",  // documentation (RFC 5737)
    "203.0.113.0/24",   // documentation (RFC 5737)
    "224.0.0.0/3",      // multicast (RFC 5771), reserved (RFC 1112) and broadcast (RFC 919)
];

const INTERNET_WITHIN_IPV4: &[&str] = &[
    "192.0.0.9/32",  // anycast of the port control protocol (RFC 7723)
    "192.0.0.10/32", // anycast of TURN (RFC 8155)
];

/// The IPv6 special-purpose address registry, and everything outside of 2000::/3, which alone is global unicast (RFC
/// 4291 section 2.4): loopback, IPv4-mapped (::ffff:0:0/96), NAT64 (64:ff9b::/96, RFC 6052, and 64:ff9b:1::/48, RFC
/// 8215), discard-only (100::/64, RFC 6666), SRv6 (5f00::/16, RFC 9602), unique local (fc00::/7, RFC 4193), link-local
/// (fe80::/10), multicast (ff00::/8).
///
/// The registry calls 64:ff9b::/96 globally reachable. It is listed here because the IPv4 address inside would
/// bypass the rules for IPv4.
const NOT_INTERNET_IPV6: &[&str] = &[
    "::/3",
    "2001::/23", // IETF protocols (RFC 2928), Teredo (RFC 4380), benchmarking (RFC 5180), ORCHID (RFC 4843)
    "2001:db8::/32", // documentation (RFC 3849)
    "2002::/16", // 6to4 (RFC 3056)
    "3fff::/20", // documentation (RFC 9637)
    "4000::/2",
    "8000::/1",
];

const INTERNET_WITHIN_IPV6: &[&str] = &[
    "2001:1::1/128",   // anycast of the port control protocol (RFC 7723)
    "2001:1::2/128",   // anycast of TURN (RFC 8155)
    "2001:1::3/128",   // anycast of DNS-SD's registration (RFC 9665)
    "2001:3::/32",     // AMT (RFC 7450)
    "2001:4:112::/48", // AS112 (RFC 7535)
    "2001:20::/28",    // ORCHIDv2 (RFC 7343)
    "2001:30::/28",    // drones' identities (RFC 9374)
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every block of both registries as of 2025, and whether it is globally reachable.
    const REGISTRIES: [(&str, bool); 54] = [
        ("0.0.0.0/8", false),
        ("0.0.0.0/32", false),
        ("10.0.0.0/8", false),
        ("100.64.0.0/10", false),
        ("127.0.0.0/8", false),
        ("169.254.0.0/16", false),
        ("172.16.0.0/12", false),
        ("192.0.0.0/29", false),
        ("192.0.0.8/32", false),
        ("192.0.0.9/32", true),
        ("192.0.0.10/32", true),
        ("192.0.0.170/32", false),
        ("192.0.0.171/32", false),
        ("192.0.2.0/24", false),
        ("192.31.196.0/24", true),
        ("192.52.193.0/24", true),
        ("192.88.99.0/24", false),
        ("192.88.99.2/32", false),
        ("192.168.0.0/16", false),
        ("192.175.48.0/24", true),
        ("198.18.0.0/15", false),
        ("198.51.100.0/24", false),
        ("203.0.113.0/24", false),
        ("240.0.0.0/4", false),
        ("255.255.255.255/32", false),
        ("::1/128", false),
        ("::/128", false),
        ("::ffff:0:0/96", false),
        ("64:ff9b:1::/48", false),
        ("100::/64", false),
        ("100:0:0:1::/64", false),
        ("2001::/32", false),
        ("2001:1::1/128", true),
        ("2001:1::2/128", true),
        ("2001:1::3/128", true),
        ("2001:2::/48", false),
        ("2001:3::/32", true),
        ("2001:4:112::/48", true),
        ("2001:10::/28", false),
        ("2001:20::/28", true),
        ("2001:30::/28", true),
        ("2001:db8::/32", false),
        ("2002::/16", false),
        ("2620:4f:8000::/48", true),
        ("3fff::/20", false),
        ("5f00::/16", false),
        ("fc00::/7", false),
        ("fe80::/10", false),
        // These entries are not from the two registries: multicast has its own registries, and NAT64's addresses and Azure's
        // platform are refused in any case.
        ("224.0.0.0/4", false),
        ("ff00::/8", false),
        ("64:ff9b::/96", false),
        ("168.63.129.16/32", false),
        ("168.63.129.17/32", true),
        ("fec0::/10", false),
    ];

    #[test]
    fn what_the_registries_call_globally_reachable_is_the_internet_and_nothing_else_of_theirs() {
        for (block, is_internet) in REGISTRIES {
            let network: IpNet = block.parse().unwrap();
            let first: IpNet = network.network().into();
            let last: IpNet = network.broadcast().into();
            for part in [network, first, last] {
                assert_eq!(is_special(&part), !is_internet, "{part} of {block}");
            }
        }
    }

    #[test]
    fn the_internet_is_the_internet() {
        for network in [
            "1.1.1.0/24",
            "9.9.9.9/32",
            "100.63.255.255/32",
            "100.128.0.0/32",
            "172.32.0.0/11",
            "192.0.1.0/24",
            "198.20.0.0/14",
            "223.255.255.255/32",
            "2000::/16",
            "2001:200::/23",
            "2001:470::/32",
            "2003::/16",
            "2606:4700::/32",
            "3ffe::/16",
            "3fff:1000::/20",
        ] {
            assert!(!is_special(&network.parse().unwrap()), "{network}");
        }
    }

    #[test]
    fn every_network_is_written_as_one() {
        for family in [Family::Ipv4, Family::Ipv6] {
            for text in not_internet(family).iter().chain(internet_within(family)) {
                let network: IpNet = text.parse().unwrap();
                assert_eq!((network.trunc(), Family::of(&network)), (network, family), "{text}");
            }
        }
    }
}
