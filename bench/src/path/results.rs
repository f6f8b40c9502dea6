//! The results of a run in the form of the JSON file, and the computation of the tests that are still to be measured.

use std::{collections::BTreeMap, path::Path as FilePath};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{
    outcome::{Figure, Outcome},
    test::Test,
};
use crate::{report, stats::Sample};

/// The parameters of a run. A run can be resumed only with the same parameters.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Plan {
    /// Measured seconds of a test.
    pub(super) seconds: u32,
    /// Seconds of warm-up before the measurement.
    pub(super) warm_up: u32,
    pub(super) seed: u64,
}

/// A tunnel that was measured.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Tunnel {
    pub(super) name: String,
    pub(super) version: String,
    /// The SHA-256 of each of the tunnel's programs, in hexadecimal.
    pub(super) programs: Vec<String>,
}

/// The results of one tunnel over one path in one round.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Visit {
    pub(super) path: String,
    pub(super) tunnel: String,
    pub(super) round: u32,
    pub(super) outcomes: BTreeMap<String, Outcome>,
    /// Names of the tests that were not run, because the path is too slow for their UDP rate or has no rate.
    pub(super) left_out: Vec<String>,
    pub(super) client_peak_rss_mib: Option<f64>,
    pub(super) exit_peak_rss_mib: Option<f64>,
}

/// All results of a run so far.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Results {
    pub(super) plan: Plan,
    /// The commit of this repository, and a description of the machine.
    pub(super) conditions: String,
    pub(super) tunnels: Vec<Tunnel>,
    /// The paths' settings by name.
    pub(super) paths: BTreeMap<String, String>,
    pub(super) visits: Vec<Visit>,
    pub(super) remarks: Vec<String>,
}

impl Results {
    /// Reads the results of an interrupted run.
    pub(super) fn read(file: &FilePath) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| {
            format!("cannot read {}; leave --resume out to start a new run", file.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("cannot understand {}", file.display()))
    }

    /// Writes the results. If the program crashes, the file has either the old or the new results, and never a part of them.
    pub(super) fn write(&self, file: &FilePath) -> anyhow::Result<()> {
        // The new file is in the same directory, because rename(2) does not cross file systems.
        let new = file.with_extension("json.new");
        report::write(&new, &(report::json(self)? + "\n"))?;
        // rename(2) replaces the file atomically.
        std::fs::rename(&new, file).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Adds a tunnel. Fails if the results have a different tunnel with the same name.
    pub(super) fn add_tunnel(&mut self, tunnel: Tunnel) -> anyhow::Result<()> {
        match self.tunnels.iter().find(|known| known.name == tunnel.name) {
            None => self.tunnels.push(tunnel),
            Some(known) => anyhow::ensure!(
                known.programs == tunnel.programs,
                "the results have another program named {}; give this one another name with name=NAME",
                tunnel.name
            ),
        }
        Ok(())
    }

    /// Adds a path. Fails if the results have a path with the same name and different settings.
    pub(super) fn add_path(&mut self, name: &str, settings: &str) -> anyhow::Result<()> {
        let known = self.paths.entry(name.to_owned()).or_insert_with(|| settings.to_owned());
        anyhow::ensure!(known == settings, "the results have another path {name}: {known}");
        Ok(())
    }

    /// Returns those of `tests` that have no result for this visit yet, in the given order.
    pub(super) fn left(&self, (path, tunnel, round): (&str, &str, u32), tests: &[Test]) -> Vec<Test> {
        let visit = self.visits.iter().find(|visit| visit.is(path, tunnel, round));
        let is_left = |test: &&Test| visit.is_none_or(|visit| !visit.has(&test.name()));
        tests.iter().filter(is_left).copied().collect()
    }

    /// Adds a visit. If the results already have this visit, adds the new tests to it.
    pub(super) fn add(&mut self, new: Visit) {
        let same = |visit: &&mut Visit| visit.is(&new.path, &new.tunnel, new.round);
        let Some(visit) = self.visits.iter_mut().find(same) else { return self.visits.push(new) };
        visit.outcomes.extend(new.outcomes);
        visit.left_out.extend(new.left_out);
        // A resumed visit ran in new processes, so the peak of the visit is the larger one of the two peaks.
        let most = |one: Option<f64>, other: Option<f64>| one.into_iter().chain(other).reduce(f64::max);
        visit.client_peak_rss_mib = most(visit.client_peak_rss_mib, new.client_peak_rss_mib);
        visit.exit_peak_rss_mib = most(visit.exit_peak_rss_mib, new.exit_peak_rss_mib);
    }

    /// Returns the values of a figure over the rounds. None if no round has the figure.
    pub(super) fn sample(&self, path: &str, tunnel: &str, test: &str, figure: Figure) -> Option<Sample> {
        let outcomes = self.outcomes(path, tunnel, test);
        Sample::new(outcomes.filter_map(|outcome| outcome.figures.get(&figure).copied()).collect())
    }

    /// Returns all round-trip times of a test, over all rounds.
    pub(super) fn round_trip_times(&self, path: &str, tunnel: &str, test: &str) -> Vec<f64> {
        self.outcomes(path, tunnel, test).flat_map(|outcome| outcome.rtt_ms.iter().copied()).collect()
    }

    /// Returns the largest memory use of a tunnel's client, and that of its exit, over all paths and rounds.
    pub(super) fn peak_rss_mib(&self, tunnel: &str) -> (Option<f64>, Option<f64>) {
        let most = |of: fn(&Visit) -> Option<f64>| {
            self.visits.iter().filter(|visit| visit.tunnel == tunnel).filter_map(of).reduce(f64::max)
        };
        (most(|visit| visit.client_peak_rss_mib), most(|visit| visit.exit_peak_rss_mib))
    }

    fn outcomes<'a>(
        &'a self,
        path: &'a str,
        tunnel: &'a str,
        test: &'a str,
    ) -> impl Iterator<Item = &'a Outcome> {
        let visits = self.visits.iter().filter(move |visit| visit.path == path && visit.tunnel == tunnel);
        visits.filter_map(move |visit| visit.outcomes.get(test))
    }
}

impl Visit {
    fn is(&self, path: &str, tunnel: &str, round: u32) -> bool {
        self.path == path && self.tunnel == tunnel && self.round == round
    }

    fn has(&self, test: &str) -> bool {
        self.outcomes.contains_key(test) || self.left_out.iter().any(|left_out| left_out == test)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Makes results with two tunnels over two paths.
    pub(in crate::path) fn results() -> Results {
        let tunnel = |name: &str| Tunnel {
            name: name.to_owned(),
            version: "1".to_owned(),
            programs: vec![format!("{name}'s hash")],
        };
        let mut results = Results {
            plan: Plan { seconds: 8, warm_up: 2, seed: 7 },
            conditions: "CPU, 2 cores".to_owned(),
            tunnels: vec![tunnel("wireguard-go"), tunnel("warren")],
            paths: BTreeMap::new(),
            visits: Vec::new(),
            remarks: vec!["openvpn is skipped: no network".to_owned()],
        };
        for (path, name, rates) in [
            ("clean", "wireguard-go", [182.0, 183.0, 184.0]),
            ("clean", "warren", [180.0, 183.0, 182.0]),
            ("1%", "wireguard-go", [3.5, 3.7, 3.9]),
            ("1%", "warren", [150.0, 170.0, 160.0]),
        ] {
            for (round, rate) in (1..).zip(rates) {
                results.add(visit(path, name, round, rate));
            }
        }
        results
    }

    fn visit(path: &str, tunnel: &str, round: u32, rate: f64) -> Visit {
        let tcp = Outcome::default().with(Figure::MbitPerS, rate);
        let ping = Outcome { rtt_ms: vec![30.0, 31.0, 40.0], ..Outcome::default() }
            .with(Figure::RttMedianMs, 31.0)
            .with(Figure::RttP99Ms, 40.0)
            .with(Figure::LostPercent, if tunnel == "warren" { 2.0 } else { 1.0 });
        Visit {
            path: path.to_owned(),
            tunnel: tunnel.to_owned(),
            round,
            outcomes: [("tcp1-down".to_owned(), tcp), ("ping-beside-down".to_owned(), ping)].into(),
            client_peak_rss_mib: Some(20.0 + rate / 100.0),
            ..Visit::default()
        }
    }

    #[test]
    fn interrupted_run_goes_on_where_it_ended() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("path.json");
        results().write(&file).unwrap();
        let mut read = Results::read(&file).unwrap();
        assert_eq!(read, results());
        let tests: Vec<Test> = ["tcp1-down", "udp40"].map(|name| name.parse().unwrap()).to_vec();
        assert_eq!(read.left(("1%", "warren", 3), &tests), tests[1..]);
        assert_eq!(read.left(("1%", "warren", 4), &tests), tests);
        let left_out = vec!["udp40-down".to_owned()];
        read.add(Visit { left_out, outcomes: BTreeMap::new(), ..visit("1%", "warren", 3, 1.0) });
        assert!(read.left(("1%", "warren", 3), &tests).is_empty());
        assert_eq!(read.visits.len(), results().visits.len());
        assert!(Results::read(&directory.path().join("x")).unwrap_err().to_string().contains("--resume"));
    }

    #[test]
    fn another_program_or_path_of_the_same_name_is_refused() {
        let mut results = results();
        let same = results.tunnels[1].clone();
        assert!(results.add_tunnel(same.clone()).is_ok());
        let other = Tunnel { programs: vec!["other".to_owned()], ..same };
        assert!(results.add_tunnel(other).unwrap_err().to_string().contains("name=NAME"));
        assert!(
            results.add_path("mine", "delay=1ms").is_ok() && results.add_path("mine", "delay=1ms").is_ok()
        );
        assert!(results.add_path("mine", "delay=2ms").is_err());
    }

    #[test]
    fn figures_are_those_of_one_path_and_tunnel() {
        let results = results();
        let sample = results.sample("1%", "warren", "tcp1-down", Figure::MbitPerS).unwrap();
        assert_eq!(sample.values(), [150.0, 170.0, 160.0]);
        assert!(results.sample("1%", "warren", "tcp1-up", Figure::MbitPerS).is_none());
        assert_eq!(results.round_trip_times("clean", "warren", "ping-beside-down").len(), 9);
        assert_eq!(results.peak_rss_mib("warren"), (Some(21.83), None));
    }
}
