//! `soak`: minutes at most of what a Warren tunnel can carry: does it grow, lose count, or complain?
//!
//! The capacity is measured just before, through the same tunnel; the load is a share of it ([`load`]). Every few
//! seconds the daemons are looked at ([`sample`]), and at the end their counters must add up ([`daemon`]). Then the
//! capacity is measured again: on a shared machine it may have become less. What all of that amounts to is a pure
//! function of it ([`verdict`]).

mod daemon;
mod load;
mod sample;
mod verdict;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use self::{
    daemon::{Balance, Daemon},
    load::Carried,
    sample::{Ends, Sample},
    verdict::Verdict,
};
use crate::{
    interrupt::Interrupt,
    report::{self, Machine, Table, number},
    stats,
    vpn::{
        load::Iperf,
        peers::{Installed, Peer, install_load_generators},
        plan::{Bed, Test},
        topology::{self, Topology},
    },
    way::Ways,
    wire::Change,
};

/// Times that the capacity is measured, of which the median counts.
const MEASUREMENTS: usize = 3;
/// Between two looks at the daemons.
const INTERVAL: Duration = Duration::from_secs(5);
/// After the load, until nothing is under way any more.
const SETTLE: Duration = Duration::from_secs(3);

/// How long and how hard.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Minutes under load
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Per cent of the capacity to offer
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u32).range(1..=100))]
    share: u32,
    /// Seconds in which the capacity is measured, three times before the load and three times after it
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    capacity_seconds: u32,
    /// Warren, or warren:KEY=VALUE+KEY=VALUE with settings and binary=PATH, as for `vpn`
    #[arg(long, default_value = "warren")]
    peer: Peer,
    /// A wire with these settings each way under the tunnel, as in "delay=15ms loss=0.1%" [default: a veth pair]
    #[arg(long, value_name = "SETTINGS")]
    wire: Option<Change>,
    /// Where soak.json goes
    #[arg(long, value_name = "DIRECTORY", default_value = "target/warren-bench/soak")]
    output: PathBuf,
    /// Print the whole result as one line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Loads a tunnel and says what that did to it.
///
/// # Errors
/// A sentence when the tunnel does not come up, or with what was not as it must be. Nothing is left behind.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.peer.is_warren(), "only warren is soaked; its counters are what is looked at");
    anyhow::ensure!(args.minutes > 0.0 && args.minutes <= 10_000.0, "--minutes takes more than 0");
    let interrupt = Interrupt::catch()?;
    let machine = Machine::here();
    report::make_directory(&args.output)?;
    topology::remove_leftovers();
    install_load_generators(&interrupt)?;
    let installed = Installed::find(&args.peer, &interrupt)?;
    let outcome = soak(args, &installed, machine, &interrupt)?;
    report::write(&args.output.join("soak.json"), &report::json(&outcome)?)?;
    if args.json {
        report::print_json(&outcome)?;
    } else {
        report::print(&format!("{}\n\n{}\n{}", outcome.machine, outcome.table(), outcome.balance_table()))?;
        report::print(&outcome.verdict.sentence)?;
    }
    anyhow::ensure!(
        outcome.verdict.passed,
        "the soak did not pass; soak.json is in {}",
        args.output.display()
    );
    Ok(())
}

/// All that came out.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    machine: Machine,
    version: String,
    minutes: f64,
    /// Before the load and after it.
    capacity_mbit_per_s: [f64; 2],
    offered_mbit_per_s: f64,
    carried: Carried,
    samples: Vec<Sample>,
    client: Balance,
    exit: Balance,
    verdict: Verdict,
}

fn soak(
    args: &Args,
    installed: &Installed,
    machine: Machine,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let topology = match &args.wire {
        None => Topology::create()?,
        Some(settings) => Topology::create_over(settings)?,
    };
    let tunnel = installed.start(&topology, interrupt)?;
    let iperf = Iperf::start(&topology, &tunnel.client_address, interrupt)?;
    let bed = Bed { topology: &topology, tunnel: &tunnel, iperf: &iperf, interrupt };

    eprintln!("measuring the capacity");
    let before = capacity(&bed, args.capacity_seconds)?;
    let offered = before * f64::from(args.share) / 100.0;

    let daemons = [Daemon::client(&topology, installed)?, Daemon::exit(&topology, installed)?];
    let ends = Ends::of(&tunnel)?;
    let time = Duration::from_secs_f64(args.minutes * 60.0);
    let (samples, carried) = load::carry_while(&bed, offered, time, |is_running| {
        watch(&ends, &daemons, time, is_running, interrupt)
    })?;
    interrupt.wait(Some(SETTLE));
    let [client, exit] = daemons.map(|daemon| daemon.balance(interrupt));
    let (client, exit) = (client?, exit?);
    eprintln!("measuring the capacity again");
    // Whatever comes of it, what was seen in the minutes before is not to be lost.
    let after = capacity(&bed, args.capacity_seconds).unwrap_or_else(|problem| {
        eprintln!("the capacity could not be measured again: {problem:#}");
        0.0
    });
    let capacity = [before, after];
    let verdict = verdict::judge(&samples, capacity, &carried, &client, &exit);
    Ok(Outcome {
        machine,
        version: installed.version.clone(),
        minutes: args.minutes,
        capacity_mbit_per_s: capacity,
        offered_mbit_per_s: offered,
        carried,
        samples,
        client,
        exit,
        verdict,
    })
}

/// What the tunnel carries of TCP, in Mbit/s.
fn capacity(bed: &Bed<'_>, seconds: u32) -> anyhow::Result<f64> {
    let mut measured = Vec::new();
    for _ in 0..MEASUREMENTS {
        let outcome = bed.run(Test::Tcp { flows: load::FLOWS, ways: Ways::Up }, seconds)?;
        measured.push(outcome.gbit_per_s().context("the capacity was not measured")? * 1e3);
    }
    Ok(stats::Sample::new(measured).context("the capacity was not measured")?.median())
}

/// Looks at the daemons until the time is over.
fn watch(
    ends: &Ends,
    daemons: &[Daemon<'_>; 2],
    time: Duration,
    is_running: &dyn Fn() -> bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Sample>> {
    let bar = ProgressBar::new(time.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
        bar.set_style(style);
    }
    let (start, mut samples) = (Instant::now(), Vec::new());
    while start.elapsed() < time && !interrupt.is_set() && is_running() {
        let sample = Sample::take(ends, daemons, start.elapsed(), interrupt)?;
        let left = time.saturating_sub(start.elapsed()).as_secs();
        let line = format!(
            "client {} MiB, exit {} MiB, {} dropped, {} min {:02} s left",
            sample.client.rss_kib / 1_024,
            sample.exit.rss_kib / 1_024,
            sample.client_drops + sample.exit_drops,
            left / 60,
            left % 60
        );
        bar.set_position(start.elapsed().as_secs());
        // A line a minute where there is no terminal.
        if bar.is_hidden() && samples.len().is_multiple_of(12) {
            eprintln!("{line}");
        }
        bar.set_message(line);
        samples.push(sample);
        interrupt.wait(Some(INTERVAL.min(time.saturating_sub(start.elapsed()))));
    }
    bar.finish_and_clear();
    Ok(samples)
}

impl Outcome {
    fn table(&self) -> Table {
        let Self { capacity_mbit_per_s, offered_mbit_per_s, carried, samples, verdict, .. } = self;
        let mut table = Table::new(["", "client", "exit"]);
        let mut row = |name: &str, client: String, exit: String| {
            table.row([name.to_owned(), client, exit]);
        };
        let extremes = |of: fn(&Sample) -> u64| {
            let all = || samples.iter().map(of);
            format!(
                "{} / {} / {}",
                all().next().unwrap_or(0),
                all().max().unwrap_or(0),
                all().next_back().unwrap_or(0)
            )
        };
        row(
            "RSS, first / most / last KiB",
            extremes(|sample| sample.client.rss_kib),
            extremes(|sample| sample.exit.rss_kib),
        );
        row(
            "RSS growth after warm-up, MiB/h",
            number(verdict.client_growth_mib_per_hour),
            number(verdict.exit_growth_mib_per_hour),
        );
        row(
            "descriptors, first / most / last",
            extremes(|sample| sample.client.descriptors),
            extremes(|sample| sample.exit.descriptors),
        );
        row(
            "threads, first / most / last",
            extremes(|sample| sample.client.threads),
            extremes(|sample| sample.exit.threads),
        );
        row("log lines WARN or ERROR", self.client.warnings.to_string(), self.exit.warnings.to_string());
        row("drops by reason", self.client.drops(), self.exit.drops());
        let both = |text: String| (text.clone(), text);
        for (name, text) in [
            ("capacity before / offered / capacity after, Mbit/s", {
                let [before, after] = *capacity_mbit_per_s;
                format!("{} / {} / {}", number(before), number(*offered_mbit_per_s), number(after))
            }),
            (
                "TCP offered / received, Mbit/s",
                format!("{} / {}", number(carried.tcp_offered_mbit_per_s), number(carried.tcp_mbit_per_s)),
            ),
            ("UDP packets sent / received", format!("{} / {}", carried.udp_sent, carried.udp_received)),
            (
                "connections made / failed / damaged",
                format!(
                    "{} / {} / {}",
                    carried.connections, carried.connections_failed, carried.connections_damaged
                ),
            ),
        ] {
            let (client, exit) = both(text);
            row(name, client, exit);
        }
        table
    }

    fn balance_table(&self) -> Table {
        let mut table = Table::new(["sum (docs/counters.md)", "client", "exit"]);
        for (client, exit) in self.client.sums.iter().zip(&self.exit.sums) {
            table.row([client.name.to_owned(), client.to_string(), exit.to_string()]);
        }
        table
    }
}
