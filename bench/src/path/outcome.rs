//! The figures of one test: their names, and whether a higher or a lower value is better.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::Better;

/// One figure of a test. The variants are in the order of the table.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    MbitPerS,
    NativeMbitPerS,
    LostPercent,
    DelayMedianMs,
    DelayP99Ms,
    JitterMs,
    LongestGapMs,
    LatePercent,
    RttMedianMs,
    RttP99Ms,
    WireBytesPerInnerByte,
    CpuSecondsPerGb,
    QueueDropsPercent,
    ClientRssBeforeMib,
    ClientRssAfterMib,
    ExitRssBeforeMib,
    ExitRssAfterMib,
}

impl Figure {
    pub(super) const ALL: [Self; 17] = [
        Self::MbitPerS,
        Self::NativeMbitPerS,
        Self::LostPercent,
        Self::DelayMedianMs,
        Self::DelayP99Ms,
        Self::JitterMs,
        Self::LongestGapMs,
        Self::LatePercent,
        Self::RttMedianMs,
        Self::RttP99Ms,
        Self::WireBytesPerInnerByte,
        Self::CpuSecondsPerGb,
        Self::QueueDropsPercent,
        Self::ClientRssBeforeMib,
        Self::ClientRssAfterMib,
        Self::ExitRssBeforeMib,
        Self::ExitRssAfterMib,
    ];

    /// Returns the name in tables, with the unit.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::MbitPerS => "Mbit/s",
            Self::NativeMbitPerS => "native Mbit/s",
            Self::LostPercent => "lost %",
            Self::DelayMedianMs => "one-way delay, median ms",
            Self::DelayP99Ms => "one-way delay, p99 ms",
            Self::JitterMs => "jitter, ms",
            Self::LongestGapMs => "longest gap, ms",
            Self::LatePercent => "out of order %",
            Self::RttMedianMs => "RTT median, ms",
            Self::RttP99Ms => "RTT p99, ms",
            Self::WireBytesPerInnerByte => "bytes on the wire per inner byte",
            Self::CpuSecondsPerGb => "CPU s per GB",
            Self::QueueDropsPercent => "dropped by the queue %",
            Self::ClientRssBeforeMib => "client RSS before, MiB",
            Self::ClientRssAfterMib => "client RSS after, MiB",
            Self::ExitRssBeforeMib => "exit RSS before, MiB",
            Self::ExitRssAfterMib => "exit RSS after, MiB",
        }
    }

    /// Returns whether a higher or a lower value is better. None for figures that are not compared.
    pub(super) fn better(self) -> Option<Better> {
        match self {
            Self::MbitPerS => Some(Better::Higher),
            Self::LostPercent
            | Self::DelayMedianMs
            | Self::DelayP99Ms
            | Self::RttMedianMs
            | Self::RttP99Ms => Some(Better::Lower),
            Self::NativeMbitPerS
            | Self::JitterMs
            | Self::LongestGapMs
            | Self::LatePercent
            | Self::WireBytesPerInnerByte
            | Self::CpuSecondsPerGb
            | Self::QueueDropsPercent
            | Self::ClientRssBeforeMib
            | Self::ClientRssAfterMib
            | Self::ExitRssBeforeMib
            | Self::ExitRssAfterMib => None,
        }
    }

    /// Returns whether the table shows the mean over all rounds instead of the median. The median of a rare loss would be 0.
    pub(super) fn is_pooled(self) -> bool {
        matches!(self, Self::LostPercent | Self::LatePercent | Self::QueueDropsPercent)
    }

    pub(super) fn is_percent(self) -> bool {
        // All figures in per cent are pooled, and no others.
        self.is_pooled()
    }
}

/// The outcome of one test.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) figures: BTreeMap<Figure, f64>,
    /// All measured round-trip times, from which the distribution is plotted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) rtt_ms: Vec<f64>,
}

impl Outcome {
    /// Returns the outcome with one more figure.
    pub(super) fn with(mut self, figure: Figure, value: impl Into<Option<f64>>) -> Self {
        // JSON has neither infinities nor NaN (RFC 8259 section 6).
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.figures.insert(figure, value);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_is_read_as_it_was_written() {
        let outcome = Outcome { rtt_ms: vec![30.5], ..Outcome::default() }
            .with(Figure::MbitPerS, 182.5)
            .with(Figure::CpuSecondsPerGb, None)
            .with(Figure::JitterMs, f64::NAN);
        let json = serde_json::to_string(&outcome).unwrap();
        assert_eq!(json, r#"{"figures":{"mbit_per_s":182.5},"rtt_ms":[30.5]}"#);
        assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), outcome);
    }

    #[test]
    fn every_figure_is_in_the_table_once() {
        assert!(Figure::ALL.is_sorted());
        let mut titles: Vec<_> = Figure::ALL.iter().map(|figure| figure.title()).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), Figure::ALL.len());
    }
}
