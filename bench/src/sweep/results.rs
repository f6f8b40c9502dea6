//! The results of a sweep, and their tables.

use serde::Serialize;

use super::{
    choice::Choice,
    grid::{Cell, Net, Setting},
    measured::{Measured, Median, cells},
};
use crate::report::{Machine, Table, number, number_or_dash};

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Results {
    pub(super) machine: Machine,
    pub(super) version: String,
    pub(super) seed: u64,
    pub(super) seconds: u32,
    pub(super) cells: Vec<Measured>,
    /// The cells of the lesson about queue size. They differ only in the length of the bottleneck's queue.
    pub(super) lesson: Vec<Measured>,
    pub(super) choices: Vec<Choice>,
    pub(super) remarks: Vec<String>,
}

impl Results {
    pub(super) fn markdown(&self) -> String {
        let Self { machine, version, seed, seconds, choices, remarks, .. } = self;
        let mut text = format!("{version}; {machine}; {seconds} s a cell, seed {seed}\n");
        for net in Net::ALL {
            let cells: Vec<_> = cells(&self.cells).into_iter().filter(|cell| cell.net == net).collect();
            if !cells.is_empty() {
                text.push_str(&format!("\n{}\n\n{}", net.title(), table(&cells, &self.cells)));
            }
        }
        if !self.lesson.is_empty() {
            text.push_str("\nThe bottleneck's queue: too small drops, too large adds latency\n\n");
            text.push_str(&table(&cells(&self.lesson), &self.lesson).to_string());
        }
        for Choice { axis, chosen, reason, .. } in choices {
            text.push_str(&format!("\n{axis}: {chosen} ({reason})\n"));
        }
        for remark in remarks {
            text.push_str(&format!("\n{remark}\n"));
        }
        text
    }
}

fn table(cells: &[&Cell], measured: &[Measured]) -> Table {
    let mut table = Table::new([
        "caps",
        "MTU",
        "connections",
        "queue",
        "goodput, Mbit/s",
        "CPU s per GB",
        "RTT median / p99, ms",
        "dropped at the queue, %",
    ]);
    for cell in cells {
        let Some(median) = Median::of(cell, measured) else { continue };
        let Setting { caps, mtu, connections, queue } = &cell.setting;
        table.row([
            caps.to_string(),
            mtu.to_string(),
            connections.to_string(),
            queue.clone().unwrap_or_else(|| "-".to_owned()),
            number(median.goodput_mbit_per_s),
            number_or_dash(median.cpu_seconds_per_gb),
            format!("{} / {}", number_or_dash(median.rtt_median_ms), number_or_dash(median.rtt_p99_ms)),
            number_or_dash(median.dropped_at_queue.map(|share| share * 100.0)),
        ]);
    }
    table
}
