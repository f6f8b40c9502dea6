//! The result of one side.

use serde::Serialize;

use super::snapshot::{Snapshot, Sockets, Totals};
use crate::{report::number_or_dash, stats::float, usage::Usage};

/// The work and the resource use of one side during the measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SideOutcome {
    pub(super) usage: Usage,
    pub(super) cpu_percent: f64,
    /// CPU time of this side for each GB of payload. The payload is that of both directions.
    pub(super) cpu_seconds_per_gb: Option<f64>,
    pub(super) peak_rss_kib: Option<u64>,
    pub(super) segments_per_send: Option<f64>,
    pub(super) datagrams_per_receive: Option<f64>,
    pub(super) totals: Totals,
    /// The histograms from which both means are computed, and the sockets' other counters.
    pub(super) sockets: Sockets,
}

impl SideOutcome {
    pub(super) fn new(start: &Snapshot, end: &Snapshot, carried_bytes: f64) -> Self {
        let usage = start.mark.until(&end.mark);
        let totals = end.totals.since(&start.totals);
        let sockets = end.sockets.since(&start.sockets);
        // Without calls there is no mean.
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

    /// Returns names and values for a table.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let whole = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        let Usage { cpu_user_seconds, cpu_system_seconds, voluntary_switches, involuntary_switches, .. } =
            self.usage;
        vec![
            ("CPU, % of one core", format!("{:.1}", self.cpu_percent)),
            ("CPU seconds, user / kernel", format!("{cpu_user_seconds:.2} / {cpu_system_seconds:.2}")),
            ("CPU seconds per GB", number_or_dash(self.cpu_seconds_per_gb)),
            ("peak RSS, MiB", number_or_dash(self.peak_rss_kib.map(|kib| float(kib) / 1024.0))),
            ("context switches, own / forced", format!("{voluntary_switches} / {involuntary_switches}")),
            ("sends", self.sockets.sends().to_string()),
            ("segments per send", whole(self.segments_per_send)),
            ("receives", self.sockets.receives().to_string()),
            ("datagrams per receive", whole(self.datagrams_per_receive)),
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
