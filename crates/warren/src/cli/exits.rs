//! `warren exits`: lists the exits of a profile and of its fleet's roster with their round-trip times, and says which one is in use.

use serde::Serialize;
use tokio::task::LocalSet;

use super::status::units::round_trip;
use warren_client::{KnownExit, check_exit, known_exits};
use warren_config::{RemoteExit, find_profile, load_profile};
use warren_control::ask_status;
use warren_control::status::State;
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::output;

use super::args::ExitsArgs;

/// One exit in the list.
#[derive(Debug, Serialize)]
struct Listed {
    endpoint: String,
    /// The exit's name in the fleet's roster.
    name: Option<String>,
    /// The list that contains the exit: `profile` or `roster`.
    from: &'static str,
    /// The address that answered.
    address: Option<String>,
    /// The round-trip time of a handshake with the exit.
    rtt_ms: Option<f64>,
    in_use: bool,
    /// Why the exit did not answer.
    problem: Option<String>,
}

/// Asks all exits of a profile at once, and prints their round-trip times. A running session is not affected.
///
/// # Errors
/// When the profile cannot be read.
pub(crate) async fn run(directories: &Directories, arguments: &ExitsArgs) -> anyhow::Result<()> {
    let file = find_profile(&directories.config, arguments.profile.as_deref())?;
    let profile = load_profile(&file)?;
    let exits = known_exits(&directories.state, &profile);
    let in_use = exit_in_use(directories, profile.name.as_str()).await;
    // Asks all exits at once, because one that does not answer takes three seconds.
    let local = LocalSet::new();
    let ask = |exit: RemoteExit| {
        let key = profile.private_key.clone();
        local.spawn_local(async move { check_exit(&exit, &key).await })
    };
    let asked: Vec<_> = exits.iter().map(|known| ask(known.exit.clone())).collect();
    local.await;
    let mut listed = Vec::new();
    for (KnownExit { exit, member, is_pinned }, asked) in exits.into_iter().zip(asked) {
        let answer = asked.await?;
        listed.push(Listed {
            endpoint: exit.endpoint.to_string(),
            name: member,
            from: if is_pinned { "profile" } else { "roster" },
            address: answer.as_ref().ok().map(|answer| answer.remote.to_string()),
            rtt_ms: answer.as_ref().ok().map(|answer| answer.round_trip.as_secs_f64() * 1e3),
            in_use: is_in_use(&exit, in_use.as_deref()),
            problem: answer.err(),
        });
    }
    if arguments.json { output::print_json(&listed) } else { output::print(&text(&listed)) }
}

/// The endpoint of the exit with which a running daemon has a session.
async fn exit_in_use(directories: &Directories, name: &str) -> Option<String> {
    let socket = DaemonDirectory::new(&directories.runtime, name).socket();
    let status = ask_status(&socket).await.ok()?;
    let client = status.client.filter(|_| status.state == State::Up)?;
    Some(client.exit.endpoint)
}

fn is_in_use(exit: &RemoteExit, in_use: Option<&str>) -> bool {
    in_use == Some(exit.endpoint.to_string().as_str())
}

fn text(listed: &[Listed]) -> String {
    // The column is left out without a fleet, because all exits are then from the profile.
    let has_fleet = listed.iter().any(|one| one.name.is_some());
    let row = |one: &Listed| {
        let from = match &one.name {
            Some(name) => vec![format!("{} {name}", one.from)],
            None if has_fleet => vec![one.from.to_owned()],
            None => Vec::new(),
        };
        let mut row = vec![
            one.endpoint.clone(),
            one.address.clone().unwrap_or_else(|| "-".to_owned()),
            one.rtt_ms.map_or("no answer".to_owned(), round_trip),
        ];
        row.extend(from);
        row.push(if one.in_use { "in use" } else { "" }.to_owned());
        row
    };
    let header: &[&str] =
        if has_fleet { &["EXIT", "ADDRESS", "RTT", "FROM", ""] } else { &["EXIT", "ADDRESS", "RTT", ""] };
    let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
    let mut text = output::table(header, &rows);
    for one in listed {
        if let Some(problem) = &one.problem {
            text += &format!("{}: {problem}\n", one.endpoint);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_each_exit_and_why_one_does_not_answer() {
        let near = Listed {
            endpoint: "a.example.net:443".to_owned(),
            name: None,
            from: "profile",
            address: Some("192.0.2.1:443".to_owned()),
            rtt_ms: Some(12.4),
            in_use: true,
            problem: None,
        };
        let away = Listed {
            endpoint: "b.example.net:443".to_owned(),
            name: None,
            from: "profile",
            address: None,
            rtt_ms: None,
            in_use: false,
            problem: Some("192.0.2.2:443 does not answer".to_owned()),
        };
        assert_eq!(
            text(&[near, away]),
            "EXIT               ADDRESS        RTT\n\
             a.example.net:443  192.0.2.1:443  12.4 ms    in use\n\
             b.example.net:443  -              no answer\n\
             b.example.net:443: 192.0.2.2:443 does not answer\n"
        );
    }

    #[test]
    fn table_says_where_exits_are_from_if_there_is_a_fleet() {
        let exit = |endpoint: &str, name: &str, from, in_use| Listed {
            endpoint: endpoint.to_owned(),
            name: Some(name.to_owned()),
            from,
            address: Some("192.0.2.1:443".to_owned()),
            rtt_ms: Some(12.4),
            in_use,
            problem: None,
        };
        assert_eq!(
            text(&[exit("a:443", "ams1", "profile", true), exit("b:443", "ams2", "roster", false)]),
            "EXIT   ADDRESS        RTT      FROM\n\
             a:443  192.0.2.1:443  12.4 ms  profile ams1  in use\n\
             b:443  192.0.2.1:443  12.4 ms  roster ams2\n"
        );
    }
}
