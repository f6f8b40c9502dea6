//! The report of a run: a table of medians, a table of their ranges, and a list of the figures in which Warren is worse than
//! wireguard-go.

use std::{fmt::Write as _, path::Path as FilePath};

use super::{outcome::Figure, results::Results, test::Test};
use crate::{
    report::{self, Table, figure},
    stats::{Better, Comparison, Sample, Verdict},
};

/// The tunnel to which all other tunnels are compared.
const REFERENCE: &str = "wireguard-go";
/// A figure is reported as worse if it is worse by more than this share of the reference. A percentage must also be worse by more
/// than `POINTS` percentage points.
const TOLERANCE: f64 = 0.05;
const POINTS: f64 = 0.1;

/// One row of the table.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    path: String,
    test: Test,
    figure: Figure,
}

impl Row {
    fn title(&self) -> String {
        format!("{}: {}, {}", self.path, self.test.title(), self.figure.title())
    }

    fn sample(&self, results: &Results, tunnel: &str) -> Option<Sample> {
        results.sample(&self.path, tunnel, &self.test.name(), self.figure)
    }

    /// Returns the value that the table shows for a sample: its mean or its median.
    fn value(&self, sample: &Sample) -> f64 {
        if self.figure.is_pooled() { sample.mean() } else { sample.median() }
    }

    /// Returns a text that says how much worse `tunnel` is than `reference`. None if `tunnel` is not worse.
    fn is_worse(&self, results: &Results, reference: &str, tunnel: &str) -> Option<String> {
        let better = self.figure.better()?;
        let (a, b) = (self.sample(results, reference)?, self.sample(results, tunnel)?);
        let (old, new) = (self.value(&a), self.value(&b));
        let beyond = match better {
            Better::Higher => new < old * (1.0 - TOLERANCE),
            Better::Lower if self.figure.is_percent() => new > (old * (1.0 + TOLERANCE)).max(old + POINTS),
            Better::Lower => new > old * (1.0 + TOLERANCE),
        };
        if !beyond {
            return None;
        }
        let verdict = Comparison::new(&a, &b, TOLERANCE * 100.0, better).map(|found| found.verdict);
        let how = match verdict {
            Some(Verdict::Real { .. }) => "beyond the noise",
            Some(Verdict::Noise { .. } | Verdict::TooSmallToTell { .. }) => {
                "within the noise of these rounds"
            }
            None => "in too few rounds to tell",
        };
        Some(format!("{}: {} instead of {}, {how}", self.title(), cell(new), cell(old)))
    }
}

/// Returns a row for each measured figure, in the order of `paths` and of the tests.
fn rows(results: &Results, paths: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for path in paths {
        for test in Test::all() {
            let has = |figure: &Figure| {
                let mut tunnels = results.tunnels.iter();
                tunnels.any(|one| results.sample(path, &one.name, &test.name(), *figure).is_some())
            };
            let figures = Figure::ALL.into_iter().filter(|figure| test.shows(*figure)).filter(has);
            rows.extend(figures.map(|figure| Row { path: path.clone(), test, figure }));
        }
    }
    rows
}

/// Makes a table with a column for each tunnel.
fn table(results: &Results, rows: &[Row], title: &str, show: impl Fn(&Row, &Sample) -> String) -> Table {
    let names = || results.tunnels.iter().map(|tunnel| tunnel.name.clone());
    let mut cells = vec![[title.to_owned()].into_iter().chain(names()).collect::<Vec<_>>()];
    for row in rows {
        let value = |name: String| {
            row.sample(results, &name).map_or_else(|| "-".to_owned(), |sample| show(row, &sample))
        };
        cells.push([row.title()].into_iter().chain(names().map(value)).collect());
    }
    Table::from_rows(cells)
}

/// Returns the table of medians. For percentages, it has the means.
pub(super) fn medians(results: &Results, paths: &[String]) -> Table {
    table(results, &rows(results, paths), "median of rounds", |row, sample| cell(row.value(sample)))
}

/// Returns the table of each tunnel's peak memory.
pub(super) fn memory(results: &Results) -> Table {
    let show = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), cell);
    let mut table = Table::new(["peak RSS over all paths, MiB", "client", "exit"]);
    for tunnel in &results.tunnels {
        let (client, exit) = results.peak_rss_mib(&tunnel.name);
        table.row([tunnel.name.clone(), show(client), show(exit)]);
    }
    table
}

/// Returns lines of text that list, for each tunnel except `none`, the figures in which it is worse than wireguard-go.
pub(super) fn shortfalls(results: &Results, paths: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    if results.tunnels.iter().all(|tunnel| tunnel.name != REFERENCE) {
        return lines;
    }
    let rows = rows(results, paths);
    for tunnel in results.tunnels.iter().filter(|one| one.name != REFERENCE && one.name != "none") {
        let worse: Vec<_> =
            rows.iter().filter_map(|row| row.is_worse(results, REFERENCE, &tunnel.name)).collect();
        lines.push(format!("{} is worse than {REFERENCE} in {} rows.", tunnel.name, worse.len()));
        lines.extend(worse.into_iter().map(|line| format!("  {line}")));
    }
    lines
}

/// Returns the conditions of the run, as lines of text.
pub(super) fn conditions(results: &Results) -> String {
    let plan = results.plan;
    // An interrupted run has fewer rounds than the user requested.
    let rounds = results.visits.iter().map(|visit| visit.round).max().unwrap_or(0);
    format!(
        "{}\n{rounds} rounds of {} s a test after {} s that do not count, seed {}",
        results.conditions, plan.seconds, plan.warm_up, plan.seed
    )
}

/// Returns the whole report as Markdown.
pub(super) fn markdown(results: &Results, paths: &[String]) -> String {
    // In Markdown, two spaces at the end of a line keep the line break.
    let mut text = format!("# Paths\n\n{}\n\n", conditions(results).replace('\n', "  \n"));
    for path in paths {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {}", results.paths.get(path).unwrap_or(path));
    }
    let _ = write!(text, "\n{}", medians(results, paths));
    let _ = write!(text, "\n{}", memory(results));
    let range =
        |_: &Row, sample: &Sample| format!("{} - {}", cell(sample.quantile(0.0)), cell(sample.quantile(1.0)));
    let _ = write!(text, "\n{}", table(results, &rows(results, paths), "lowest - highest round", range));
    text += "\n";
    for line in shortfalls(results, paths) {
        // Lines that are indented in the terminal become list items in Markdown.
        let _ = writeln!(text, "{}", line.strip_prefix("  ").map_or(line.clone(), |row| format!("- {row}")));
    }
    text += "\n";
    for tunnel in &results.tunnels {
        let programs = tunnel.programs.iter().map(|program| program.get(..12).unwrap_or(program));
        let programs: Vec<_> = programs.map(|program| format!(", SHA-256 {program}...")).collect();
        let _ = writeln!(text, "- {}: {}{}", tunnel.name, tunnel.version, programs.concat());
    }
    for remark in &results.remarks {
        let _ = writeln!(text, "- {remark}");
    }
    text
}

/// Writes the Markdown file.
pub(super) fn write(results: &Results, paths: &[String], directory: &FilePath) -> anyhow::Result<()> {
    report::write(&directory.join("path.md"), &markdown(results, paths))
}

fn cell(value: f64) -> String {
    figure(value, (0.1, 3))
}

#[cfg(test)]
mod tests {
    use super::{super::results::tests::results, *};

    fn paths() -> Vec<String> {
        vec!["clean".to_owned(), "1%".to_owned()]
    }

    #[test]
    fn table_has_a_row_for_each_figure_and_a_column_for_each_tunnel() {
        let table = medians(&results(), &paths()).to_string();
        let line = |start: &str| table.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        let row = line("| 1%: CUBIC x1 down, Mbit/s");
        assert!(row.contains("3.70") && row.contains("160"), "{row}");
        assert!(line("| median of rounds").contains("wireguard-go"));
        assert!(!table.contains("UDP"), "nothing of it was measured: {table}");
    }

    #[test]
    fn shortfall_is_told_with_whether_it_is_noise() {
        let lines = shortfalls(&results(), &paths()).join("\n");
        assert!(lines.starts_with("warren is worse than wireguard-go in 2 rows."), "{lines}");
        assert!(lines.contains("1%: ping beside CUBIC x1 down, lost %: 2.00 instead of 1.00"), "{lines}");
        assert!(!lines.contains("Mbit/s"), "{lines}");
    }

    #[test]
    fn report_says_under_which_conditions() {
        let markdown = markdown(&results(), &paths());
        for expected in ["seed 7", "3 rounds of 8 s", "no network", "150 - 170", "CPU, 2 cores", "| warren"] {
            assert!(markdown.contains(expected), "{expected} in {markdown}");
        }
    }
}
