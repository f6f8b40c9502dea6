//! `warren fleet`, which is a program of its own: `warren-fleet`, with a link to the fleet's store that single exits do not need.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, anyhow, bail};
use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;
use warren_daemon::directories::Directories;

/// The program's name.
const PROGRAM: &str = "warren-fleet";

/// What an exit learns of the fleet that it has joined.
#[derive(Debug, Deserialize)]
pub(crate) struct Joined {
    /// The exit's name in the fleet.
    pub(crate) exit: String,
    pub(crate) pools: JoinedPools,
}

/// The inner prefixes of all exits of a fleet.
#[derive(Debug, Deserialize)]
pub(crate) struct JoinedPools {
    pub(crate) ipv4: Option<Ipv4Net>,
    pub(crate) ipv6: Option<Ipv6Net>,
}

/// Becomes `warren-fleet` with these arguments. The directories are those of this command line.
///
/// # Errors
/// When the program is not installed or cannot be run.
pub(crate) fn run(directories: &Directories, arguments: &[OsString]) -> anyhow::Result<()> {
    let Directories { config, runtime, state } = directories;
    let mut command = Command::new(program());
    command
        .env("WARREN_CONFIG_DIR", config)
        .env("WARREN_RUNTIME_DIR", runtime)
        .env("WARREN_STATE_DIR", state);
    Err(failed(&command.args(arguments).exec()))
}

/// Makes this host a member of the fleet that has made the ticket. `warren-fleet` then has a configuration, too.
///
/// # Errors
/// When `warren-fleet` is not installed or refuses the ticket. It has said why then.
pub(crate) fn join(ticket: &str, config: &Path) -> anyhow::Result<Joined> {
    let mut command = Command::new(program());
    command.args(["join", ticket, "--json", "--config-dir"]).arg(config);
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        bail!("this host did not join the fleet, and no exit was set up; correct that and run this again");
    }
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!("{PROGRAM} has given an answer of another version; install the version of this warren")
    })
}

/// The program beside this one. If there is none, the one that `PATH` leads to.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into())
}

fn failed(error: &std::io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::NotFound {
        return anyhow!("{PROGRAM} is not installed; put the program beside warren (docs/fleet.md says how)");
    }
    anyhow!("{PROGRAM} cannot be run: {error}")
}
