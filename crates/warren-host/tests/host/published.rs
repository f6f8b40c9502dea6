//! Tests of finding published ports in the output of this host's nft.

use warren_host::published::{self, Published};

use crate::support::{Namespace, is_root};

/// Ports below 100 are published by no rule.
const RULES: &str = "
    table ip published {
        map guests { type inet_service : ipv4_addr . inet_service; elements = { 36001 : 10.88.0.2 . 51820 }; }
        map nodes {
            type inet_proto . inet_service : verdict; flags interval;
            elements = { tcp . 31000 : jump to_guest, udp . 31001-31005 : jump to_guest };
        }
        set ports { type inet_service; flags interval; elements = { 40000-40010, 41000 }; }
        chain to_guest { dnat to 10.88.0.2; }
        chain accounting { counter; }
        chain pre {
            type nat hook prerouting priority dstnat; policy accept;
            udp dport 36000 dnat to 10.88.0.2:51820
            tcp dport { 8080, 9000-9010 } redirect to :80
            dnat ip addr . port to udp dport map @guests
            meta l4proto . th dport vmap @nodes
            fib daddr type local tcp dport @ports jump to_guest
            udp dport vmap { 50000 : goto to_guest, 2 : drop }
            tcp dport 3 jump accounting
            tcp dport 4 accept
        }
        chain out { type nat hook output priority 0; udp dport 1 dnat to 10.88.0.2; }
    }
    table inet warren_exit { chain pre { type nat hook prerouting priority 0; udp dport 5 redirect to :6; }; }
";

#[test]
fn ports_in_rules_sets_and_maps_of_nftables_are_found() {
    if !is_root() {
        return;
    }
    let host = Namespace::new("published");
    assert_eq!(host.block_on(published::look), Published::default(), "the control: no rules");

    let file = host.journal().with_extension("nft");
    std::fs::write(&file, RULES).unwrap();
    host.run(&format!("nft -f {}", file.display()));
    let Published { ports, unread } = host.block_on(published::look);
    let expected = [
        8_080..=8_080,
        9_000..=9_010,
        31_000..=31_000,
        31_001..=31_005,
        36_000..=36_000,
        36_001..=36_001,
        40_000..=40_010,
        41_000..=41_000,
        50_000..=50_000,
    ];
    assert_eq!((ports.as_slice(), unread.len()), (expected.as_slice(), 0), "{unread:?}");

    host.run("nft add rule ip published pre ip daddr 192.0.2.1 dnat to 10.88.0.2");
    let Published { ports, unread } = host.block_on(published::look);
    assert_eq!((ports.as_slice(), unread.len()), (expected.as_slice(), 1), "{unread:?}");
}
