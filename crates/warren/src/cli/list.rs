//! `warren list`: lists the profiles of this machine, and the state of each.

use std::collections::BTreeSet;

use serde::Serialize;

use super::status::units::time;
use warren_config::{find_profile, load_profile, profile_names};
use warren_control::status::Status;
use warren_control::{AskError, ask_status};
use warren_daemon::daemon_directory::{self, DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::output;
use warren_host::kill_switch::{Standing, look};

/// One profile in the list.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    /// A state of the daemon, `up for exec`, `down`, `killed`, or `unknown`.
    state: String,
    /// How long the daemon has been in this state. `None` if it does not run.
    since_seconds: Option<f64>,
    /// The exit in use, or the first one of the profile. `None` if the profile cannot be read.
    exit: Option<String>,
    /// Whether the kill switch is closed. `None` if that cannot be found out.
    kill_switch: Option<bool>,
    /// Why the profile or its daemon cannot be asked, and what to do.
    problem: Option<String>,
}

/// Prints each profile's state.
///
/// # Errors
/// When this user may not read the directories.
pub(crate) async fn run(directories: &Directories, json: bool) -> anyhow::Result<()> {
    let mut names: BTreeSet<String> = profile_names(&directories.config)?
        .iter()
        .map(|name| name.as_str().to_owned())
        .filter(|name| name != EXIT)
        .collect();
    // Daemons are listed too, because their profiles may be files in other directories.
    for (name, directory) in daemon_directory::all(&directories.runtime)? {
        // If the lock cannot be checked, as by users other than root, the daemon counts as running.
        if name != EXIT && (directory.is_running().unwrap_or(true) || directory.has_remains()) {
            names.insert(name);
        }
    }
    let mut listed = Vec::new();
    for name in names {
        listed.push(look_at(directories, name).await);
    }
    if json { output::print_json(&listed) } else { output::print(&text(directories, &listed)) }
}

async fn look_at(directories: &Directories, name: String) -> Listed {
    let directory = DaemonDirectory::new(&directories.runtime, &name);
    match ask_status(&directory.socket()).await {
        Ok(Status { state, since_seconds, client: Some(client), .. }) => Listed {
            name,
            state: if client.host_outside { "up for exec" } else { state.name() }.to_owned(),
            since_seconds: Some(since_seconds),
            exit: Some(client.exit.endpoint),
            kill_switch: Some(client.kill_switch),
            problem: client.error.or(client.refused.map(|refused| refused.message)).or(client.last_error),
        },
        Ok(_) | Err(AskError::NotRunning) => not_running(directories, &directory, name).await,
        Err(error) => Listed {
            name,
            state: "unknown".to_owned(),
            since_seconds: None,
            exit: None,
            kill_switch: None,
            problem: Some(error.to_string()),
        },
    }
}

async fn not_running(directories: &Directories, directory: &DaemonDirectory, name: String) -> Listed {
    let standing = look(directory.kill_switch(), &name).await;
    // If another program has deleted or changed the table, the kill switch does not count as closed.
    let is_closed = standing.as_ref().ok().map(|standing| *standing == Standing::Closed);
    let was_killed = directory.was_killed();
    let file = find_profile(&directories.config, Some(name.as_ref())).and_then(|file| load_profile(&file));
    let (exit, broken) = match file {
        Ok(profile) => (Some(profile.exit.endpoint.to_string()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let killed = was_killed.then(|| {
        format!(
            "it was killed and left changes on this host; undo them with `{}`",
            directories.command("cleanup")
        )
    });
    Listed {
        name,
        state: if was_killed { "killed" } else { "down" }.to_owned(),
        since_seconds: None,
        exit,
        kill_switch: is_closed,
        problem: killed.or(broken),
    }
}

/// Formats the table, and below it a line for each problem.
fn text(directories: &Directories, listed: &[Listed]) -> String {
    if listed.is_empty() {
        let join = directories.command("join");
        return format!(
            "There is no profile in {}; `{join} INVITE` makes one from an exit's invitation.\n",
            directories.config.display()
        );
    }
    let row = |one: &Listed| {
        let since = one.since_seconds.map(|seconds| format!(" for {}", time(seconds))).unwrap_or_default();
        let kill_switch = match one.kill_switch {
            Some(true) => "closed",
            Some(false) => "off",
            None => "?",
        };
        vec![
            one.name.clone(),
            format!("{}{since}", one.state),
            one.exit.clone().unwrap_or_else(|| "?".to_owned()),
            kill_switch.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
    let mut text = output::table(&["PROFILE", "STATE", "EXIT", "KILL SWITCH"], &rows);
    for one in listed {
        if let Some(problem) = &one.problem {
            text += &format!("{}: {problem}\n", one.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_each_profile_and_what_is_wrong_below_it() {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::below(directory.path());
        let up = Listed {
            name: "home".to_owned(),
            state: "up".to_owned(),
            since_seconds: Some(61.0),
            exit: Some("exit.example.net:443".to_owned()),
            kill_switch: Some(true),
            problem: None,
        };
        let broken = Listed {
            name: "work".to_owned(),
            state: "down".to_owned(),
            since_seconds: None,
            exit: None,
            kill_switch: Some(false),
            problem: Some("work.toml:1: is not TOML".to_owned()),
        };
        assert_eq!(
            text(&directories, &[up, broken]),
            "PROFILE  STATE         EXIT                  KILL SWITCH\n\
             home     up for 1m 1s  exit.example.net:443  closed\n\
             work     down          ?                     off\n\
             work: work.toml:1: is not TOML\n"
        );
        assert!(text(&directories, &[]).contains("There is no profile in"));
    }
}
