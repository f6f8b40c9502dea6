//! `vpn`: compares whole tunnels in one run: Warren, other VPNs, and the bare link and the copier as upper limits.
//!
//! Every round visits each peer once, in random order. A visit makes two hosts (`topology`), brings the tunnel up as its users do
//! (`peers`), runs all tests in random order (`plan`, with traffic by `load` and cost by `measure`), and removes the tunnel and
//! the hosts. The first round is discarded. Figures are medians over the other rounds (`results`, `report`, `plots`).

pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod peers;
pub(crate) mod plan;
mod plots;
pub(crate) mod process;
mod profile;
mod progress;
mod report;
mod results;
pub(crate) mod schedule;
pub(crate) mod topology;

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use self::{
    load::Iperf,
    peers::{Installed, Peer},
    plan::{Bed, Test},
    progress::Progress,
    report::Report,
    results::Visit,
    schedule::{Plan, Shuffle},
    topology::Topology,
};
use crate::{
    interrupt::Interrupt,
    report::{Machine, print, print_json},
};

/// The arguments of `vpn`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Peers, separated by commas: veth, tun-copy, bare, warren, wireguard-go, wireguard-go-at-warren, openvpn, boringtun, gotatun,
    /// quincy.
    /// warren:KEY=VALUE+KEY=VALUE sets keys of [transport]; section.KEY sets other keys, binary=PATH another program,
    /// forwards=N gives the exit N forwards, and name=NAME is the name in tables
    /// [default: veth,tun-copy,warren,wireguard-go,openvpn; with --full all]
    #[arg(long, value_delimiter = ',', value_name = "PEERS")]
    peers: Vec<Peer>,
    /// Tests, separated by commas; an unknown name lists them [default: nine of them; with --full all]
    #[arg(long, value_delimiter = ',', value_name = "TESTS")]
    tests: Vec<Test>,
    /// Seconds of each test [default: 3; with --full 6]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Rounds to keep, after one that is discarded [default: 3; with --full 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Run all peers and all tests, which takes more than an hour
    #[arg(long)]
    full: bool,
    /// Seed of the order of peers and tests, to repeat the order of an earlier run [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the JSON, Markdown and SVG files
    #[arg(long, value_name = "DIRECTORY", default_value = "target/warren-bench/vpn")]
    output: PathBuf,
    /// Make the kernel track connections on both hosts of every peer, as any NAT or stateful firewall does. Warren's own rules make
    /// it do so even without this option
    #[arg(long)]
    track: bool,
    /// Also profile each peer's VPN processes with perf in one more run of the first test: flame graph and top symbols
    #[arg(long)]
    profile: bool,
    /// Print the medians as one line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Compares whole tunnels, and prints and writes the results.
///
/// If a visit fails or the user interrupts, it still publishes the earlier visits. It always removes its namespaces and ends its
/// processes.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let machine = Machine::here();
    crate::report::make_directory(&args.output)?;
    topology::remove_leftovers();
    let seed = args.seed.unwrap_or_else(Shuffle::seed_from_clock);
    let mut session = Session::new(args, &interrupt, seed)?;
    let ended = session.run();
    // The profiles are made after all rounds, so that perf does not slow down the measurements.
    let profiled = if args.profile && ended.is_ok() { session.profile() } else { Ok(()) };
    let Session { installed, tests, visits, remarks, plan, .. } = session;
    if !visits.is_empty() {
        let report = Report::new(machine, (seed, plan.seconds), &installed, &tests, visits, remarks);
        publish(&report, args)?;
    } else if ended.is_ok() {
        bail!("no peer gave a figure: {}", remarks.join("; "));
    }
    // The results have been written, so returning an error does not lose them.
    ended.and(profiled)
}

fn publish(report: &Report, args: &Args) -> anyhow::Result<()> {
    report.write(&args.output)?;
    plots::write(report, &args.output)?;
    if args.json {
        return print_json(&report.medians());
    }
    print(&format!("{}\n{}", report.conditions(), report.table()))?;
    if let Some(ratios) = report.ratios() {
        print(&ratios.to_string())?;
    }
    for remark in &report.remarks {
        print(remark)?;
    }
    print(&format!("vpn.json, vpn.md and plots are in {}", args.output.display()))
}

/// A run in progress.
struct Session<'a> {
    args: &'a Args,
    interrupt: &'a Interrupt,
    installed: Vec<Installed>,
    tests: Vec<Test>,
    plan: Plan,
    shuffle: Shuffle,
    visits: Vec<Visit>,
    /// Messages about peers and tests that were skipped or failed, without duplicates.
    remarks: Vec<String>,
}

impl<'a> Session<'a> {
    /// Finds the peers. Reports and skips a peer that cannot be installed.
    fn new(args: &'a Args, interrupt: &'a Interrupt, seed: u64) -> anyhow::Result<Self> {
        let or = |given: Option<u32>, default, full| given.unwrap_or(if args.full { full } else { default });
        let peers = match (args.peers.is_empty(), args.full) {
            (false, _) => args.peers.clone(),
            (true, false) => Peer::of_default_run(),
            (true, true) => Peer::all(),
        };
        let tests = match (args.tests.is_empty(), args.full) {
            (false, _) => args.tests.clone(),
            (true, false) => Test::of_default_run(),
            (true, true) => Test::all(),
        };
        peers::install_load_generators(interrupt)?;
        let (mut installed, mut remarks) = (Vec::new(), Vec::new());
        if args.track {
            remarks.push("The kernel tracks connections on both hosts of every peer (--track).".to_owned());
        }
        for peer in &peers {
            match Installed::find(peer, interrupt) {
                Ok(found) => installed.push(found),
                Err(error) => {
                    interrupt.check()?;
                    let remark = format!("{peer} is skipped: {error:#}");
                    eprintln!("{remark}");
                    remarks.push(remark);
                }
            }
        }
        let count = |length: usize| u32::try_from(length).context("there are too many peers or tests");
        let plan = Plan {
            peers: count(installed.len())?,
            tests: count(tests.len())?,
            seconds: or(args.seconds, 3, 6),
            rounds: or(args.rounds, 3, 5),
        };
        Ok(Self {
            args,
            interrupt,
            installed,
            tests,
            plan,
            shuffle: Shuffle::new(seed),
            visits: Vec::new(),
            remarks,
        })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let mut progress = Progress::new(self.plan);
        for round in 0..=self.plan.rounds {
            let order: Vec<usize> = (0..self.installed.len()).collect();
            for peer in self.shuffle.shuffled(&order) {
                let visit = self.visit(round, peer, &mut progress)?;
                // Round 0 warms up, and is discarded.
                if round > 0 {
                    self.visits.push(visit);
                }
            }
        }
        Ok(())
    }

    /// Visits one peer. A test that fails is reported and left out. An interrupt ends the run.
    fn visit(&mut self, round: u32, index: usize, progress: &mut Progress) -> anyhow::Result<Visit> {
        let installed = self.installed.get(index).context("the peer is one of those installed")?.clone();
        let name = installed.peer.to_string();
        let tests = self.shuffle.shuffled(&self.tests);
        let mut visit = Visit { peer: index, round, ..Visit::default() };
        progress.visit(round, &name);
        let mut failed = Vec::new();
        if let Err(error) = self.measure(&installed, &tests, &mut visit, progress, &mut failed) {
            failed.push(format!("{name} did not work: {error:#}"));
        }
        // Tests that fail because of an interrupt get no remark.
        self.interrupt.check()?;
        for failure in failed {
            progress.remark(&failure);
            if !self.remarks.contains(&failure) {
                self.remarks.push(failure);
            }
        }
        // The progress bar must not plan time for tests that failed.
        let missing = self.plan.tests.saturating_sub(u32::try_from(visit.outcomes.len()).unwrap_or(0));
        progress.visited(round, missing);
        Ok(visit)
    }

    fn measure(
        &self,
        installed: &Installed,
        tests: &[Test],
        visit: &mut Visit,
        progress: &mut Progress,
        failed: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let name = installed.peer.to_string();
        let topology = self.topology()?;
        let tunnel = installed.start(&topology, self.interrupt)?;
        let iperf = Iperf::start(&topology, &tunnel.client_address, self.interrupt)?;
        visit.setup_ms = tunnel.setup.map(|time| time.as_secs_f64() * 1e3);
        let bed = Bed { topology: &topology, tunnel: &tunnel, iperf: &iperf, interrupt: self.interrupt };
        for &test in tests {
            progress.test(visit.round, &name, test.name());
            match bed.run(test, self.plan.test_seconds(visit.round)) {
                Ok(outcome) => {
                    visit.outcomes.push((test, outcome));
                    progress.tested(visit.round);
                }
                Err(error) => failed.push(format!("{name} failed in {test}: {error:#}")),
            }
            self.interrupt.check()?;
        }
        // Peak memory must be read before `tunnel` is dropped, because dropping it ends the processes.
        visit.client_peak_rss_mib = measure::peak_rss_mib(&tunnel.client_pids);
        visit.exit_peak_rss_mib = measure::peak_rss_mib(&tunnel.exit_pids);
        Ok(())
    }

    fn topology(&self) -> anyhow::Result<Topology> {
        let topology = Topology::create()?;
        if self.args.track {
            topology.track_connections()?;
        }
        Ok(topology)
    }

    /// Visits each peer once more and profiles its processes with perf. If perf cannot be used, adds a remark.
    fn profile(&mut self) -> anyhow::Result<()> {
        if let Err(error) = peers::install_profiler(self.interrupt) {
            self.interrupt.check()?;
            let remark = format!("no profile is taken: perf is not on this machine: {error:#}");
            eprintln!("{remark}");
            self.remarks.push(remark);
            return Ok(());
        }
        let Some(&test) = self.tests.first() else { return Ok(()) };
        let mut remarks = Vec::new();
        for installed in &self.installed {
            if let Err(error) = self.profile_one(installed, test) {
                self.interrupt.check()?;
                let remark = format!("{} is not profiled: {error:#}", installed.peer);
                eprintln!("{remark}");
                remarks.push(remark);
            }
        }
        self.remarks.append(&mut remarks);
        Ok(())
    }

    fn profile_one(&self, installed: &Installed, test: Test) -> anyhow::Result<()> {
        let topology = self.topology()?;
        let tunnel = installed.start(&topology, self.interrupt)?;
        // A peer without VPN processes cannot be profiled.
        if tunnel.client_pids.is_empty() {
            return Ok(());
        }
        let iperf = Iperf::start(&topology, &tunnel.client_address, self.interrupt)?;
        let bed = Bed { topology: &topology, tunnel: &tunnel, iperf: &iperf, interrupt: self.interrupt };
        eprintln!("profiling {} in {test}", installed.peer);
        let profile = profile::record(&bed, test, self.plan.seconds)?;
        profile.publish(&installed.peer.to_string(), &self.args.output, !self.args.json)
    }
}
