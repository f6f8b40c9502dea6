//! The report of a run: tables for terminal and Markdown, and JSON with every figure of every round.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use serde::Serialize;

use super::{
    peers::{Installed, Kind},
    plan::Test,
    results::{Figure, Metric, Visit},
};
use crate::report::{Machine, Table, commit, figure, json, write};

/// If the load average before the run exceeds this value, the report says that the machine was busy.
const BUSY: f64 = 0.7;

/// The report of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The commit of this repository's tree, from which Warren and the copier were built.
    pub(super) commit: String,
    pub(super) machine: Machine,
    pub(super) busy: bool,
    pub(super) seed: u64,
    pub(super) seconds: u32,
    /// Number of rounds that were kept.
    pub(super) rounds: u32,
    pub(super) peers: Vec<PeerReport>,
    /// Messages about peers and tests that were skipped or failed.
    pub(super) remarks: Vec<String>,
    pub(super) visits: Vec<Visit>,
    #[serde(skip)]
    rows: Vec<Metric>,
    /// Index of the peer whose medians the table of ratios divides by those of the other peers.
    #[serde(skip)]
    base: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(super) struct PeerReport {
    pub(super) name: String,
    pub(super) version: String,
    /// The SHA-256 of each of the peer's programs, in hexadecimal.
    programs: Vec<String>,
    figures: BTreeMap<String, Figure>,
}

impl Report {
    pub(super) fn new(
        machine: Machine,
        (seed, seconds): (u64, u32),
        installed: &[Installed],
        tests: &[Test],
        visits: Vec<Visit>,
        remarks: Vec<String>,
    ) -> Self {
        let rows = Metric::of(tests);
        let peer = |(index, installed): (usize, &Installed)| PeerReport {
            name: installed.peer.to_string(),
            version: installed.version.clone(),
            programs: installed.fingerprints(),
            figures: rows
                .iter()
                .filter_map(|&row| Some((row.key(), Figure::of(row, index, &visits)?)))
                .collect(),
        };
        Self {
            commit: commit(),
            busy: machine.load.parse::<f64>().is_ok_and(|load| load > BUSY),
            machine,
            seed,
            seconds,
            rounds: visits.iter().map(|visit| visit.round).max().unwrap_or(0),
            peers: installed.iter().enumerate().map(peer).collect(),
            remarks,
            base: installed.iter().position(|installed| installed.peer.kind == Kind::Warren),
            rows,
            visits,
        }
    }

    /// Makes the table of medians, with a row for each figure and a column for each peer.
    pub(super) fn table(&self) -> Table {
        self.by_peer("median of rounds", |figure| cell(figure.median))
    }

    /// Makes a table of Warren's medians divided by those of each other peer. None if Warren or all other peers are missing.
    pub(super) fn ratios(&self) -> Option<Table> {
        let base = self.peers.get(self.base?)?;
        if self.peers.len() < 2 {
            return None;
        }
        // The other peers include other variants of Warren.
        let others: Vec<_> = self.peers.iter().filter(|peer| peer.name != base.name).collect();
        let mut header = vec![format!("{} divided by", base.name)];
        header.extend(others.iter().map(|peer| peer.name.clone()));
        let mut rows = vec![header];
        for row in &self.rows {
            let Some(own) = base.figures.get(&row.key()) else { continue };
            let ratio = |peer: &&PeerReport| {
                let other = peer.figures.get(&row.key());
                // A figure of 0, such as the loss of a peer without losses, has no ratio.
                let other = other.map(|figure| figure.median).filter(|median| *median > 0.0);
                other.map_or_else(|| "-".to_owned(), |other| cell(own.median / other))
            };
            let mut cells = vec![row.title()];
            cells.extend(others.iter().map(ratio));
            rows.push(cells);
        }
        Some(Table::from_rows(rows))
    }

    pub(super) fn conditions(&self) -> String {
        let mut text = format!(
            "{}, {}\n{} rounds of {} s a test after a discarded one, order shuffled with seed {}\n",
            self.machine, self.commit, self.rounds, self.seconds, self.seed
        );
        if self.busy {
            text += "The machine was busy with other programs: compare figures within this run only. They are noisy.\n";
        }
        text
    }

    pub(super) fn markdown(&self) -> String {
        // In Markdown, two spaces at the end of a line keep the line break.
        let mut text =
            format!("# VPN comparison\n\n{}\n", self.conditions().trim_end().replace('\n', "  \n"));
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{}", self.table());
        if let Some(ratios) = self.ratios() {
            let _ = write!(text, "\n{ratios}");
        }
        let range = |figure: &Figure| format!("{} - {}", cell(figure.lowest), cell(figure.highest));
        let _ = write!(text, "\n{}", self.by_peer("lowest - highest round", range));
        text += "\n";
        for peer in &self.peers {
            let programs = peer.programs.iter().map(|program| program.get(..12).unwrap_or(program));
            let programs: Vec<_> = programs.map(|program| format!(", SHA-256 {program}...")).collect();
            let _ = writeln!(text, "- {}: {}{}", peer.name, peer.version, programs.concat());
        }
        for remark in &self.remarks {
            let _ = writeln!(text, "- {remark}");
        }
        text
    }

    /// Returns every peer's medians by their JSON names.
    pub(super) fn medians(&self) -> BTreeMap<&str, BTreeMap<&str, f64>> {
        let mut medians: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
        for peer in &self.peers {
            let figures = peer.figures.iter().map(|(key, figure)| (key.as_str(), figure.median));
            medians.entry(&peer.name).or_default().extend(figures);
        }
        medians
    }

    /// Writes the Markdown and JSON files.
    pub(super) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write(&directory.join("vpn.md"), &self.markdown())?;
        write(&directory.join("vpn.json"), &(json(self)? + "\n"))
    }

    /// Returns whether any peer has this figure.
    pub(super) fn has(&self, metric: Metric) -> bool {
        self.peers.iter().any(|peer| peer.figures.contains_key(&metric.key()))
    }

    fn by_peer(&self, title: &str, show: impl Fn(&Figure) -> String) -> Table {
        let mut header = vec![title.to_owned()];
        header.extend(self.peers.iter().map(|peer| peer.name.clone()));
        let mut rows = vec![header];
        for row in &self.rows {
            let figures: Vec<_> = self.peers.iter().map(|peer| peer.figures.get(&row.key())).collect();
            if figures.iter().any(Option::is_some) {
                let mut cells = vec![row.title()];
                cells.extend(figures.into_iter().map(|figure| figure.map_or_else(|| "-".to_owned(), &show)));
                rows.push(cells);
            }
        }
        Table::from_rows(rows)
    }
}

fn cell(value: f64) -> String {
    figure(value, (0.01, 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{vpn::plan::Outcome, way::Ways};

    const UP: Test = Test::Tcp { flows: 1, ways: Ways::Up };

    impl Report {
        pub(in crate::vpn) fn for_test() -> Self {
            report()
        }
    }

    fn report() -> Report {
        let installed = |name: &str| Installed::for_test(name.parse().unwrap());
        let visit = |peer, round, rate| {
            let outcome = Outcome { up_gbit_per_s: Some(rate), gigabytes: 1.0, ..Outcome::default() };
            Visit { peer, round, outcomes: vec![(UP, outcome)], ..Visit::default() }
        };
        let visits = vec![visit(0, 1, 12.0), visit(1, 1, 5.0), visit(1, 2, 6.0), visit(0, 2, 10.0)];
        let machine = Machine {
            cpu: "CPU".into(),
            cores: 2,
            kernel: "6.1".into(),
            tcp: "cubic".into(),
            load: "0.1".into(),
        };
        let remarks = vec!["openvpn skipped: no network".to_owned()];
        Report::new(machine, (7, 3), &[installed("tun-copy"), installed("warren")], &[UP], visits, remarks)
    }

    #[test]
    fn tables_have_a_column_for_each_peer_and_warrens_share_of_it() {
        let report = report();
        let table = report.table().to_string();
        assert!(table.contains("| median of rounds"), "{table}");
        assert!(table.lines().any(|line| line.starts_with("| TCP x1 up, Gbit/s")
            && line.contains("11.0")
            && line.contains("5.50")));
        assert!(!table.contains("setup"), "no visit had one: {table}");
        let ratios = report.ratios().unwrap().to_string();
        assert!(
            ratios.lines().any(|line| line.starts_with("| TCP x1 up, Gbit/s") && line.contains("0.50")),
            "{ratios}"
        );
    }

    #[test]
    fn files_say_under_which_conditions() {
        let markdown = report().markdown();
        for expected in ["seed 7", "2 rounds of 3 s", "- openvpn skipped: no network", "10.0 - 12.0"] {
            assert!(markdown.contains(expected), "{expected} in {markdown}");
        }
        assert!(!markdown.contains("busy"));
        let directory = tempfile::tempdir().unwrap();
        report().write(directory.path()).unwrap();
        let json = std::fs::read_to_string(directory.path().join("vpn.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            json.pointer("/peers/1/figures/tcp1-up~1gbit_per_s/median"),
            Some(&serde_json::json!(5.5))
        );
        assert!(json["commit"].as_str().is_some_and(|commit| commit.contains("commit")), "{json}");
        assert_eq!(report().medians()["tun-copy"]["tcp1-up/gbit_per_s"], 11.0);
        assert_eq!(json.pointer("/visits/0/outcomes/tcp1-up/gigabytes"), Some(&serde_json::json!(1.0)));
    }
}
