//! `warren fleet status`.

use std::fmt::Write as _;
use std::time::{Instant, SystemTime};

use clap::Args;
use serde::Serialize;
use warren_config::counted;
use warren_fleet_link::{ExitId, ExitState, FleetExit, Pools, RemovedExit, StoreCertificate};
use warren_session::clients::{RowChange, RowId};

use super::{Connected, connect, print, print_json, warning_of_open_store};
use crate::certificates::{self, days_left, warning};
use crate::exits::{Exits, Removal, lingering};
use crate::link::read;
use crate::run::{Directories, HEARTBEAT, SOONEST_HEARTBEAT};
use crate::store::read_all;
use crate::users;

/// `warren fleet status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    fleet: String,
    pools: Pools,
    /// The store's revision.
    revision: i64,
    /// The revision of the latest change of a client, invitation or removed key.
    changed: i64,
    clients: usize,
    /// The unused invitations.
    invitations: usize,
    removed_keys: usize,
    exits: Vec<Line>,
    /// Exits that were removed and have not confirmed that they have stopped.
    removed: Vec<RemovedExit>,
    /// Exits that are not in the fleet but have an etcd user.
    tickets: Vec<Waiting>,
    /// Whether etcd's user authentication is off.
    is_open_to_all: bool,
    /// The certificates of the store and its users, as this host sees them.
    certificates: Vec<StoreCertificate>,
}

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    exit: FleetExit,
    /// Whether an operator is draining the exit.
    is_drained: bool,
    /// Whether the exit has applied the latest change.
    has_heard: bool,
}

/// An exit that has not joined, or has left.
#[derive(Serialize)]
struct Waiting {
    exit: ExitId,
    /// Whether the exit's ticket has ended, or the exit has left, while the store still has its user.
    has_ended: bool,
}

/// Shows the exits of the fleet.
///
/// # Errors
/// If the store cannot be reached.
pub(crate) async fn status(directories: Directories<'_>, arguments: &StatusArguments) -> anyhow::Result<()> {
    let mut fleet = connect(&directories).await?;
    let began = Instant::now();
    let (mut revision, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    let mut contents = read(&fleet.keys, None, &pairs);
    // Heartbeats and sessions raise the store's revision too, so it does not show whether an exit is behind.
    let changed = contents.rows.latest_change();
    // An exit's next heartbeat says that it has applied the latest change. Until then, the exit may look as if it had not.
    while began.elapsed() < HEARTBEAT + SOONEST_HEARTBEAT
        && contents.heartbeats.values().any(|heartbeat| heartbeat.applied < changed)
    {
        tokio::time::sleep(SOONEST_HEARTBEAT).await;
        let (newer, seen) = fleet.read_below(fleet.keys.heartbeats()).await?;
        (revision, contents.heartbeats) = (newer, seen.heartbeats);
    }
    let count = |is: fn(&RowId) -> bool| contents.rows.iter().filter(|(id, _)| is(id)).count();
    let is_unused = |row: &RowChange| matches!(row, RowChange::Invitation { invitation: Some(invitation), .. } if invitation.used_by.is_none());
    let invitations = contents.rows.iter().filter(|(_, row)| is_unused(&row.content)).count();
    let names: Vec<ExitId> = contents.members.keys().cloned().collect();
    let is_open = |until: Option<i64>| Removal { until, has_stopped: false }.may_serve(SystemTime::now());
    let removed: Vec<RemovedExit> = lingering(&contents.removed)
        .into_iter()
        .filter(|it| is_open(it.until) && !names.contains(&it.exit))
        .collect();
    let known: Vec<&ExitId> = names.iter().chain(removed.iter().map(|it| &it.exit)).collect();
    let tickets = tickets(&mut fleet, &known).await?;
    let unreadable: Vec<ExitId> = contents
        .members
        .iter()
        .filter(|(_, member)| member.is_none())
        .map(|(exit, _)| exit.clone())
        .collect();
    let mut exits = Exits::default();
    exits.replace(contents.members, contents.heartbeats);
    // `listed` lacks the exits that were never linked and the exits whose value cannot be read. They are reported separately.
    let listed = exits.list();
    let waiting =
        names.into_iter().filter(|name| listed.iter().all(|exit| exit.exit != *name)).collect::<Vec<_>>();
    let lines = listed.into_iter().map(|exit| Line {
        is_drained: contents.drained.contains(&exit.exit),
        has_heard: exit.applied >= changed,
        exit,
    });
    let open = warning_of_open_store(&fleet.config).await?;
    let report = Report {
        fleet: fleet.config.fleet.clone(),
        pools: fleet.meta.pools.clone(),
        revision,
        changed,
        clients: count(|id| matches!(id, RowId::Client(_))),
        invitations,
        removed_keys: count(|id| matches!(id, RowId::Removed(_))),
        exits: lines.collect(),
        removed,
        tickets,
        is_open_to_all: !open.is_empty(),
        certificates: certificates::look(&fleet.config.store.options()?).await,
    };
    if arguments.json { print_json(&report) } else { print(&(text(&report, &waiting, &unreadable) + &open)) }
}

fn text(report: &Report, waiting: &[ExitId], unreadable: &[ExitId]) -> String {
    let mut text = format!(
        "Fleet {}: {}, {}; the store answers, at revision {}\n",
        report.fleet,
        counted(report.clients, "client"),
        counted(report.invitations, "invitation"),
        report.revision
    );
    let width = report.exits.iter().map(|line| line.exit.exit.as_str().len()).max().unwrap_or(4).max(4);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:width$}  STATE     SESSIONS  MBIT/S  CORES  LATEST CHANGE", "EXIT");
    for Line { exit, is_drained, has_heard } in &report.exits {
        // If an exit has been without the store for too long, it also sends its clients to other exits without an operator.
        let state = match (exit.is_alive, *is_drained || exit.state == ExitState::Draining) {
            (false, _) => "gone",
            (true, true) => "draining",
            (true, false) => "serving",
        };
        let heard = if *has_heard { "applied" } else { "NOT APPLIED" };
        let megabits = exit.load.bits_per_second / 1_000_000;
        let _ = writeln!(
            text,
            "{:width$}  {state:8}  {:8}  {megabits:6}  {:5.1}  {heard}",
            exit.exit.as_str(),
            exit.load.sessions,
            exit.load.cores
        );
    }
    for exit in waiting {
        let what = match unreadable.contains(exit) {
            true => "is in the fleet, but its value in the store cannot be read; its link writes it again",
            false => "has joined, and has never been linked",
        };
        let _ = writeln!(text, "{:width$}  {what}", exit.as_str());
    }
    for RemovedExit { exit, until } in &report.removed {
        let how_long = Removal::how_long(*until, SystemTime::now());
        let _ = writeln!(
            text,
            "{:width$}  was removed and has not confirmed that it stops: it may serve {how_long}; stop it on its host, then run `warren fleet remove {exit} --stopped`",
            exit.as_str()
        );
    }
    for Waiting { exit, has_ended } in &report.tickets {
        let what = match has_ended {
            true => format!(
                "is not in the fleet, but its etcd user still exists; run `warren fleet remove {exit}` if it stays"
            ),
            false => "has a ticket, and has not joined".to_owned(),
        };
        let _ = writeln!(text, "{:width$}  {what}", exit.as_str());
    }
    text + &certificate_lines(&report.certificates, SystemTime::now())
}

/// Returns the exits whose tickets have not been used.
async fn tickets(fleet: &mut Connected, known: &[&ExitId]) -> anyhow::Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    for users::Granted { exit, grant, .. } in users::unused(&mut fleet.client, &fleet.keys).await? {
        if !known.contains(&&exit) {
            let has_ended = !users::is_open(&mut fleet.client, &fleet.keys, &grant).await?;
            waiting.push(Waiting { exit, has_ended });
        }
    }
    Ok(waiting)
}

/// Returns one line with the days left of each certificate, and a line for each certificate that expires soon.
fn certificate_lines(certificates: &[StoreCertificate], now: SystemTime) -> String {
    if certificates.is_empty() {
        return String::new();
    }
    let days = |certificate: &StoreCertificate| match days_left(certificate, now) {
        ..0 => format!("{} has expired", certificate.name),
        days => format!("{} {days}", certificate.name),
    };
    let all: Vec<String> = certificates.iter().map(days).collect();
    let soon = certificates.iter().filter_map(|certificate| warning(certificate, now));
    let soon: String = soon.map(|line| format!("WARNING: {line}\n")).collect();
    format!("Days until the store's certificates expire: {}\n{soon}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_exit_that_sends_its_clients_away_by_itself_is_not_shown_as_serving() {
        let line = |name: &str, state: ExitState, is_drained: bool| Line {
            exit: FleetExit {
                exit: ExitId::try_from(name.to_owned()).unwrap(),
                key: warren_session::PublicKey([7; 32]),
                endpoints: Vec::new(),
                load: warren_fleet_link::Load::default(),
                state,
                applied: 1,
                is_alive: true,
                clock_offset_ms: 0,
            },
            is_drained,
            has_heard: true,
        };
        let named = |name: &str| ExitId::try_from(name.to_owned()).unwrap();
        let report = Report {
            fleet: "fleet".to_owned(),
            pools: Pools { ipv4: None, ipv6: None },
            revision: 1,
            changed: 1,
            clients: 0,
            invitations: 0,
            removed_keys: 0,
            exits: vec![
                line("stale", ExitState::Draining, false),
                line("asked", ExitState::Serving, true),
                line("well", ExitState::Serving, false),
            ],
            removed: vec![RemovedExit { exit: named("lost"), until: None }],
            tickets: vec![
                Waiting { exit: named("open"), has_ended: false },
                Waiting { exit: named("late"), has_ended: true },
            ],
            is_open_to_all: false,
            certificates: Vec::new(),
        };
        let text = text(&report, &[], &[]);
        let of = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(of("stale").contains("draining") && of("asked").contains("draining"), "{text}");
        assert!(of("well").contains("serving"), "{text}");
        let lost = of("lost");
        assert!(lost.contains("may serve for good") && lost.contains("remove lost --stopped"), "{text}");
        assert!(
            of("open").contains("has not joined") && of("late").contains("warren fleet remove late"),
            "{text}"
        );
    }

    #[test]
    fn days_left_are_one_line_and_each_certificate_that_ends_soon_has_another() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let lasting = |name: &str, days: i64| StoreCertificate {
            name: name.to_owned(),
            expires: 1_000_000 + days * 86_400,
        };
        let text = certificate_lines(&[lasting("ca", 3_650), lasting("client", 13)], now);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(
            lines.first().copied(),
            Some("Days until the store's certificates expire: ca 3650, client 13")
        );
        assert!(text.contains("WARNING: the store's certificate \"client\" expires in 13 days"), "{text}");
        assert_eq!(certificate_lines(&[], now), "");
    }
}
