//! The parts of a host that a daemon may change, for a comparison before and after.

use std::collections::BTreeMap;

use super::Namespace;

/// The addresses, routes, rules, nftables, settings and resolver of one host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostState(BTreeMap<&'static str, String>);

impl HostState {
    pub fn of(host: &Namespace) -> Self {
        Self(PARTS.iter().map(|line| (*line, host.sh(line).stdout)).collect())
    }

    /// Fails with the differences, if there are any.
    #[track_caller]
    pub fn assert_same(&self, after: &Self) {
        for (part, before) in &self.0 {
            let after = &after.0[part];
            assert!(before == after, "`{part}` was\n{before}\nand is\n{after}");
        }
    }
}

const PARTS: [&str; 9] = [
    "ip -o link",
    "ip -o address",
    "ip -4 route show table all",
    "ip -6 route show table all",
    "ip -4 rule",
    "ip -6 rule",
    "nft --stateless list ruleset",
    "sysctl -a --pattern '^net.(ipv[46].conf|ipv4.ip_forward|core.[rw]mem)' 2>/dev/null",
    "cat /etc/resolv.conf; readlink /etc/resolv.conf; stat -c '%F %a %u %g' /etc/resolv.conf",
];
