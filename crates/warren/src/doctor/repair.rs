//! Makes the repairs of a finding, after showing them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use warren_host::kill_switch;

use super::finding::{Finding, Repair};
use crate::runtime::block_on;
use warren_config::storage;
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// The directory of settings that are written to the kernel at boot (sysctl.d(5)).
const DIRECTORY: &str = "/etc/sysctl.d";

/// Shows and makes a finding's repairs. A failure is printed, and the checks that follow report the problem again.
pub(super) fn carry_out(directories: &Directories, finding: &Finding) {
    for repair in &finding.repairs {
        output::note(format!("{}: {}", finding.check, shown(repair)));
        let done = match repair {
            Repair::Sysctl { key, value } => set(key, value),
            Repair::CloseKillSwitch { profile } => close_again(directories, profile),
            Repair::Run { command } => run(command),
        };
        if let Err(error) = done {
            output::warn(output::sentence(&error));
        }
    }
}

/// Recreates the table of a kill switch after it was deleted or changed.
fn close_again(directories: &Directories, profile: &str) -> anyhow::Result<()> {
    let journal = DaemonDirectory::new(&directories.runtime, profile).kill_switch();
    let closed = block_on(async { Ok(kill_switch::close_again(journal, profile).await?) });
    closed.map(drop).with_context(|| format!("cannot close the kill switch of {profile} again"))
}

/// Sets a kernel setting now and for the next boots.
fn set(key: &str, value: &str) -> anyhow::Result<()> {
    let file = kept_in(key);
    // The value is written to the kernel first, because a value that the kernel refuses must not be stored for the next boots.
    std::fs::write(Path::new("/proc/sys").join(key.replace('.', "/")), value)
        .with_context(|| format!("cannot set {key}; run as root"))?;
    storage::make_directory(Path::new(DIRECTORY))
        .and_then(|_| storage::write_atomic(Path::new(&file), format!("{key} = {value}\n").as_bytes(), 0o644))
        .with_context(|| format!("cannot write {file}; run as root"))
}

fn shown(repair: &Repair) -> String {
    match repair {
        Repair::CloseKillSwitch { profile } => format!("closing the kill switch of {profile} again"),
        Repair::Sysctl { key, value } => format!("sysctl -w {key}={value}, and the same in {}", kept_in(key)),
        Repair::Run { command } => command.join(" "),
    }
}

fn kept_in(key: &str) -> String {
    format!("{DIRECTORY}/90-warren-{key}.conf")
}

fn run(command: &[String]) -> anyhow::Result<()> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let ended = Command::new(program).args(arguments).output();
    let ended = ended.with_context(|| format!("cannot run {program}; install it"))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        bail!("{} failed: {}; run it by hand", command.join(" "), said.trim());
    }
    Ok(())
}
