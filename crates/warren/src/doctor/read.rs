//! Understanding what the kernel and other programs write about the host.

use std::collections::BTreeMap;

use warren_host::dns::nameservers;

/// A kernel's version from its release, such as `6.12.41-amd64`.
pub(super) fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The device of the best default route in `/proc/net/route`.
pub(super) fn default_device_ipv4(routes: &str) -> Option<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [device, "00000000", _, _, _, _, metric, "00000000", ..] = fields.as_slice() else { return None };
        Some((metric.parse::<u32>().ok()?, (*device).to_owned()))
    };
    routes.lines().filter_map(route).min().map(|(_, device)| device)
}

/// The device of the best default route in `/proc/net/ipv6_route`.
pub(super) fn default_device_ipv6(routes: &str) -> Option<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, "00", _, _, _, metric, _, _, _, device] = fields.as_slice() else { return None };
        let is_default = destination.bytes().all(|digit| digit == b'0') && *device != "lo";
        is_default.then_some((u32::from_str_radix(metric, 16).ok()?, (*device).to_owned()))
    };
    routes.lines().filter_map(route).min().map(|(_, device)| device)
}

/// The features of a device that `ethtool -k` lists, and whether each is on.
pub(super) fn features(ethtool: &str) -> BTreeMap<String, bool> {
    let feature = |line: &str| {
        let (name, state) = line.trim().split_once(": ")?;
        Some((name.to_owned(), state.starts_with("on")))
    };
    ethtool.lines().filter_map(feature).collect()
}

/// The root queue discipline that `tc qdisc show dev X root` names.
pub(super) fn qdisc(tc: &str) -> Option<String> {
    tc.lines().next()?.strip_prefix("qdisc ")?.split(' ').next().map(str::to_owned)
}

/// The local ports of `/proc/net/udp` and `/proc/net/udp6`.
pub(super) fn udp_ports(text: &str) -> Vec<u16> {
    let port = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    text.lines().skip(1).filter_map(port).collect()
}

/// The resolvers of a resolv.conf.
pub(super) fn resolvers(text: &str) -> Vec<String> {
    nameservers(text).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_routes_and_ports_are_read() {
        assert_eq!(kernel("6.12.41+deb13-amd64\n"), Some((6, 12)));
        assert_eq!(kernel("linux"), None);
        let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                      wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
                      eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                      eth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_device_ipv4(routes).as_deref(), Some("eth0"));
        let zero = "0".repeat(32);
        let routes = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
        );
        assert_eq!(default_device_ipv6(&routes).as_deref(), Some("eth0"));
        let udp = "  sl  local_address rem_address   st\n  12: 00000000:01BB 00000000:0000 07\n";
        assert_eq!(udp_ports(udp), [443]);
    }

    #[test]
    fn devices_are_read() {
        let features = features("Features for eth0:\nrx-gro-list: off\nrx-udp-gro-forwarding: on [fixed]\n");
        assert_eq!(
            (features.get("rx-gro-list"), features.get("rx-udp-gro-forwarding")),
            (Some(&false), Some(&true))
        );
        assert_eq!(qdisc("qdisc fq_codel 0: root refcnt 2 limit 10240p\n").as_deref(), Some("fq_codel"));
        assert_eq!(resolvers("# x\nnameserver 9.9.9.9\n nameserver  ::1 \nsearch a\n"), ["9.9.9.9", "::1"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(qdisc |table |chain |nameserver | \\{|: |[0-9a-f: \n]){0,60}|.{0,60}") {
            let _ = (kernel(&text), default_device_ipv4(&text), default_device_ipv6(&text), features(&text));
            let _ = (qdisc(&text), udp_ports(&text), resolvers(&text));
        }
    }
}
