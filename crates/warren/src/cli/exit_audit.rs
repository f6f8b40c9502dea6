//! `warren exit audit`: prints the changes that operators made, from the audit log's file. This also works while the exit does
//! not run.

use anyhow::Context as _;

use super::args::ExitAuditArgs;
use super::status::units::moment;
use warren_config::load_exit;
use warren_daemon::directories::Directories;
use warren_daemon::output;
use warren_exit::audit::{self, Entry};

/// Prints the entries, the oldest first.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn run(directories: &Directories, arguments: &ExitAuditArgs) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    let clients = config.clients_path(&directories.state);
    let directory = clients.parent().unwrap_or(&directories.state);
    let found = audit::read(directory).context("cannot read the audit log; run this as root")?;
    let client = arguments.client.as_deref();
    let entries: Vec<&Entry> =
        client.map_or_else(|| found.entries.iter().collect(), |name| found.about(name));
    let limit = arguments.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(entries.len());
    let shown = entries.get(entries.len().saturating_sub(limit)..).unwrap_or_default();
    if arguments.json {
        output::print_json(&shown)?;
    } else {
        output::print(&table(shown, client))?;
    }
    if found.damaged > 0 {
        let file = audit::path(directory);
        output::warn(format!(
            "{} lines of {} are damaged and were left out; a power cut may have torn them",
            found.damaged,
            file.display()
        ));
    }
    Ok(())
}

fn table(entries: &[&Entry], client: Option<&str>) -> String {
    if entries.is_empty() {
        return match client {
            Some(name) => format!("The audit log has no entry about {name:?}.\n"),
            None => "No operator has changed anything yet.\n".to_owned(),
        };
    }
    let row = |entry: &&Entry| {
        let from = entry.who.from.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
        vec![
            moment(&entry.time),
            entry.who.person(),
            format!("{}{from}", entry.who.by.name()),
            entry.change.client.clone().unwrap_or_else(|| "-".to_owned()),
            entry.change.what.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    output::table(&["TIME", "USER", "BY", "CLIENT", "WHAT"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_exit::audit::{Change, Way, Who};

    #[test]
    fn a_line_says_when_who_how_which_client_and_what() {
        let who = Who {
            user: Some("root".to_owned()),
            login: Some("ann".to_owned()),
            from: Some("127.0.0.1".to_owned()),
            ..Who::by(Way::Page)
        };
        let entry =
            Entry { time: "2026-11-26T18:00:00Z".to_owned(), ..Entry::now(who, Change::removed("laptop")) };
        let text = table(&[&entry], None);
        let line = text.lines().nth(1).unwrap();
        for word in ["2026-11-26", "root (login ann)", "page from 127.0.0.1", "laptop", "removed"] {
            assert!(line.contains(word), "{word}: {text}");
        }
        assert!(table(&[], None).contains("No operator"));
        assert_eq!(table(&[], Some("nosuch")), "The audit log has no entry about \"nosuch\".\n");
    }
}
