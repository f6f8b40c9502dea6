//! `warren exit drain`: sends an exit's clients to other exits, and stops it.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use rustix::stdio::stdin;
use rustix::termios::isatty;

use super::one_daemon::ask_one;
use warren_control::Request;
use warren_control::status::{SessionStatus, Status};
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

/// How often to check whether the exit has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long an exit may take to stop after the time that its clients get.
const STOPPING: Duration = Duration::from_secs(5);
/// Maximum number of clients whose names are listed.
const MOST_NAMES: usize = 20;

/// Makes the exit send its clients away, and returns once the exit has ended. If clients have no other exit, asks the user first,
/// unless `yes` is set.
///
/// # Errors
/// [`ExitCode::NotRunning`] when no exit runs, [`ExitCode::TimedOut`] when it does not end, [`ExitCode::Usage`] when nobody can be
/// asked.
pub(crate) async fn drain(directories: &Directories, timeout: Duration, yes: bool) -> anyhow::Result<()> {
    let (_, status) = ask_one(directories, Some(EXIT), &Request::Status).await?;
    let status: Status = serde_json::from_value(status)?;
    let sessions = status.exit.map(|exit| exit.sessions).unwrap_or_default();
    if let Some(stranded) = stranded(&sessions) {
        output::note(&stranded);
        if !yes {
            ask()?;
        }
    }
    let milliseconds = u64::try_from(timeout.as_millis())?;
    ask_one(directories, Some(EXIT), &Request::Drain { milliseconds }).await?;
    let directory = DaemonDirectory::new(&directories.runtime, EXIT);
    let deadline = Instant::now() + timeout + STOPPING;
    while directory.is_running()? {
        if Instant::now() > deadline {
            let status = directories.command("status exit");
            let sentence = format!("the exit was told to end but still runs; see `{status}` and its log");
            return Err(Failure::new(ExitCode::TimedOut, sentence).into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    output::print("Drained; the exit has stopped.\n")
}

/// Returns a message about the clients that have no other exit. `None` if each client has one.
fn stranded(sessions: &[SessionStatus]) -> Option<String> {
    let named = |says: Option<bool>| {
        let found: Vec<&str> = sessions
            .iter()
            .filter(|session| session.has_other_exit == says)
            .map(|session| session.name.as_str())
            .collect();
        let more = found.len().saturating_sub(MOST_NAMES);
        let names = found.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
        let names = if more > 0 { format!("{names} and {more} more") } else { names };
        (found.len(), names)
    };
    // A client of an older version does not report whether it has another exit.
    let ((without, names), (silent, older)) = (named(Some(false)), named(None));
    let lines = [
        (without > 0).then(|| {
            let have = if without == 1 { "has" } else { "have" };
            format!("{without} of {} connected clients {have} nowhere to go: {names}.", sessions.len())
        }),
        (silent > 0).then(|| format!("{silent} with an older Warren may have nowhere to go: {older}.")),
    ];
    let lines: Vec<String> = lines.into_iter().flatten().collect();
    if lines.is_empty() {
        return None;
    }
    Some(format!("{}\nAnother [[exit]] in a client's profile gives it somewhere to go.", lines.join("\n")))
}

/// Asks on the terminal whether to go on.
fn ask() -> anyhow::Result<()> {
    if !isatty(stdin()) {
        let sentence =
            "nothing was changed, because there is no terminal to ask on; add --yes to drain anyway";
        return Err(Failure::new(ExitCode::Usage, sentence).into());
    }
    // The question is written to standard error, because a program may read standard output.
    let mut terminal = io::stderr();
    write!(terminal, "Drain anyway? [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::new(ExitCode::Failed, "not drained; nothing was changed").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str, has_other_exit: Option<bool>) -> SessionStatus {
        SessionStatus {
            id: 1,
            name: name.to_owned(),
            public_key: String::new(),
            ipv4: None,
            ipv6: None,
            since_seconds: 0.0,
            connections: Vec::new(),
            has_other_exit,
        }
    }

    #[test]
    fn clients_with_nowhere_to_go_are_named_and_others_are_not() {
        assert_eq!(stranded(&[]), None);
        assert_eq!(stranded(&[session("laptop", Some(true))]), None);

        let some = [session("laptop", Some(true)), session("phone", Some(false)), session("tablet", None)];
        let text = stranded(&some).unwrap();
        assert!(text.starts_with("1 of 3 connected clients has nowhere to go: phone.\n"), "{text}");
        assert!(text.contains("1 with an older Warren may have nowhere to go: tablet."), "{text}");
        assert!(!text.contains("laptop"), "{text}");
    }

    #[test]
    fn a_crowd_is_counted_beyond_the_first_names() {
        let crowd: Vec<SessionStatus> =
            (0..100).map(|number| session(&format!("c{number}"), Some(false))).collect();
        let text = stranded(&crowd).unwrap();
        assert!(text.contains("c19 and 80 more.") && !text.contains("c20"), "{text}");
    }
}
