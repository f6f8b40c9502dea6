//! Networks that are private or link-local.

use ipnet::IpNet;

/// Whether an entire network is private or link-local (RFC 1918, 3927, 4193, 4291).
pub(crate) fn is_private(network: &IpNet) -> bool {
    PRIVATE
        .iter()
        .filter_map(|private| private.parse::<IpNet>().ok())
        .any(|private| private.contains(network))
}

/// Returns the networks of a LAN, without those within a private network in `include`. The operator of a LAN chooses its
/// addresses, and could choose those of a private network behind the tunnel. Public networks in `include` have no effect, because
/// they only mean the internet or a part of it.
pub(crate) fn beside(mut lan: Vec<IpNet>, include: &[IpNet]) -> Vec<IpNet> {
    let meant: Vec<IpNet> = include.iter().map(IpNet::trunc).filter(is_private).collect();
    lan.retain(|network| !meant.iter().any(|meant| meant.contains(network)));
    lan
}

const PRIVATE: [&str; 6] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lan_gives_way_to_private_networks_that_the_profile_lists_and_to_no_public_ones() {
        let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let beside = |lan: &[&str], include: &[&str]| beside(networks(lan), &networks(include));
        let lan = ["10.20.5.0/24", "192.168.1.0/24", "fd00::/64"];

        assert_eq!(beside(&lan, &["0.0.0.0/0", "::/0"]), networks(&lan));
        assert_eq!(beside(&lan, &["0.0.0.0/5", "8.0.0.0/7", "::/1", "8000::/1"]), networks(&lan));
        assert_eq!(beside(&lan, &["0.0.0.0/0", "10.20.0.0/16"]), networks(&lan[1..]));
        assert_eq!(beside(&lan, &["10.20.5.0/24", "fd00::/16"]), networks(&lan[1..2]));
        // The tunnel's network has the longer prefix, so its route takes precedence, and the LAN's network can stay.
        assert_eq!(beside(&lan, &["10.20.5.128/25"]), networks(&lan));
    }

    #[test]
    fn only_a_network_that_is_private_as_a_whole_counts_as_the_lan() {
        for (network, private) in [
            ("192.168.1.0/24", true),
            ("172.31.0.0/16", true),
            ("172.32.0.0/16", false),
            ("0.0.0.0/1", false),
            ("192.0.2.0/24", false),
            ("fd00:1::/64", true),
            ("fe80::/64", true),
            ("2001:db8::/64", false),
        ] {
            assert_eq!(is_private(&network.parse().unwrap()), private, "{network}");
        }
    }
}
