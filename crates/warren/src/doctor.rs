//! `warren doctor`: finds what keeps Warren from working, or from working well, on this host.
//!
//! `facts` collects facts about the host, `checks` evaluates them, and `repair` makes changes, which it prints first.
//! `measured_path` is a command of its own (`--path`), which measures the path to the exit.

mod checks;
mod facts;
mod finding;
mod measured_path;
mod path;
mod read;
mod repair;

use crate::cli::args::DoctorArgs;
use crate::runtime::block_on;
use finding::{Finding, Verdict};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

/// Prints the findings. With `--fix`, also applies the repairs and checks again.
///
/// # Errors
/// When a finding keeps Warren from working.
pub(crate) fn run(directories: &Directories, arguments: &DoctorArgs) -> anyhow::Result<()> {
    if let Some(profile) = &arguments.path {
        let profile = profile.as_ref().map(|name| name.to_string_lossy().into_owned());
        return block_on(measured_path::run(directories, profile.as_deref(), arguments.json));
    }
    let mut findings = checks::all(&facts::gather(directories));
    if arguments.fix && findings.iter().any(|finding| !finding.repairs.is_empty()) {
        for finding in findings.iter().filter(|finding| !finding.repairs.is_empty()) {
            repair::carry_out(directories, finding);
        }
        // The facts are gathered again, so that the findings show the results of the repairs.
        findings = checks::all(&facts::gather(directories));
    }
    if arguments.json {
        output::print_json(&findings)?;
    } else {
        output::print(&text(&findings))?;
    }
    let problems = findings.iter().filter(|finding| finding.verdict == Verdict::Problem).count();
    if problems == 0 {
        return Ok(());
    }
    let sentence = format!(
        "{problems} of {} checks found a problem; follow the advice at each{}",
        findings.len(),
        if findings.iter().any(|finding| !finding.repairs.is_empty()) {
            ", or run the doctor with --fix"
        } else {
            ""
        }
    );
    Err(Failure::new(ExitCode::Failed, sentence).into())
}

/// Formats the findings: problems first, then advice, then good findings.
fn text(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    sorted.into_iter().map(Finding::to_text).collect()
}
