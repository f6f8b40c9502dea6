//! Draws random inner prefixes that overlap no network of this host.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use warren_session::clients::overlap;

/// The prefix length of the IPv4 pool. Such a network has addresses for 4,093 clients, and 10.0.0.0/8 contains 4,096 of them.
const IPV4_PREFIX_LENGTH: u8 = 20;

/// Draws an unused network in 10.0.0.0/8. `None` if 256 draws were all in use.
pub(super) fn draw_ipv4(
    taken: &[IpNet],
    mut random: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<Option<Ipv4Net>> {
    for _ in 0..256 {
        let [_, second, third, ..] = random()?.to_be_bytes();
        // Home and office routers mostly use 10.0 and 10.1, so an inner prefix there would clash with clients' own networks.
        if second < 2 {
            continue;
        }
        let address = Ipv4Addr::new(10, second, third, 0);
        let network = Ipv4Net::new_assert(address, IPV4_PREFIX_LENGTH).trunc();
        if !taken.iter().any(|other| overlap(other, &IpNet::V4(network))) {
            return Ok(Some(network));
        }
    }
    Ok(None)
}

/// Returns the first subnet of a unique local prefix with a random global ID (RFC 4193 section 3.1).
pub(super) fn draw_ipv6(mut random: impl FnMut() -> anyhow::Result<u64>) -> anyhow::Result<Ipv6Net> {
    const SUBNET_BITS: u64 = 0xffff;
    // The prefix is `fd`, 40 random bits of the global ID, and a subnet ID of 16 zero bits.
    let global_id = (0xfd << 56) | ((random()? >> 8) & !SUBNET_BITS);
    let network = u128::from(global_id) << 64;
    Ok(Ipv6Net::new_assert(Ipv6Addr::from(network), 64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_is_drawn_when_everything_is_in_use() {
        let mut word = 0_u64;
        let drawn = draw_ipv4(&[net("10.0.0.0/8")], || {
            word = word.wrapping_add(0x0101_0000_0000_0000);
            Ok(word)
        });
        assert_eq!(drawn.unwrap(), None);
    }

    proptest! {
        #[test]
        fn drawn_ipv4_prefix_is_private_and_clear_of_the_host(seeds in prop::collection::vec(any::<u64>(), 256), taken: u32, length in 9_u8..=32) {
            let taken = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from(0x0a00_0000 | (taken >> 8)), length).trunc());
            let mut seeds = seeds.into_iter();
            let drawn = draw_ipv4(&[taken], || Ok(seeds.next().unwrap())).unwrap();
            if let Some(drawn) = drawn {
                prop_assert!(drawn.network().is_private() && drawn.trunc() == drawn);
                prop_assert!(!overlap(&taken, &IpNet::V4(drawn)));
                prop_assert!(warren_config::ipv4_pool(&drawn.to_string()).is_ok());
            }
        }

        #[test]
        fn drawn_ipv6_prefix_is_unique_local(seed: u64) {
            let drawn = draw_ipv6(|| Ok(seed)).unwrap();
            prop_assert!(drawn.to_string().starts_with("fd") && drawn.prefix_len() == 64 && drawn.trunc() == drawn);
            prop_assert_eq!(drawn.network().segments()[3], 0);
            prop_assert!(warren_config::ipv6_pool(&drawn.to_string()).is_ok());
        }
    }
}
