//! One side's part of the result.

use serde::Serialize;

use super::{
    outcome::float,
    snapshot::{Snapshot, Sockets, Totals},
};
use crate::{report::number, usage::Usage};

/// What one side did and used while both were counted.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SideOutcome {
    pub(super) usage: Usage,
    pub(super) cpu_percent: f64,
    /// Of all payload that was carried, either way.
    pub(super) cpu_seconds_per_gb: Option<f64>,
    pub(super) peak_rss_kib: Option<u64>,
    pub(super) segments_per_send: Option<f64>,
    pub(super) datagrams_per_receive: Option<f64>,
    pub(super) totals: Totals,
    /// The histograms behind both means, and the sockets' rarer counters.
    pub(super) sockets: Sockets,
}

impl SideOutcome {
    pub(super) fn new(start: &Snapshot, end: &Snapshot, carried_bytes: f64) -> Self {
        let usage = start.mark.until(&end.mark);
        let totals = end.totals.since(&start.totals);
        let sockets = end.sockets.since(&start.sockets);
        let per = |count: u64, calls: u64| (calls > 0).then(|| float(count) / float(calls));
        Self {
            cpu_percent: usage.cpu_percent(),
            cpu_seconds_per_gb: usage.cpu_seconds_per_gb(carried_bytes),
            usage,
            peak_rss_kib: end.peak_rss_kib,
            segments_per_send: per(sockets.datagrams_sent(), sockets.sends()),
            datagrams_per_receive: per(totals.udp_datagrams_received, sockets.receives()),
            totals,
            sockets,
        }
    }

    /// Names and values for a table.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let whole = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        let Usage { cpu_user_seconds, cpu_system_seconds, voluntary_switches, involuntary_switches, .. } =
            self.usage;
        vec![
            ("CPU, % of one core", format!("{:.1}", self.cpu_percent)),
            ("CPU seconds, user / kernel", format!("{cpu_user_seconds:.2} / {cpu_system_seconds:.2}")),
            ("CPU seconds per GB", or_dash(self.cpu_seconds_per_gb)),
            ("peak RSS, MiB", or_dash(self.peak_rss_kib.map(|kib| float(kib) / 1024.0))),
            ("context switches, own / forced", format!("{voluntary_switches} / {involuntary_switches}")),
            ("sends", self.sockets.sends().to_string()),
            ("segments per send", whole(self.segments_per_send)),
            (
                "sends by segments",
                histogram(self.sockets.segments_per_send.iter().copied().zip(0..), |&i| i.to_string()),
            ),
            ("receives", self.sockets.receives().to_string()),
            ("datagrams per receive", whole(self.datagrams_per_receive)),
            (
                "receives by datagrams",
                histogram(self.sockets.datagrams_per_receive.iter().copied().zip(0..), |&i| bucket(i)),
            ),
            ("UDP datagrams sent", self.totals.udp_datagrams_sent.to_string()),
            ("ACK frames sent", self.totals.acks_sent.to_string()),
            ("packets lost", self.totals.packets_lost.to_string()),
            ("datagrams dropped, sending / receiving", {
                format!("{} / {}", self.totals.send_drops, self.totals.receive_drops)
            }),
            (
                "socket full / failed sends",
                format!("{} / {}", self.sockets.would_block, self.sockets.send_errors),
            ),
        ]
    }
}

/// The places with the largest shares, largest first, as `40: 93 %`.
fn histogram<P>(counts: impl Iterator<Item = (u64, P)>, name: impl Fn(&P) -> String) -> String {
    const SHOWN: usize = 3;
    let mut counts: Vec<_> = counts.filter(|(count, _)| *count > 0).collect();
    let total: u64 = counts.iter().map(|(count, _)| count).sum();
    counts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let share = |count: u64| float(count) / float(total) * 100.0;
    let shown: Vec<String> = counts
        .iter()
        .take(SHOWN)
        .map(|(count, place)| format!("{}: {:.0} %", name(place), share(*count)))
        .collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

/// The numbers of datagrams that a place of the receive histogram stands for.
fn bucket(place: u32) -> String {
    if place == 0 { "1".to_owned() } else { format!("{}-{}", 1_u64 << place, (2_u64 << place) - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_shows_the_largest_shares_first() {
        let counts = [5_u64, 0, 80, 10, 5].into_iter().zip(0..);
        assert_eq!(histogram(counts, |place: &u32| place.to_string()), "2: 80 %, 3: 10 %, 0: 5 %");
        assert_eq!(histogram(std::iter::empty(), |place: &u32| place.to_string()), "-");
    }

    #[test]
    fn places_of_the_receive_histogram_are_powers_of_two() {
        assert_eq!([0, 1, 5].map(bucket), ["1", "2-3", "32-63"]);
    }
}
