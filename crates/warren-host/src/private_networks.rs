//! Networks that are private or link-local.

use ipnet::IpNet;

/// Whether an entire network is private or link-local (RFC 1918, 3927, 4193, 4291).
pub(crate) fn is_private(network: &IpNet) -> bool {
    PRIVATE
        .iter()
        .filter_map(|private| private.parse::<IpNet>().ok())
        .any(|private| private.contains(network))
}

const PRIVATE: [&str; 6] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10"];

#[cfg(test)]
mod tests {
    use super::*;

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
