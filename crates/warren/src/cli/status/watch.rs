//! `warren status --watch`: a live status that fills the terminal.

mod history;
mod screen;
mod sparkline;
mod terminal;

use std::time::{Duration, Instant};

use self::history::History;
use self::screen::screen;
use self::terminal::{Input, Terminal};
use crate::cli::one_daemon::not_running;
use warren_control::status::Status;
use warren_control::{AskError, ask_status};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};

/// How often the daemon is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Shows a daemon's status until the user ends it or the daemon ends.
///
/// # Errors
/// When standard output is not a capable terminal, and when the daemon does not run or has ended. The terminal is
/// restored.
pub(super) async fn watch(directories: &Directories, name: &str) -> anyhow::Result<()> {
    let directory = &DaemonDirectory::new(&directories.runtime, name);
    let mut history = History::default();
    // The daemon is asked once before the terminal is taken over, so that an error is printed as for any other command.
    match ask_status(&directory.socket()).await {
        Ok(status) => history.add(Instant::now(), status),
        Err(error) => return Err(failure(error, directories, name).await),
    }
    let mut terminal = Terminal::open()?;
    let mut notice = None;
    // The future is kept across rounds of the loop, so that a key press does not restart the pause.
    let mut next = Box::pin(look(directory, EVERY));
    loop {
        if terminal.draw(&screen(&history, notice.as_deref(), terminal.look())).is_err() {
            // Drawing fails if the terminal was closed, so the watch ends.
            return Ok(());
        }
        tokio::select! {
            looked = &mut next => {
                next = Box::pin(look(directory, EVERY));
                match looked {
                    Ok(status) => {
                        notice = None;
                        history.add(Instant::now(), status);
                    }
                    Err(AskError::TimedOut { .. }) => notice = Some("the daemon does not answer; this is its last status, and its log may say more".to_owned()),
                    Err(error) => return Err(failure(error, directories, name).await),
                }
            }
            input = terminal.input() => match input {
                Input::Redraw => {}
                Input::Suspend => terminal.suspend()?,
                Input::End => return Ok(()),
            }
        }
    }
}

/// Asks for the status after a pause.
async fn look(directory: &DaemonDirectory, pause: Duration) -> Result<Status, AskError> {
    tokio::time::sleep(pause).await;
    ask_status(&directory.socket()).await
}

async fn failure(error: AskError, directories: &Directories, name: &str) -> anyhow::Error {
    match error {
        AskError::NotRunning => {
            let directory = DaemonDirectory::new(&directories.runtime, name);
            not_running(directories, &directory, name).await.into()
        }
        other
        @ (AskError::Refused(_) | AskError::TimedOut { .. } | AskError::Forbidden | AskError::Io(_)) => {
            other.into()
        }
    }
}

/// Refuses to start without a capable terminal.
pub(super) fn refuse_without_terminal() -> anyhow::Result<()> {
    let sentence = match terminal::is_capable() {
        Ok(()) => return Ok(()),
        Err(sentence) => sentence,
    };
    Err(Failure::new(ExitCode::Usage, sentence).into())
}

/// A client's status for tests. Each connection has an ID, a number of bytes for each direction, and a number of packets, of which
/// half were lost.
#[cfg(test)]
pub(crate) fn example(connections: &[(u64, u64, u64)]) -> Status {
    use warren_control::status::{
        ClientStatus, ConnectionStatus, ExitPeer, Observed, RateMeter, Rates, State,
    };
    use warren_tunnel::Snapshot;
    use warren_tunnel::tuning::Tuning;

    let now = Instant::now();
    let client = ClientStatus {
        profile: "home".to_owned(),
        exit: ExitPeer {
            endpoint: "exit.example.net:443".to_owned(),
            address: None,
            public_key: String::new(),
            next_public_key: None,
        },
        session: None,
        refused: None,
        error: None,
        host_outside: false,
        warnings: Vec::new(),
        last_error: None,
        resting: None,
        roster: None,
        moving: None,
        kill_switch: false,
        reconnects: 0,
        dropped_queries: 0,
    };
    let observed = Observed {
        state: State::Up,
        since: now.checked_sub(Duration::from_secs(61)).unwrap_or(now),
        device: None,
        host_changes: Vec::new(),
        reload_error: None,
        tuning: &Tuning::default(),
        snapshot: Snapshot::default(),
        meter: &RateMeter::new(now),
        sandbox: Default::default(),
    };
    let connection = |(id, bytes, packets): &(u64, u64, u64)| ConnectionStatus {
        wireguard: false,
        id: *id,
        worker: 0,
        session: Some(1),
        index: u32::try_from(*id).ok(),
        remote: None,
        rtt_ms: 10.5,
        rates: Rates::default(),
        cwnd: 0,
        controller: None,
        mtu: 1452,
        sent_packets: *packets,
        lost_packets: packets / 2,
        spurious_losses: 0,
        lost_mtu_probes: 0,
        received_packets: 0,
        largest_received: 0,
        black_holes: 0,
        datagrams_sent: 0,
        datagrams_received: 0,
        queue_packets: 0,
        queue_bytes: 0,
        repair: Default::default(),
        packets_out: 0,
        bytes_out: *bytes,
        packets_in: 0,
        bytes_in: *bytes,
    };
    Status { connections: connections.iter().map(connection).collect(), ..Status::client(client, observed) }
}
