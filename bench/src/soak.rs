//! `soak`: loads a Warren tunnel for minutes, near its capacity. It checks that the daemons' memory use does not grow, that their
//! counters add up, and that they log no warnings.
//!
//! The capacity of the tunnel is measured first. The load is a share of the capacity ([`load`]). Both daemons are sampled every
//! few seconds ([`sample`]), and their counters must add up at the end ([`daemon`]). Then the capacity is measured again, because
//! a shared machine may have become slower. The verdict is a pure function of these measurements ([`verdict`]).

mod daemon;
mod load;
mod sample;
mod verdict;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::Serialize;

use self::{
    daemon::{Balance, Daemon},
    load::Carried,
    sample::{Ends, Sample},
    verdict::Verdict,
};
use crate::{
    interrupt::Interrupt,
    progress,
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

/// Number of measurements of the capacity, of which the median is used.
const MEASUREMENTS: usize = 3;
/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time after the load in which packets in flight arrive.
const SETTLE: Duration = Duration::from_secs(3);

/// The arguments of `soak`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Minutes under load
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Load in per cent of the capacity
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u32).range(1..=100))]
    share: u32,
    /// Seconds of each measurement of the capacity, of which there are three before and three after the load
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    capacity_seconds: u32,
    /// The peer: warren, or warren:KEY=VALUE+KEY=VALUE with settings or binary=PATH, as for `vpn`
    #[arg(long, default_value = "warren")]
    peer: Peer,
    /// Settings of a wire below the tunnel, in each direction, as in "delay=15ms loss=0.1%" [default: a veth pair]
    #[arg(long, value_name = "SETTINGS")]
    wire: Option<Change>,
    /// Directory for soak.json
    #[arg(long, value_name = "DIRECTORY", default_value = "target/warren-bench/soak")]
    output: PathBuf,
    /// Print the whole result as one line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Loads a tunnel and prints the verdict.
///
/// Leaves nothing behind if it fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.peer.is_warren(),
        "`soak` works with warren only, because it checks warren's counters"
    );
    anyhow::ensure!(
        args.minutes > 0.0 && args.minutes <= 10_000.0,
        "--minutes must be more than 0 and at most 10000"
    );
    let interrupt = Interrupt::catch()?;
    let machine = Machine::here();
    report::make_directory(&args.output)?;
    topology::remove_leftovers();
    install_load_generators(&interrupt)?;
    let installed = Installed::find(&args.peer, &interrupt)?;
    let outcome = soak(args, &installed, machine, &interrupt)?;
    // The result is written before the verdict is checked, so that the user has the figures of a failed run.
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

/// The result.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    machine: Machine,
    version: String,
    minutes: f64,
    /// The capacity before the load and after it.
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
    // The counters add up only when no packets are in flight.
    interrupt.wait(Some(SETTLE));
    let [client, exit] = daemons.map(|daemon| daemon.balance(interrupt));
    let (client, exit) = (client?, exit?);
    eprintln!("measuring the capacity again");
    // If this measurement fails, the capacity counts as 0, which fails the verdict. The earlier results are still published.
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

/// Measures the tunnel's TCP goodput in Mbit/s.
fn capacity(bed: &Bed<'_>, seconds: u32) -> anyhow::Result<f64> {
    let mut measured = Vec::new();
    for _ in 0..MEASUREMENTS {
        // The load also goes from the client to the exit, so the capacity is measured in this direction.
        let outcome = bed.run(Test::Tcp { flows: load::FLOWS, ways: Ways::Up }, seconds)?;
        measured.push(outcome.gbit_per_s().context("the capacity was not measured")? * 1e3);
    }
    Ok(stats::Sample::new(measured).context("the capacity was not measured")?.median())
}

/// Samples the daemons until the time is over or the load has ended.
fn watch(
    ends: &Ends,
    daemons: &[Daemon<'_>; 2],
    time: Duration,
    is_running: &dyn Fn() -> bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Sample>> {
    let bar = progress::bar(time.as_secs(), "{bar:30} {msg}");
    let (start, mut samples) = (Instant::now(), Vec::new());
    while start.elapsed() < time && !interrupt.is_set() && is_running() {
        let sample = Sample::take(ends, daemons, start.elapsed(), interrupt)?;
        let line = format!(
            "client {} MiB, exit {} MiB, {} dropped, {}",
            sample.client.rss_kib / 1_024,
            sample.exit.rss_kib / 1_024,
            sample.client_drops + sample.exit_drops,
            progress::left(time.saturating_sub(start.elapsed())),
        );
        bar.set_position(start.elapsed().as_secs());
        // Without a terminal, a line is printed for every twelfth sample, which is once a minute.
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
            let [first, last] = [samples.first(), samples.last()].map(|sample| sample.map_or(0, of));
            format!("{first} / {} / {last}", samples.iter().map(of).max().unwrap_or(0))
        };
        let rss = "RSS, first / most / last KiB";
        row(rss, extremes(|sample| sample.client.rss_kib), extremes(|sample| sample.exit.rss_kib));
        row(
            "RSS growth after warm-up, MiB/h",
            number(verdict.client_growth_mib_per_hour),
            number(verdict.exit_growth_mib_per_hour),
        );
        let descriptors = "descriptors, first / most / last";
        row(descriptors, extremes(|one| one.client.descriptors), extremes(|one| one.exit.descriptors));
        let threads = "threads, first / most / last";
        row(threads, extremes(|sample| sample.client.threads), extremes(|sample| sample.exit.threads));
        row("log lines WARN or ERROR", self.client.warnings.to_string(), self.exit.warnings.to_string());
        row("drops by reason", self.client.drops(), self.exit.drops());
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
            // These figures are about the whole tunnel and not about one end, so both columns show the same value.
            row(name, text.clone(), text);
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
