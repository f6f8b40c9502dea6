//! `warren up` for a daemon that the exits have refused. The daemon asks the exits again. Until one accepts, the tunnel's traffic
//! stays blocked.

use std::time::Duration;

use tokio::time::Instant;

use crate::kill_switch;
use warren_control::status::State;
use warren_control::{AskError, Request, ask, ask_status};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::exit_code::{ExitCode, Failure};

/// The time between two requests for the daemon's status.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Whether a profile's daemon runs and has been refused, or rests on a trusted network.
pub(super) async fn can_ask_again(directory: &DaemonDirectory) -> bool {
    ask_status(&directory.socket()).await.is_ok_and(|status| {
        status.client.is_some_and(|client| client.refused.is_some() || client.resting.is_some())
    })
}

/// Makes the daemon ask its exits again, and returns when traffic flows.
///
/// # Errors
/// As for a first `up`, but the daemon keeps running.
pub(super) async fn up(
    directory: &DaemonDirectory,
    name: &str,
    closes_kill_switch: bool,
    timeout: Duration,
) -> anyhow::Result<()> {
    if closes_kill_switch && !kill_switch::is_closed(directory)? {
        let sentence = format!(
            "{name} is running and an exit has refused it; to close its kill switch, run `warren down {name}` first"
        );
        return Err(Failure::new(ExitCode::Failed, sentence).into());
    }
    ask(&directory.socket(), &Request::Retry).await?;
    let deadline = Instant::now() + timeout;
    loop {
        let status = match ask_status(&directory.socket()).await {
            // If the changed profile has when_refused = "open", the daemon ends at the next refusal.
            Err(AskError::NotRunning) => {
                let ended =
                    "the daemon ended before traffic flowed; run `warren up` again to connect".to_owned();
                let sentence = directory.last_error().unwrap_or(ended);
                return Err(Failure::new(ExitCode::Failed, sentence).into());
            }
            asked => asked?,
        };
        let client = status.client.as_ref();
        if status.state == State::Up {
            return Ok(());
        }
        if let Some(refused) = client.and_then(|client| client.refused.as_ref()) {
            let sentence = format!("{}; {}", refused.message, stays_closed(name));
            return Err(Failure::new(ExitCode::Refused, sentence).into());
        }
        if Instant::now() >= deadline {
            let seconds = timeout.as_secs_f64();
            let why = client.and_then(|client| client.last_error.clone());
            let why = why.unwrap_or_else(|| "the exit does not answer".to_owned());
            let sentence = format!("no tunnel within {seconds} s: {why}; {}", stays_closed(name));
            return Err(Failure::new(ExitCode::TimedOut, sentence).into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn stays_closed(name: &str) -> String {
    format!("the tunnel's traffic stays blocked until `warren down {name}`")
}
