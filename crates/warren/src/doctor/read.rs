//! Parsers for files of the kernel and output of other programs.

use std::collections::BTreeMap;

/// A kernel's version from its release string, such as `6.12.41-amd64`.
pub(super) fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The features of a device in the output of `ethtool -k`, and whether each is on.
pub(super) fn features(ethtool: &str) -> BTreeMap<String, bool> {
    let feature = |line: &str| {
        let (name, state) = line.trim().split_once(": ")?;
        Some((name.to_owned(), state.starts_with("on")))
    };
    ethtool.lines().filter_map(feature).collect()
}

/// The root queue discipline in the output of `tc qdisc show dev X root`.
pub(super) fn qdisc(tc: &str) -> Option<String> {
    tc.lines().next()?.strip_prefix("qdisc ")?.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(kernel("6.12.41+deb13-amd64\n"), Some((6, 12)));
        assert_eq!(kernel("linux"), None);
    }

    #[test]
    fn devices_are_read() {
        let features = features("Features for eth0:\nrx-gro-list: off\nrx-udp-gro-forwarding: on [fixed]\n");
        assert_eq!(
            (features.get("rx-gro-list"), features.get("rx-udp-gro-forwarding")),
            (Some(&false), Some(&true))
        );
        assert_eq!(qdisc("qdisc fq_codel 0: root refcnt 2 limit 10240p\n").as_deref(), Some("fq_codel"));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(qdisc |table |chain |nameserver | \\{|: |[0-9a-f: \n]){0,60}|.{0,60}") {
            let _ = (kernel(&text), features(&text), qdisc(&text));
        }
    }
}
