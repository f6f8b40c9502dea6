//! `warren fleet`: runs the separate program `warren-fleet`. It is separate, because it contains the link to a fleet's store,
//! which an exit without a fleet does not need.

use std::ffi::OsString;
use std::io::{ErrorKind, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow, bail};
use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;
use warren_daemon::directories::Directories;
use warren_daemon::logging::LogSettings;

/// The program's name.
const PROGRAM: &str = "warren-fleet";

/// The settings that an exit gets from the fleet that it has joined.
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

/// Replaces this process by `warren-fleet` with these arguments, and with the directories, the log filter and the log format of this
/// command line.
///
/// # Errors
/// When the program is not installed or cannot be run.
pub(crate) fn run(
    directories: &Directories,
    log: &LogSettings,
    arguments: &[OsString],
) -> anyhow::Result<()> {
    let Directories { config, runtime, state } = directories;
    let mut command = Command::new(program());
    command
        .env("WARREN_CONFIG_DIR", config)
        .env("WARREN_RUNTIME_DIR", runtime)
        .env("WARREN_STATE_DIR", state)
        .env("WARREN_LOG", &log.filter)
        .env("WARREN_LOG_FORMAT", log.format.name());
    Err(failed(&command.args(arguments).exec()))
}

/// Lets `warren-fleet` answer a shell that asks for completions of `warren fleet`, and ends the process. Returns if the
/// shell asks for completions of another command, or `warren-fleet` is not installed.
pub(crate) fn answer_shell(variable: &str) {
    let Some(shell) = std::env::var_os(variable) else { return };
    // clap's completion scripts run `warren -- warren fleet WORDS`.
    let words: Vec<OsString> = std::env::args_os().skip(2).collect();
    if words.get(1).is_none_or(|word| word != "fleet") || words.len() < 3 {
        return;
    }
    let mut command = Command::new(program());
    command.env_remove(variable).env("WARREN_FLEET_COMPLETE", shell);
    // The index of the word to complete, which is not set by all shells.
    if let Some(place) =
        std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|place| place.parse::<usize>().ok())
    {
        command.env("_CLAP_COMPLETE_INDEX", place.saturating_sub(1).to_string());
    }
    let _ = command.arg("--").arg(PROGRAM).args(words.into_iter().skip(2)).exec();
}

/// Makes this host a member of the fleet that issued the ticket. This also creates the configuration of `warren-fleet`.
///
/// # Errors
/// When `warren-fleet` is not installed or refuses the ticket. In the second case it has printed the reason.
pub(crate) fn join(ticket: &str, directories: &Directories) -> anyhow::Result<Joined> {
    // `warren-fleet` reads `-` and `@FILE` itself. A ticket is a secret, and every user of this host can see command
    // lines.
    let is_elsewhere = ticket == "-" || ticket.starts_with('@');
    let mut command = Command::new(program());
    command.args(["join", if is_elsewhere { ticket } else { "-" }, "--json", "--config-dir"]);
    command.arg(&directories.config).env("WARREN_RUNTIME_DIR", &directories.runtime);
    command.env("WARREN_STATE_DIR", &directories.state);
    command.stdin(if is_elsewhere { Stdio::inherit() } else { Stdio::piped() });
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut joining = command.spawn().map_err(|error| failed(&error))?;
    if let Some(mut stdin) = joining.stdin.take() {
        // Writing fails if the program has ended already. In that case it has printed the reason.
        let _ = stdin.write_all(ticket.as_bytes());
    }
    let output = joining.wait_with_output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        bail!(
            "this host did not join the fleet, and no exit was set up; correct the error above and run this again"
        );
    }
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!("{PROGRAM} has another version; install the version that matches this warren")
    })
}

/// Returns the path of the program in the directory of this program. If there is none, returns its name, to be found by `PATH`.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into())
}

fn failed(error: &std::io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::NotFound {
        return anyhow!(
            "{PROGRAM} is not installed; install the package warren-fleet (docs/fleet.md says how)"
        );
    }
    anyhow!("{PROGRAM} cannot be run: {error}")
}
