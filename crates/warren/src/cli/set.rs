//! `warren set`: changes one setting of a running daemon without a restart.

use crate::cli::args::SetArgs;
use crate::cli::one_daemon;
use warren_control::Request;
use warren_control::{Change, UncheckedChange};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

/// Changes the setting and prints its previous value.
///
/// # Errors
/// [`ExitCode::Usage`] for an invalid key or value, [`ExitCode::NotRunning`] without a daemon.
pub(crate) async fn run(directories: &Directories, arguments: SetArgs) -> anyhow::Result<()> {
    let SetArgs { key, value, profile } = arguments;
    let change = Change::try_from(UncheckedChange { key, value: value.clone() })
        .map_err(|sentence| Failure::new(ExitCode::Usage, sentence))?;
    let profile = profile.map(|name| name.to_string_lossy().into_owned());
    let (name, before) =
        one_daemon::ask_one(directories, profile.as_deref(), &Request::Set { change }).await?;
    let before: String = serde_json::from_value(before)?;
    output::print(&format!("{name}: {} = {value} (was {before})\n", change.key()))
}
