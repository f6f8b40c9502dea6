//! The error of a second `up` of a profile, which changes nothing.

use warren_control::ask_status;
use warren_control::status::{ClientStatus, State, Status};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::exit_code::{ExitCode, Failure};

/// Returns the error of an `up` for a profile whose daemon is already running. The message describes the state of that daemon.
pub(super) async fn runs_already(directory: &DaemonDirectory, name: &str) -> Failure {
    let status = ask_status(&directory.socket()).await.ok();
    Failure::new(ExitCode::Failed, sentence(name, status.as_ref()))
}

fn sentence(name: &str, status: Option<&Status>) -> String {
    let down = format!("`warren down {name}`");
    let client = status.and_then(|status| status.client.as_ref().map(|client| (status.state, client)));
    match client {
        Some((_, ClientStatus { host_outside: true, .. })) => {
            format!("{name} is up only for `warren exec`; to put this host inside as well, run {down} first")
        }
        Some((state @ (State::Connecting | State::Reconnecting), client)) => {
            let why = client.last_error.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("{name} is already running and is {}; it keeps trying until {down}{why}", state.name())
        }
        _ => format!("{name} is up already; see `warren status {name}`, or run {down} first"),
    }
}
