//! The ports that this host's rules publish, as a report.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// The ports that this host's rules publish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Destination ports of any protocol.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Rules that may publish further ports, but whose ports cannot be determined, each in a few words.
    pub unread: Vec<String>,
}

impl Published {
    pub(super) fn unread(what: String) -> Self {
        Self { ports: Vec::new(), unread: vec![what] }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.ports.extend(other.ports);
        self.unread.extend(other.unread);
    }

    /// Sorts the ports and the unread rules, and removes duplicates. Moves ranges that are too wide to be reserved to `unread`.
    pub(super) fn tidy(&mut self) {
        self.ports.sort_unstable_by_key(|range| (*range.start(), *range.end()));
        self.ports.dedup();
        let (wide, ports) = self.ports.drain(..).partition(|range| range.len() > WIDEST);
        self.ports = ports;
        let wide: Vec<RangeInclusive<u16>> = wide;
        self.unread.extend(wide.iter().map(|range| {
            format!("the ports {} to {}, which are too many to keep", range.start(), range.end())
        }));
        self.unread.sort();
        self.unread.dedup();
        self.unread.truncate(MOST_UNREAD);
    }
}

/// The most entries of `unread`.
const MOST_UNREAD: usize = 8;
/// Maximum number of ports in a range that NAT avoids for clients. Avoiding a wider range would leave too few ports for NAT.
const WIDEST: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_named_once_and_ranges_that_are_too_wide_are_said_to_be() {
        let mut published = Published {
            ports: vec![36_000..=36_000, 1_024..=65_535, 80..=90, 36_000..=36_000],
            unread: vec!["b".into(), "a".into(), "b".into()],
        };
        published.tidy();
        assert_eq!(published.ports, [80..=90, 36_000..=36_000]);
        assert_eq!(published.unread, ["a", "b", "the ports 1024 to 65535, which are too many to keep"]);
    }
}
