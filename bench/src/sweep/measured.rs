//! The figures of cells, and their medians over the rounds.

use serde::Serialize;

use super::grid::Cell;
use crate::stats::Sample;

/// The figures of one cell in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) cell: Cell,
    pub(super) round: u32,
    pub(super) goodput_mbit_per_s: f64,
    /// CPU time of both ends for each GB of payload.
    pub(super) cpu_seconds_per_gb: Option<f64>,
    pub(super) rtt_median_ms: Option<f64>,
    pub(super) rtt_p99_ms: Option<f64>,
    /// The share of frames that were dropped because the bottleneck's queue was full.
    pub(super) dropped_at_queue: Option<f64>,
}

/// The medians of a cell's figures over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Median {
    pub(super) goodput_mbit_per_s: f64,
    pub(super) cpu_seconds_per_gb: Option<f64>,
    pub(super) rtt_median_ms: Option<f64>,
    pub(super) rtt_p99_ms: Option<f64>,
    pub(super) dropped_at_queue: Option<f64>,
}

impl Median {
    /// Returns the medians of a cell. None if the cell was not measured.
    pub(super) fn of(cell: &Cell, measured: &[Measured]) -> Option<Self> {
        let rounds: Vec<_> = measured.iter().filter(|one| one.cell == *cell).collect();
        let median = |figure: fn(&Measured) -> Option<f64>| {
            Sample::new(rounds.iter().filter_map(|one| figure(one)).collect()).map(|sample| sample.median())
        };
        Some(Self {
            goodput_mbit_per_s: median(|one| Some(one.goodput_mbit_per_s))?,
            cpu_seconds_per_gb: median(|one| one.cpu_seconds_per_gb),
            rtt_median_ms: median(|one| one.rtt_median_ms),
            rtt_p99_ms: median(|one| one.rtt_p99_ms),
            dropped_at_queue: median(|one| one.dropped_at_queue),
        })
    }
}

/// Returns the measured cells, each once, in the order of their first measurement.
pub(super) fn cells(measured: &[Measured]) -> Vec<&Cell> {
    let mut cells: Vec<&Cell> = Vec::new();
    for one in measured {
        if !cells.contains(&&one.cell) {
            cells.push(&one.cell);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::{
        super::grid::{Net, Setting},
        *,
    };

    impl Measured {
        pub(in crate::sweep) fn for_test() -> Self {
            let setting = Setting {
                caps: "40/80".parse().unwrap(),
                mtu: 1_380,
                connections: 4,
                queue: Some("50ms".to_owned()),
            };
            Self {
                cell: Cell { net: Net::Near, setting },
                round: 0,
                goodput_mbit_per_s: 100.0,
                cpu_seconds_per_gb: Some(2.0),
                rtt_median_ms: Some(40.0),
                rtt_p99_ms: Some(60.0),
                dropped_at_queue: Some(0.01),
            }
        }
    }

    #[test]
    fn medians_are_those_of_the_rounds_of_one_cell() {
        let of = |goodput_mbit_per_s, queue: &str| {
            let mut measured = Measured { goodput_mbit_per_s, ..Measured::for_test() };
            measured.cell.setting.queue = Some(queue.to_owned());
            measured
        };
        let all = [of(1.0, "50ms"), of(9.0, "9ms"), of(3.0, "50ms"), of(2.0, "50ms")];
        assert_eq!(cells(&all).len(), 2);
        assert_eq!(Median::of(&all[0].cell, &all).unwrap().goodput_mbit_per_s, 2.0);
        assert_eq!(Median::of(&all[0].cell, &[]), None);
    }
}
