//! `sweep`: measures every combination of Warren's caps of a transmit, MTU and number of connections, and of the length of the
//! bottleneck's queue, on clean, long and lossy networks. It shows the goodput of each combination and which default values are
//! best.
//!
//! A cell is one combination on one network. To measure a cell, `sweep` makes two hosts with a veth pair or a [`crate::wire`]
//! between them, brings up a tunnel, and sends eight TCP flows and pings to the exit. Cells are measured in random order, so that
//! a drift of the machine's speed affects all cells equally. [`choice`] compares pairs of cells that differ in only one value.

mod choice;
mod grid;
mod measured;
mod plots;
mod results;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};

use self::{
    grid::{Axes, Caps, Cell, Net, Setting, parse_queue},
    measured::Measured,
    results::Results,
};
use crate::{
    interrupt::Interrupt,
    progress,
    report::{self, Machine},
    stats::{Sample, share},
    vpn::{
        load::Iperf,
        peers::{Installed, Peer, install_load_generators},
        plan::{Bed, RTT_UNDER_FLOWS, Test},
        schedule::Shuffle,
        topology::{self, Topology},
    },
    way::Ways,
};

/// Time that a cell takes in addition to its measured seconds: to make the hosts, bring up the tunnel and start the load.
const OVERHEAD: Duration = Duration::from_millis(2_500);

/// The arguments of `sweep`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Caps of one transmit, as SEGMENTS/DATAGRAMS. On each axis, the first value is chosen unless another is clearly
    /// better
    #[arg(long, value_delimiter = ',', default_value = "40/80,10/20")]
    caps: Vec<Caps>,
    /// MTUs of the tunnel
    #[arg(long, value_delimiter = ',', default_value = "1380,1280", value_parser = clap::value_parser!(u16).range(1_280..))]
    mtus: Vec<u16>,
    /// Numbers of connections
    #[arg(long, value_delimiter = ',', default_value = "4,1", value_parser = clap::value_parser!(u32).range(1..=32))]
    connections: Vec<u32>,
    /// Lengths of the queue at the wire's bottleneck in time, packets or KiB, as in 50ms, 100p, 64k
    #[arg(long, value_delimiter = ',', default_value = "10ms,100ms", value_parser = parse_queue)]
    queues: Vec<String>,
    /// Networks
    #[arg(long, value_enum, value_delimiter = ',', default_value = "clean,30ms,100ms,lossy")]
    nets: Vec<Net>,
    /// Queue lengths for the lesson about queue size, in milliseconds. The lesson uses the 30 ms network and the
    /// first value of each axis
    #[arg(long, value_delimiter = ',', default_value = "1,3,10,30,100,300")]
    lesson: Vec<u32>,
    /// Leave out the lesson about queue size
    #[arg(long)]
    no_lesson: bool,
    /// Seconds of each cell
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Number of rounds; more rounds narrow the intervals
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The peer: warren, or warren:KEY=VALUE+KEY=VALUE with settings or binary=PATH, as for `vpn`
    #[arg(long, default_value = "warren")]
    peer: Peer,
    /// Seed of the cells' order, to repeat the order of an earlier run [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for sweep.json, sweep.md and the plots
    #[arg(long, value_name = "DIRECTORY", default_value = "target/warren-bench/sweep")]
    output: PathBuf,
    /// Print the result as one line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Measures all cells, and prints and writes the results.
///
/// If a cell fails or the user interrupts, it still publishes the cells measured before. It always removes its namespaces and
/// ends its processes.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.peer.is_warren(),
        "`sweep` works with warren only, because other peers don't have these settings"
    );
    let interrupt = Interrupt::catch()?;
    let machine = Machine::here();
    report::make_directory(&args.output)?;
    topology::remove_leftovers();
    install_load_generators(&interrupt)?;
    let installed = Installed::find(&args.peer, &interrupt)?;
    let axes = Axes {
        caps: args.caps.clone(),
        mtus: args.mtus.clone(),
        connections: args.connections.clone(),
        queues: args.queues.clone(),
    };
    let seed = args.seed.unwrap_or_else(Shuffle::seed_from_clock);
    let plan = plan(args, &axes, &mut Shuffle::new(seed))?;
    let mut sweep = Sweep { args, installed: &installed, interrupt: &interrupt, remarks: Vec::new() };
    let (measured, ended) = sweep.go_through(&plan);
    let remarks = sweep.remarks;
    if measured.is_empty() {
        // If the run was interrupted, this error explains more than the message about missing figures below.
        ended?;
        bail!("no cell gave a figure: {}", remarks.join("; "));
    }
    let of = |part: Part| -> Vec<Measured> {
        let mut found: Vec<_> = measured
            .iter()
            .filter(|(which, _)| *which == part)
            .map(|(_, measured)| measured.clone())
            .collect();
        let order = match part {
            Part::Grid => axes.cells(&args.nets),
            Part::Lesson => lesson_cells(args, &axes),
        };
        // The cells were measured in random order. The tables list them in the order of the axes.
        found.sort_by_key(|one| (order.iter().position(|cell| *cell == one.cell), one.round));
        found
    };
    let cells = of(Part::Grid);
    let results = Results {
        machine,
        version: installed.version.clone(),
        seed,
        seconds: args.seconds,
        choices: choice::choose(&axes, &cells),
        lesson: of(Part::Lesson),
        cells,
        remarks,
    };
    publish(&results, args)?;
    ended
}

fn publish(results: &Results, args: &Args) -> anyhow::Result<()> {
    let markdown = results.markdown();
    report::write(&args.output.join("sweep.json"), &report::json(results)?)?;
    report::write(&args.output.join("sweep.md"), &markdown)?;
    plots::write(results, &args.output)?;
    if args.json {
        return report::print_json(results);
    }
    report::print(&markdown)?;
    report::print(&format!("sweep.json, sweep.md and plots are in {}", args.output.display()))
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Grid,
    Lesson,
}

/// Returns each cell once per round, in random order.
fn plan(args: &Args, axes: &Axes, shuffle: &mut Shuffle) -> anyhow::Result<Vec<(Part, u32, Cell)>> {
    let mut cells: Vec<_> = axes.cells(&args.nets).into_iter().map(|cell| (Part::Grid, cell)).collect();
    cells.extend(lesson_cells(args, axes).into_iter().map(|cell| (Part::Lesson, cell)));
    anyhow::ensure!(!cells.is_empty(), "there is nothing to sweep; give each axis a value");
    // Each round has a different order, so that a cell does not always follow the same cell.
    let rounds = (0..args.rounds)
        .flat_map(|round| shuffle.shuffled(&cells).into_iter().map(move |(part, cell)| (part, round, cell)));
    Ok(rounds.collect())
}

fn lesson_cells(args: &Args, axes: &Axes) -> Vec<Cell> {
    let first = (axes.caps.first(), axes.mtus.first(), axes.connections.first());
    let (Some(&caps), Some(&mtu), Some(&connections)) = first else { return Vec::new() };
    let queues: &[u32] = if args.no_lesson { &[] } else { args.lesson.as_slice() };
    let cell = |queue: &u32| Cell {
        net: Net::Near,
        setting: Setting { caps, mtu, connections, queue: Some(format!("{queue}ms")) },
    };
    queues.iter().map(cell).collect()
}

/// A run in progress.
struct Sweep<'a> {
    args: &'a Args,
    installed: &'a Installed,
    interrupt: &'a Interrupt,
    /// Messages about failures.
    remarks: Vec<String>,
}

impl Sweep<'_> {
    /// Measures the cells in the order of the plan. A cell that fails is reported and left out. An interrupt ends the run.
    fn go_through(&mut self, plan: &[(Part, u32, Cell)]) -> (Vec<(Part, Measured)>, anyhow::Result<()>) {
        let bar = progress::bar(u64::try_from(plan.len()).unwrap_or(0), "{bar:30} {pos}/{len} {msg}");
        bar.enable_steady_tick(Duration::from_millis(500));
        let planned = |cells: usize| planned(cells, self.args.seconds);
        let (start, mut measured) = (Instant::now(), Vec::new());
        for (index, (part, round, cell)) in plan.iter().enumerate() {
            let left = progress::time_left(start.elapsed(), planned(index), planned(plan.len()));
            let line = format!("{}, about {}", cell.net.name(), progress::left(left));
            // Without a terminal, a line is printed for every tenth cell.
            if bar.is_hidden() && index.is_multiple_of(10) {
                eprintln!("cell {} of {}, {line}", index + 1, plan.len());
            }
            bar.set_message(line);
            match self.measure(*round, cell) {
                Ok(found) => measured.push((*part, found)),
                Err(error) => {
                    // A cell that fails because of an interrupt gets no remark.
                    if let Err(interrupted) = self.interrupt.check() {
                        bar.finish_and_clear();
                        // The caller publishes the cells that were measured before the interrupt.
                        return (measured, Err(interrupted));
                    }
                    let remark = format!(
                        "{} on {} failed: {error:#}",
                        cell.setting.peer(&self.args.peer),
                        cell.net.name()
                    );
                    progress::print(&bar, &remark);
                    self.remarks.push(remark);
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        (measured, Ok(()))
    }

    fn measure(&self, round: u32, cell: &Cell) -> anyhow::Result<Measured> {
        let topology = match cell.wire() {
            None => Topology::create()?,
            Some(settings) => {
                Topology::create_over(&settings.parse().map_err(|error: String| anyhow!(error))?)?
            }
        };
        let mut installed = self.installed.clone();
        // All cells use the same binary with different settings.
        installed.peer = cell.setting.peer(&self.args.peer);
        let tunnel = installed.start(&topology, self.interrupt)?;
        let iperf = Iperf::start(&topology, &tunnel.client_address, self.interrupt)?;
        let bed = Bed { topology: &topology, tunnel: &tunnel, iperf: &iperf, interrupt: self.interrupt };
        let state = || topology.wire.as_ref().map(|wire| wire.handle.state()).transpose();
        // The wire's account includes the traffic of the tunnel's start. The difference between `before` and `after` is the
        // traffic of the test.
        let before = state()?;
        let test = Test::Tcp { flows: RTT_UNDER_FLOWS, ways: Ways::Up };
        let outcome = bed.run(test, self.args.seconds)?;
        let after = state()?;
        // A test that was interrupted returns early, and its figures are wrong.
        self.interrupt.check()?;
        let dropped_at_queue = before.zip(after).map(|(before, after)| {
            // The flows go from the client to the exit, so only the queue in this direction matters.
            let (before, after) = (before.up.account, after.up.account);
            let count = |one: u64, other: u64| one.saturating_sub(other);
            share(count(after.queue_full, before.queue_full), count(after.received, before.received))
        });
        let rtt = Sample::new(outcome.rtt_ms.clone());
        Ok(Measured {
            cell: cell.clone(),
            round,
            goodput_mbit_per_s: outcome.gbit_per_s().context("iperf3 gave no rate")? * 1e3,
            cpu_seconds_per_gb: outcome.cpu_seconds_per_gb(),
            rtt_median_ms: rtt.as_ref().map(Sample::median),
            rtt_p99_ms: rtt.as_ref().map(|rtt| rtt.quantile(0.99)),
            dropped_at_queue,
        })
    }
}

/// Estimates the time that a number of cells takes.
fn planned(cells: usize, seconds: u32) -> Duration {
    (OVERHEAD + Duration::from_secs(seconds.into())) * u32::try_from(cells).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn planned(line: &str) -> Vec<(Part, u32, Cell)> {
        let args = Line::parse_from(["sweep"].into_iter().chain(line.split_whitespace())).args;
        let axes = Axes {
            caps: args.caps.clone(),
            mtus: args.mtus.clone(),
            connections: args.connections.clone(),
            queues: args.queues.clone(),
        };
        plan(&args, &axes, &mut Shuffle::new(1)).unwrap()
    }

    #[test]
    fn default_run_takes_less_than_ten_minutes() {
        let plan = planned("");
        assert_eq!(plan.len(), 8 + 3 * 16 + 6);
        let time = super::planned(plan.len(), 4);
        assert!(time < Duration::from_secs(600), "{time:?}");
    }

    #[test]
    fn run_can_be_narrowed() {
        let plan = planned(
            "--caps 40/80 --mtus 1380 --connections 4 --queues 50ms --nets lossy --no-lesson --rounds 3",
        );
        assert_eq!(plan.len(), 3);
        assert_eq!(planned("--nets clean --lesson 5,50").len(), 8 + 2);
    }
}
