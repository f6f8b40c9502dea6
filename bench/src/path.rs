//! `path`: compares whole tunnels over emulated paths: loss, bursts, delay, jitter, reordering, full queues.
//!
//! Every round visits each tunnel on each path. The order of the tunnels is reversed from one round to the next. A visit makes
//! two hosts with a wire between them (`named` has the paths), brings the tunnel up as its users do, runs all tests (`bed`) and
//! removes the tunnel, the wire and the hosts. Bulk traffic is TCP (`flows`). Real-time traffic is numbered UDP packets
//! (`stream`). `meter` measures the cost of the traffic, and checks that the traffic went through the tunnel. The results of each
//! visit are saved (`results`), so that an interrupted run can be resumed.

mod bed;
mod device;
mod flows;
mod meter;
mod named;
mod outcome;
mod plots;
mod report;
mod results;
mod stream;
mod subject;
mod test;

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;

use self::{
    bed::Bed,
    named::Path,
    results::{Plan, Results, Visit},
    subject::Subject,
    test::{Congestion, Test},
};
use crate::{
    interrupt::Interrupt,
    progress,
    report::{Machine, commit, make_directory, print, print_json},
    vpn::{
        measure,
        peers::Installed,
        schedule::Shuffle,
        topology::{self, Topology},
    },
};

/// The file with all results. `--resume` reads this file. A run without `--resume` first renames it to `OLD_FILE`.
const FILE: &str = "path.json";
const OLD_FILE: &str = "path.old.json";
/// Maximum number of attempts to bring a tunnel up.
const ATTEMPTS: u32 = 3;

/// Average time that a test takes in addition to warm-up and measurement: to start, to end and to wait for late packets.
const TEST_OVERHEAD: Duration = Duration::from_millis(1_300);
/// Time to make the hosts, bring a tunnel up, and remove tunnel and hosts.
const VISIT_OVERHEAD: Duration = Duration::from_secs(4);

/// The arguments of `path`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Tunnels, separated by commas: none, wireguard-go, openvpn, warren and other peers of `vpn`.
    /// warren:KEY=VALUE+KEY=VALUE sets keys of [transport]; section.KEY sets other keys, binary=PATH another program and
    /// name=NAME the name in tables [default: none,wireguard-go,warren]
    #[arg(long, value_delimiter = ',', value_name = "TUNNELS")]
    tunnels: Vec<Subject>,
    /// Paths, separated by commas; an unknown name lists them. NAME:KEY=VALUE+KEY=VALUE is a path of your own with
    /// settings of `wire` [default: all; with --subset clean,0.1%,1%,5%]
    #[arg(long, value_delimiter = ',', value_name = "PATHS")]
    paths: Vec<Path>,
    /// Tests, separated by commas; an unknown name lists them. A name without -up or -down means the direction down
    /// [default: all; with --subset five]
    #[arg(long, value_delimiter = ',', value_name = "TESTS")]
    tests: Vec<Test>,
    /// Measured seconds of each test [default: 8; with --subset 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Seconds of each test before they are measured
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=600))]
    warm_up: u32,
    /// Rounds [default: 3; with --subset 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measure what the README shows, in under 20 minutes
    #[arg(long)]
    subset: bool,
    /// Seed of the paths' losses and of the order of tests [default: 1]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the JSON, Markdown and SVG files
    #[arg(long, value_name = "DIRECTORY", default_value = "target/warren-bench/path")]
    output: PathBuf,
    /// Continue the run whose results are in the directory, and measure only what they lack
    #[arg(long)]
    resume: bool,
    /// Print the whole result as one line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Compares tunnels over paths, and prints and writes the results.
///
/// If a step fails or the user interrupts, it still publishes the earlier measurements. It always removes its namespaces and ends
/// its processes.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    make_directory(&args.output)?;
    topology::remove_leftovers();
    let mut session = Session::new(args, &interrupt)?;
    let ended = session.run();
    let Session { paths, results, .. } = session;
    if results.visits.iter().all(|visit| visit.outcomes.is_empty()) {
        // If the run ended with an error, this error explains more than the message about missing figures below.
        ended?;
        anyhow::bail!("no tunnel gave a figure: {}", results.remarks.join("; "));
    }
    publish(&results, &paths, args)?;
    ended
}

fn publish(results: &Results, paths: &[Path], args: &Args) -> anyhow::Result<()> {
    results.write(&args.output.join(FILE))?;
    let mut names: Vec<_> = paths.iter().map(|path| path.name.clone()).collect();
    // With --resume, the results may include paths that the user did not name this time.
    names.extend(results.paths.keys().filter(|name| paths.iter().all(|path| path.name != **name)).cloned());
    report::write(results, &names, &args.output)?;
    plots::write(results, paths, &args.output)?;
    if args.json {
        return print_json(results);
    }
    print(&format!("{}\n\n{}", report::conditions(results), report::medians(results, &names)))?;
    print(&report::memory(results).to_string())?;
    for line in report::shortfalls(results, &names).iter().chain(&results.remarks) {
        print(line)?;
    }
    print(&format!("{FILE}, path.md and plots are in {}", args.output.display()))
}

/// A run in progress.
struct Session<'a> {
    interrupt: &'a Interrupt,
    installed: Vec<(Subject, Installed)>,
    paths: Vec<Path>,
    tests: Vec<Test>,
    /// Whether the user chose the tests with `--tests`.
    tests_are_given: bool,
    rounds: u32,
    results: Results,
    file: PathBuf,
}

impl<'a> Session<'a> {
    /// Finds the tunnels. Reports and skips a tunnel that cannot be installed.
    fn new(args: &Args, interrupt: &'a Interrupt) -> anyhow::Result<Self> {
        let or = |given: Option<u32>, full, subset| given.unwrap_or(if args.subset { subset } else { full });
        let file = args.output.join(FILE);
        let mut results = if args.resume {
            Results::read(&file)?
        } else {
            // The results of an earlier run may have taken hours to measure, so they are kept. Without such results, the rename
            // fails, which does no harm.
            let _ = std::fs::rename(&file, args.output.join(OLD_FILE));
            empty()
        };
        // A resumed run uses the seed of the saved results unless the user gives one. The check below refuses a different seed.
        let seed = args.seed.unwrap_or(if args.resume { results.plan.seed } else { 1 });
        let plan = Plan { seconds: or(args.seconds, 8, 4), warm_up: args.warm_up, seed };
        anyhow::ensure!(
            !args.resume || plan == results.plan,
            "the results in {} were measured with --seconds {} --warm-up {} --seed {}; give the same to continue",
            file.display(),
            results.plan.seconds,
            results.plan.warm_up,
            results.plan.seed
        );
        results.plan = plan;
        // The saved remarks report failures of the earlier run. This run repeats the failed tests, so the remarks are removed.
        results.remarks.clear();
        let paths = chosen(&args.paths, args.subset, Path::all, || {
            // All four names parse, because they are in `named`.
            ["clean", "0.1%", "1%", "5%"].iter().filter_map(|name| name.parse().ok()).collect()
        });
        for path in &paths {
            results.add_path(&path.name, &path.to_string())?;
        }
        let mut tests = chosen(&args.tests, args.subset, Test::all, Test::subset);
        // BBR is an optional module of the kernel.
        if let Err(error) = Congestion::Bbr.check() {
            let all = tests.len();
            tests.retain(|test| !matches!(test, Test::Tcp { congestion: Congestion::Bbr, .. }));
            if tests.len() < all {
                remark(&mut results, format!("the tests with BBR are left out: {error:#}"));
            }
        }
        // --subset does not change the tunnels.
        let subjects = chosen(&args.tunnels, false, Subject::of_default_run, Vec::new);
        let mut installed = Vec::new();
        for subject in subjects {
            match Installed::find(&subject.0, interrupt) {
                Ok(found) => {
                    results.add_tunnel(results::Tunnel {
                        name: subject.to_string(),
                        version: found.version.clone(),
                        programs: found.fingerprints(),
                    })?;
                    installed.push((subject, found));
                }
                Err(error) => {
                    interrupt.check()?;
                    remark(&mut results, format!("{subject} is skipped: {error:#}"));
                }
            }
        }
        let rounds = or(args.rounds, 3, 2);
        let tests_are_given = !args.tests.is_empty();
        Ok(Self { interrupt, installed, paths, tests, tests_are_given, rounds, results, file })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        self.warm_up()?;
        // The lists are cloned, because `visit` borrows `self` mutably.
        let (paths, installed) = (self.paths.clone(), self.installed.clone());
        for round in 1..=self.rounds {
            for path in &paths {
                for (subject, found) in in_turn(&installed, round) {
                    let name = subject.to_string();
                    let tests = self.left(&path.name, &name, round);
                    if tests.is_empty() {
                        continue;
                    }
                    let left = progress::left(self.planned());
                    eprintln!("round {round} of {}, {}, {name}, about {left}", self.rounds, path.name);
                    let tests = self.shuffled(&tests, round);
                    let plan = self.results.plan;
                    let visit = self.visit((path, found), &name, round, (&tests, plan));
                    self.results.add(visit);
                    // The results are saved after each visit, so that an interrupted run can be resumed.
                    self.results.write(&self.file)?;
                    self.interrupt.check()?;
                }
            }
        }
        Ok(())
    }

    /// Returns the tests of a visit that have no result yet.
    fn left(&self, path: &str, tunnel: &str, round: u32) -> Vec<Test> {
        let here = |test: &&Test| self.tests_are_given || test.runs_on(path);
        let tests: Vec<_> = self.tests.iter().filter(here).copied().collect();
        self.results.left((path, tunnel, round), &tests)
    }

    /// Returns the planned time of all tests that have no result yet.
    fn planned(&self) -> Duration {
        let Plan { seconds, warm_up, .. } = self.results.plan;
        let test = Duration::from_secs((seconds + warm_up).into()) + TEST_OVERHEAD;
        let mut time = Duration::ZERO;
        for round in 1..=self.rounds {
            for (path, (subject, _)) in
                self.paths.iter().flat_map(|path| self.installed.iter().map(move |one| (path, one)))
            {
                let tests = self.left(&path.name, &subject.to_string(), round).len();
                let visit = if tests == 0 { Duration::ZERO } else { VISIT_OVERHEAD };
                time += visit + test * u32::try_from(tests).unwrap_or(u32::MAX);
            }
        }
        time
    }

    /// Visits each tunnel once with tests of one second, to warm up programs and caches. The figures are discarded.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        let (Some(path), Some(&test)) = (self.paths.first().cloned(), self.tests.first()) else {
            return Ok(());
        };
        let short = Plan { seconds: 1, warm_up: 0, ..self.results.plan };
        for (subject, found) in self.installed.clone() {
            let name = subject.to_string();
            eprintln!("warm-up, {}, {name}", path.name);
            self.visit((&path, &found), &name, 0, (&[test], short));
            self.interrupt.check()?;
        }
        Ok(())
    }

    /// Returns the tests in a random order that is the same for all tunnels of a round.
    fn shuffled(&self, tests: &[Test], round: u32) -> Vec<Test> {
        // The order depends only on seed and round, so a resumed run has the same order.
        Shuffle::new(self.results.plan.seed.wrapping_add(u64::from(round))).shuffled(tests)
    }

    /// Visits one tunnel on one path. A failed test is reported and left out.
    fn visit(
        &mut self,
        (path, found): (&Path, &Installed),
        name: &str,
        round: u32,
        (tests, plan): (&[Test], Plan),
    ) -> Visit {
        let mut visit = Visit { path: path.name.clone(), tunnel: name.to_owned(), round, ..Visit::default() };
        let mut failures = Vec::new();
        // `measure` returns an error only before its first test, so another attempt repeats no test.
        for attempt in 1..=ATTEMPTS {
            match measure(path, found, (tests, plan), self.interrupt, &mut visit) {
                Ok(failed) => {
                    failures.extend(failed);
                    break;
                }
                Err(error) if attempt == ATTEMPTS || self.interrupt.is_set() => {
                    failures.push(format!("did not work: {error:#}"));
                    break;
                }
                Err(error) => eprintln!("{name} on {}: {error:#}; trying again", path.name),
            }
        }
        // Tests that fail because of an interrupt get no remark.
        if !self.interrupt.is_set() {
            for failure in failures {
                remark(&mut self.results, format!("{name} on {} {failure}", path.name));
            }
        }
        visit
    }
}

/// Brings a tunnel up and runs the tests. Returns the failures of single tests.
fn measure(
    path: &Path,
    installed: &Installed,
    (tests, plan): (&[Test], Plan),
    interrupt: &Interrupt,
    visit: &mut Visit,
) -> anyhow::Result<Vec<String>> {
    // All tunnels of a round get the same seed, so the wire drops the same frames of each tunnel as long as the tunnels send the
    // same number of frames. The factor keeps the seeds of this run's rounds apart from those of a run with the next seed.
    let seed = plan.seed.wrapping_mul(1_000).wrapping_add(visit.round.into());
    let topology = Topology::create_over_seeded(&path.settings(), seed)?;
    let tunnel = installed.start(&topology, interrupt)?;
    let time = |seconds: u32| Duration::from_secs(seconds.into());
    let times = (time(plan.seconds), time(plan.warm_up));
    let bed = Bed::new((&topology, &tunnel), path, times, interrupt).context("cannot test the tunnel")?;
    let mut failed = Vec::new();
    for &test in tests {
        match bed.run(test) {
            Ok(Some(outcome)) => {
                visit.outcomes.insert(test.name(), outcome);
            }
            Ok(None) => visit.left_out.push(test.name()),
            Err(error) => failed.push(format!("failed in {test}: {error:#}")),
        }
        if interrupt.is_set() {
            break;
        }
    }
    // Peak memory must be read before `tunnel` is dropped, because dropping it ends the processes.
    visit.client_peak_rss_mib = measure::peak_rss_mib(&tunnel.client_pids);
    visit.exit_peak_rss_mib = measure::peak_rss_mib(&tunnel.exit_pids);
    Ok(failed)
}

/// Returns the tunnels in the given order in odd rounds and in reverse order in even rounds.
fn in_turn<T>(tunnels: &[T], round: u32) -> Vec<&T> {
    // Alternating the order spreads a steady drift of the machine's speed evenly over the tunnels.
    if round.is_multiple_of(2) { tunnels.iter().rev().collect() } else { tunnels.iter().collect() }
}

fn chosen<T: Clone>(
    given: &[T],
    subset: bool,
    full: impl Fn() -> Vec<T>,
    part: impl Fn() -> Vec<T>,
) -> Vec<T> {
    match (given.is_empty(), subset) {
        (false, _) => given.to_vec(),
        (true, false) => full(),
        (true, true) => part(),
    }
}

fn empty() -> Results {
    Results {
        plan: Plan { seconds: 0, warm_up: 0, seed: 0 },
        conditions: format!("{}, {}", Machine::here(), commit()),
        tunnels: Vec::new(),
        paths: std::collections::BTreeMap::new(),
        visits: Vec::new(),
        remarks: Vec::new(),
    }
}

/// Prints a remark, and adds it to the results unless they already have it.
fn remark(results: &mut Results, text: String) {
    eprintln!("{text}");
    if !results.remarks.contains(&text) {
        results.remarks.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_the_tunnels_alternates() {
        assert_eq!(in_turn(&[1, 2, 3], 1), [&1, &2, &3]);
        assert_eq!(in_turn(&[1, 2, 3], 2), [&3, &2, &1]);
    }
}
