//! `setup`: brings a Warren tunnel up and down many times. It measures the time from `warren up` to the first reply through the
//! tunnel, and the time until `warren down` has restored the host.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    interrupt::Interrupt,
    report::{self, Machine, Table, number},
    stats::Sample,
    vpn::{
        peers::{Installed, Peer, Turn},
        topology::{self, Topology},
    },
    wire::Change,
};

/// The limit for the 95th percentile of the start times, on a path with an RTT of 10 ms.
const MOST_UP: Duration = Duration::from_millis(500);
/// The limit for every stop.
const MOST_DOWN: Duration = Duration::from_secs(1);

/// The arguments of `setup`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of times to bring the tunnel up and down
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..))]
    turns: u32,
    /// The peer: warren, or warren:KEY=VALUE+KEY=VALUE with settings or binary=PATH, as for `vpn`
    #[arg(long, default_value = "warren")]
    peer: Peer,
    /// Settings of the wire below the tunnel, in each direction
    #[arg(long, value_name = "SETTINGS", default_value = "delay=5ms")]
    wire: Change,
    /// Directory for setup.json
    #[arg(long, value_name = "DIRECTORY", default_value = "target/warren-bench/setup")]
    output: PathBuf,
    /// Print the whole result as one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Brings a tunnel up and down many times, and prints the times.
///
/// Leaves nothing behind if it fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.peer.is_warren(),
        "`setup` works with warren only; `vpn` compares the first start of all peers"
    );
    let interrupt = Interrupt::catch()?;
    let machine = Machine::here();
    report::make_directory(&args.output)?;
    topology::remove_leftovers();
    let installed = Installed::find(&args.peer, &interrupt)?;
    let topology = Topology::create_over(&args.wire)?;
    // The first start is not counted, because it also makes keys and configurations.
    let _tunnel = installed.start(&topology, &interrupt)?;
    let mut turns = Vec::new();
    for _ in 0..args.turns {
        turns.push(installed.turn(&topology, &interrupt)?);
    }
    let outcome = Outcome::of(machine, installed.version, &turns)?;
    report::write(&args.output.join("setup.json"), &report::json(&outcome)?)?;
    if args.json {
        report::print_json(&outcome)?;
    } else {
        report::print(&format!("{}\n{}\n\n{}", outcome.machine, outcome.version, outcome.table()))?;
    }
    // The result is written and printed before the limits are checked, so that the user has the figures of a failed run.
    report::print(&format!("measured: {}", outcome.sentence()))?;
    anyhow::ensure!(
        outcome.up.p95 < MOST_UP.as_secs_f64() * 1e3 && outcome.down.most < MOST_DOWN.as_secs_f64() * 1e3,
        "the limit is {} ms for 19 of 20 starts and {} ms for every stop",
        MOST_UP.as_millis(),
        MOST_DOWN.as_millis()
    );
    Ok(())
}

/// The result, in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    machine: Machine,
    version: String,
    up: Times,
    down: Times,
}

#[derive(Clone, Debug, Serialize)]
struct Times {
    median: f64,
    p95: f64,
    most: f64,
    all: Vec<f64>,
}

impl Outcome {
    fn of(machine: Machine, version: String, turns: &[Turn]) -> anyhow::Result<Self> {
        let times = |of: fn(&Turn) -> Duration| Times::of(turns.iter().map(of));
        Ok(Self { machine, version, up: times(|turn| turn.up)?, down: times(|turn| turn.down)? })
    }

    fn table(&self) -> Table {
        let mut table = Table::new(["ms", "median", "95 of 100", "longest"]);
        for (name, Times { median, p95, most, .. }) in
            [("up, until the first reply", &self.up), ("down", &self.down)]
        {
            table.row([name.to_owned(), number(*median), number(*p95), number(*most)]);
        }
        table
    }

    fn sentence(&self) -> String {
        let Self { up, down, .. } = self;
        format!(
            "{} turns; up to the first reply: median {} ms, p95 {} ms; down: median {} ms, longest {} ms",
            up.all.len(),
            number(up.median),
            number(up.p95),
            number(down.median),
            number(down.most)
        )
    }
}

impl Times {
    fn of(times: impl Iterator<Item = Duration>) -> anyhow::Result<Self> {
        let all: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        let sample = Sample::new(all.clone()).context("nothing was measured")?;
        Ok(Self { median: sample.median(), p95: sample.quantile(0.95), most: sample.quantile(1.0), all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_start_of_many_is_the_longest_and_not_the_95th() {
        let turn = |up| Turn { up: Duration::from_millis(up), down: Duration::from_millis(50) };
        let turns: Vec<Turn> = (0..40).map(|_| turn(100)).chain([turn(900)]).collect();

        let outcome = Outcome::of(Machine::here(), "1".to_owned(), &turns).unwrap();

        assert!((outcome.up.p95 - 100.0).abs() < 1e-6 && (outcome.up.most - 900.0).abs() < 1e-6);
        assert!(outcome.sentence().starts_with("41 turns; "), "{}", outcome.sentence());
    }
}
