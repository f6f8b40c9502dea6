//! Finds the packet size that the path to the internet carries, with ping(8) to a resolver.

use std::net::IpAddr;
use std::process::Command;

/// The longest packet that is tried. The internet carries no longer packets.
const MOST: u32 = 1_500;
/// The smallest packet size that a tunnel needs.
const LEAST: u32 = 1_280;
/// The resolution of the result in bytes. A higher resolution is not needed.
const STEP: u32 = 4;

/// The packet size that the path to a host carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) to: IpAddr,
    /// The longest packet that was tried.
    pub(super) asked: u32,
    /// The longest packet that was answered.
    pub(super) carries: u32,
}

/// Probes these hosts in order until one answers. `None` if none answers.
pub(super) fn to_any(hosts: &[IpAddr], link_mtu: u32) -> Option<Path> {
    // Tries at most three hosts, because each one that does not answer takes more than a second.
    hosts.iter().take(3).find_map(|host| measure(*host, link_mtu, |bytes| is_answered(*host, bytes)))
}

/// Finds the packet size by bisection, up to the resolution [`STEP`].
fn measure(to: IpAddr, link_mtu: u32, is_answered: impl Fn(u32) -> bool) -> Option<Path> {
    let asked = link_mtu.min(MOST);
    // If the host does not answer the smallest packet, the path cannot be measured with it.
    if asked < LEAST || !is_answered(LEAST) {
        return None;
    }
    let path = |carries| Some(Path { to, asked, carries });
    if is_answered(asked) {
        return path(asked);
    }
    let (mut carried, mut lost) = (LEAST, asked);
    while lost - carried > STEP {
        let middle = u32::midpoint(carried, lost);
        if is_answered(middle) {
            carried = middle;
        } else {
            lost = middle;
        }
    }
    path(carried)
}

/// Whether the host answers at least one of two unfragmented echo requests of this size, including headers.
fn is_answered(host: IpAddr, bytes: u32) -> bool {
    // The length of the IP header plus the ICMP header.
    let headers = if host.is_ipv4() { 28 } else { 48 };
    let payload = bytes.saturating_sub(headers).to_string();
    let mut ping = Command::new("ping");
    ping.args(["-n", "-q", "-M", "do", "-c", "2", "-i", "0.2", "-W", "1", "-s", &payload])
        .arg(host.to_string());
    ping.output().is_ok_and(|ended| ended.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(link_mtu: u32, carries: u32) -> Option<(u32, u32)> {
        let to = "192.0.2.1".parse().unwrap();
        measure(to, link_mtu, |bytes| bytes <= carries).map(|path| (path.asked, path.carries))
    }

    #[test]
    fn the_longest_packet_that_passes_is_found() {
        assert_eq!(found(1_500, 1_500), Some((1_500, 1_500)));
        assert_eq!(found(9_000, 1_500), Some((1_500, 1_500)), "nobody expects more of the internet");
        for carries in [1_280, 1_300, 1_420, 1_492, 1_499] {
            let (asked, found) = found(1_500, carries).unwrap();
            assert_eq!(asked, 1_500);
            assert!(found <= carries && carries - found <= STEP, "{found} of {carries}");
        }
    }

    #[test]
    fn who_does_not_answer_says_nothing_of_the_way() {
        assert_eq!(found(1_500, 0), None);
        assert_eq!(found(1_200, 1_500), None, "the link's own check says it");
    }
}
