//! The results of all visits, and the figures computed from them: medians over rounds.

use serde::Serialize;

use super::{
    load::{Rate, Sizes},
    plan::{Outcome, Test},
};
use crate::{stats::Sample, way::Ways};

/// The results of the visit to one peer in one round.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Visit {
    /// Index of the peer.
    pub(super) peer: usize,
    pub(super) round: u32,
    pub(super) setup_ms: Option<f64>,
    pub(super) client_peak_rss_mib: Option<f64>,
    pub(super) exit_peak_rss_mib: Option<f64>,
    /// The tests and their outcomes, in the order of measurement.
    #[serde(serialize_with = "by_name")]
    pub(super) outcomes: Vec<(Test, Outcome)>,
}

impl Visit {
    fn outcome(&self, test: Test) -> Option<&Outcome> {
        self.outcomes.iter().find(|(of, _)| *of == test).map(|(_, outcome)| outcome)
    }
}

fn by_name<S: serde::Serializer>(outcomes: &[(Test, Outcome)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(outcomes.iter().map(|(test, outcome)| (test.name(), outcome)))
}

/// A figure, which is a row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Metric {
    Gbit(Test),
    CpuPerGb(Test),
    SwitchesPerGb(Test),
    Kpps(Test),
    LostPercent(Test),
    RttMin(Test),
    RttMedian(Test),
    RttP99(Test),
    SetupMs,
    ClientRssMib,
    ExitRssMib,
}

impl Metric {
    /// Returns the rows for these tests, in the order of the table.
    pub(super) fn of(tests: &[Test]) -> Vec<Self> {
        // Rows are grouped by kind and not by test: first throughput, then cost, then round-trip times.
        let mut rows = Vec::new();
        for &test in tests {
            match test {
                Test::Tcp { .. } => rows.push(Self::Gbit(test)),
                Test::Udp { rate: Rate::Saturation, sizes } => {
                    rows.push(Self::Kpps(test));
                    if sizes == Sizes::Imix {
                        rows.push(Self::Gbit(test));
                    }
                }
                Test::Udp { rate: Rate::PacketsPerSecond(_), .. } => rows.push(Self::LostPercent(test)),
                Test::IdleRtt => {}
            }
        }
        for &test in tests {
            match test {
                Test::Tcp { flows: 1, ways: Ways::Up } => {
                    rows.extend([Self::CpuPerGb(test), Self::SwitchesPerGb(test)]);
                }
                Test::Tcp { flows: 1, ways: Ways::Down }
                | Test::Udp { rate: Rate::PacketsPerSecond(_), .. } => {
                    rows.push(Self::CpuPerGb(test));
                }
                Test::Tcp { .. } | Test::Udp { .. } | Test::IdleRtt => {}
            }
        }
        for &test in tests.iter().filter(|test| test.measures_rtt()) {
            rows.extend([Self::RttMin(test), Self::RttMedian(test), Self::RttP99(test)]);
        }
        rows.extend([Self::SetupMs, Self::ClientRssMib, Self::ExitRssMib]);
        rows
    }

    pub(super) fn title(self) -> String {
        self.names().0
    }

    /// Returns the name in the JSON.
    pub(super) fn key(self) -> String {
        self.names().1
    }

    fn names(self) -> (String, String) {
        let of = |test: Test, title, key| (format!("{}, {title}", test.title()), format!("{test}/{key}"));
        let rtt = |test: Test, title, key| {
            let under = if test == Test::IdleRtt { "" } else { "under " };
            let name = if test == Test::IdleRtt { "idle" } else { test.title() };
            (format!("RTT {under}{name}, {title}"), format!("{test}/{key}"))
        };
        let whole = |title: &str, key: &str| (title.to_owned(), key.to_owned());
        match self {
            Self::Gbit(test) => of(test, "Gbit/s", "gbit_per_s"),
            Self::CpuPerGb(test) => of(test, "CPU s per GB", "cpu_s_per_gb"),
            Self::SwitchesPerGb(test) => of(test, "context switches per GB", "context_switches_per_gb"),
            Self::Kpps(test) => of(test, "kpps delivered", "kpps_delivered"),
            Self::LostPercent(test) => of(test, "lost %", "lost_percent"),
            Self::RttMin(test) => rtt(test, "min ms", "rtt_min_ms"),
            Self::RttMedian(test) => rtt(test, "median ms", "rtt_median_ms"),
            Self::RttP99(test) => rtt(test, "p99 ms", "rtt_p99_ms"),
            Self::SetupMs => whole("connection setup, ms", "setup_ms"),
            Self::ClientRssMib => whole("peak RSS client, MiB", "client_peak_rss_mib"),
            Self::ExitRssMib => whole("peak RSS exit, MiB", "exit_peak_rss_mib"),
        }
    }

    fn value(self, visit: &Visit) -> Option<f64> {
        let rtt = |test, part| {
            let times = visit.outcome(test)?.rtt_ms.clone();
            Some(Sample::new(times)?.quantile(part))
        };
        match self {
            Self::Gbit(test) => visit.outcome(test)?.gbit_per_s(),
            // For a peer without VPN processes, the CPU time is 0 and there is no figure.
            Self::CpuPerGb(test) => visit.outcome(test)?.cpu_seconds_per_gb().filter(|cost| *cost > 0.0),
            Self::SwitchesPerGb(test) => {
                visit.outcome(test)?.context_switches_per_gb().filter(|count| *count > 0.0)
            }
            Self::Kpps(test) => visit.outcome(test)?.packets_per_s.map(|rate| rate / 1e3),
            Self::LostPercent(test) => visit.outcome(test)?.lost.map(|part| part * 100.0),
            Self::RttMin(test) => rtt(test, 0.0),
            Self::RttMedian(test) => rtt(test, 0.5),
            Self::RttP99(test) => rtt(test, 0.99),
            Self::SetupMs => visit.setup_ms,
            Self::ClientRssMib => visit.client_peak_rss_mib,
            Self::ExitRssMib => visit.exit_peak_rss_mib,
        }
    }
}

/// The values of a figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
    pub(super) rounds: usize,
}

impl Figure {
    /// Returns a figure of a peer over the rounds. None if no round has the figure.
    pub(super) fn of(metric: Metric, peer: usize, visits: &[Visit]) -> Option<Self> {
        let visits = visits.iter().filter(|visit| visit.peer == peer);
        let sample = Sample::new(visits.filter_map(|visit| metric.value(visit)).collect())?;
        Some(Self {
            median: sample.quantile(0.5),
            lowest: sample.quantile(0.0),
            highest: sample.quantile(1.0),
            rounds: sample.count(),
        })
    }
}

/// Returns all round-trip times of a peer in a test, over all rounds.
pub(super) fn round_trip_times(test: Test, peer: usize, visits: &[Visit]) -> Vec<f64> {
    let visits = visits.iter().filter(|visit| visit.peer == peer);
    visits
        .filter_map(|visit| visit.outcome(test))
        .flat_map(|outcome| outcome.rtt_ms.iter().copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vpn::measure::Used;

    const UP: Test = Test::Tcp { flows: 1, ways: Ways::Up };

    fn visit(peer: usize, round: u32, rate: f64) -> Visit {
        let outcome = Outcome {
            up_gbit_per_s: Some(rate),
            gigabytes: rate,
            client: Used { cpu_seconds: 2.0, context_switches: 0 },
            ..Outcome::default()
        };
        Visit { peer, round, outcomes: vec![(UP, outcome)], ..Visit::default() }
    }

    #[test]
    fn figure_is_the_median_of_one_peers_rounds() {
        let visits = [visit(0, 1, 3.0), visit(1, 1, 100.0), visit(0, 2, 1.0), visit(0, 3, 2.0)];
        let figure = Figure::of(Metric::Gbit(UP), 0, &visits).unwrap();
        assert_eq!(figure, Figure { median: 2.0, lowest: 1.0, highest: 3.0, rounds: 3 });
        assert_eq!(Figure::of(Metric::CpuPerGb(UP), 0, &visits).unwrap().median, 1.0);
        assert_eq!(Figure::of(Metric::SetupMs, 0, &visits), None);
        assert_eq!(Figure::of(Metric::Gbit(UP), 2, &visits), None);
    }

    #[test]
    fn round_trip_times_are_a_rounds_quantiles() {
        let outcome = Outcome { rtt_ms: (0..=100).map(f64::from).collect(), ..Outcome::default() };
        let visits = [Visit { outcomes: vec![(Test::IdleRtt, outcome)], ..Visit::default() }];
        let median = |metric| Figure::of(metric, 0, &visits).unwrap().median;
        assert_eq!(median(Metric::RttMin(Test::IdleRtt)), 0.0);
        assert_eq!(median(Metric::RttMedian(Test::IdleRtt)), 50.0);
        assert_eq!(median(Metric::RttP99(Test::IdleRtt)), 99.0);
        assert_eq!(round_trip_times(Test::IdleRtt, 0, &visits).len(), 101);
    }

    #[test]
    fn rows_are_those_that_the_tests_give() {
        let rows = Metric::of(&[UP]);
        assert_eq!(rows.first(), Some(&Metric::Gbit(UP)));
        assert!(rows.contains(&Metric::CpuPerGb(UP)) && !rows.contains(&Metric::RttMin(UP)));
        let mut keys: Vec<_> = Metric::of(&Test::all()).into_iter().map(Metric::key).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
}
