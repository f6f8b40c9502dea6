//! `warren exit client forward add|list|remove`: forwards ports of the exit to a client.

use super::all;
use super::store::ClientStore;
use crate::cli::args::{ForwardAddArgs, ForwardCommand, ForwardListArgs};
use anyhow::Context as _;
use serde::Serialize;
use warren_control::{ClientChange, ClientView, Forward, PageQuery, PortRange};
use warren_daemon::output;

/// Runs the command on the clients of a running exit or a stopped one.
pub(super) fn run(command: &ForwardCommand, store: &mut dyn ClientStore) -> anyhow::Result<()> {
    match command {
        ForwardCommand::Add(args) => add(args, store),
        ForwardCommand::List(args) => list(args, store),
        ForwardCommand::Remove(args) => {
            store.change(&args.name, &ClientChange::RemoveForward { ports: args.ports })?;
            output::print(&format!(
                "Removed the forward of {} to {}. A running exit ends its connections now, a stopped one when it starts.\n",
                args.ports, args.name
            ))
        }
    }
}

fn add(args: &ForwardAddArgs, store: &mut dyn ClientStore) -> anyhow::Result<()> {
    let ForwardAddArgs { name, ports, to } = args;
    let forward = Forward::new(*ports, to.unwrap_or(ports.first()));
    let forward = forward.with_context(|| {
        format!("--to {} ends above port 65535 for {ports}; choose a lower port", to.unwrap_or_default())
    })?;
    let is_there = store.show(name)?.forwards.contains(&forward);
    if !is_there {
        store.change(name, &ClientChange::AddForward { forward })?;
    }
    let client = store.show(name)?;
    output::print(&added(&client, forward, is_there))
}

/// Returns the command line that adds a forward.
pub(crate) fn command(name: &str, forward: Forward) -> String {
    let (ports, target) = (forward.ports(), forward.target());
    let to = if ports == target { String::new() } else { format!(" --to {}", target.first()) };
    format!("warren exit client forward add {name} {ports}{to}")
}

/// Describes what was done, and what remains to be done.
fn added(client: &ClientView, forward: Forward, is_there: bool) -> String {
    let (name, target) = (&client.name, forward.target());
    let begins = if client.disabled {
        format!("It takes effect once {name} is enabled.\n")
    } else if client.ipv4.is_none() && client.ipv6.is_none() {
        format!("It takes effect once {name} has connected for the first time.\n")
    } else {
        String::new()
    };
    let ports = forward.ports();
    let done = if is_there {
        format!("{ports} of this exit leads to {target} of {name} already; nothing was changed.\n")
    } else {
        format!("Forwarded {ports} of this exit to {target} of {name}.\n")
    };
    let allowed = if client.wireguard {
        format!(
            "{name} is a WireGuard client and has no profile: its own firewall alone decides who reaches {target} there.\n"
        )
    } else {
        format!(
            "{name} must allow it, with this in its profile, and `warren reload` there:\n\n\
             [forwards]\nallow = [\"{target}\"]\n"
        )
    };
    format!("{done}{begins}{allowed}")
}

/// A forward as `list --json` prints it.
#[derive(Serialize)]
struct ForwardRow {
    client: String,
    ports: PortRange,
    to: PortRange,
    /// Null if it is in force.
    not_in_force: Option<String>,
}

fn list(args: &ForwardListArgs, store: &mut dyn ClientStore) -> anyhow::Result<()> {
    let clients = match &args.name {
        Some(name) => vec![store.show(name)?],
        None => all(&PageQuery::default(), |page| store.clients(page))?.rows,
    };
    let row = |client: &ClientView, forward: &Forward| ForwardRow {
        client: client.name.clone(),
        ports: forward.ports(),
        to: forward.target(),
        not_in_force: not_in_force(client, forward),
    };
    let rows: Vec<ForwardRow> = clients
        .iter()
        .flat_map(|client| client.forwards.iter().map(move |forward| row(client, forward)))
        .collect();
    if args.json {
        return output::print_json(&rows);
    }
    if rows.is_empty() {
        return output::print(
            "There is no forward; add one with: warren exit client forward add NAME tcp/PORT\n",
        );
    }
    let state = |row: &ForwardRow| match &row.not_in_force {
        Some(reason) => format!("not in force: {reason}"),
        None => "in force".to_owned(),
    };
    let cells =
        |row: &ForwardRow| vec![row.ports.to_string(), row.client.clone(), row.to.to_string(), state(row)];
    output::print(&output::table(
        &["PORTS OF THE EXIT", "CLIENT", "ITS PORTS", "STATE"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    ))
}

/// Says why a forward is not in force. `None` if it is in force.
fn not_in_force(client: &ClientView, forward: &Forward) -> Option<String> {
    let Some(live) = &client.live else { return Some("the exit does not run".to_owned()) };
    if client.disabled {
        return Some("the client is disabled".to_owned());
    }
    let taken = live.forwards_not_in_force.iter().find(|taken| taken.ports == forward.ports());
    if let Some(taken) = taken {
        return Some(taken.reason.clone());
    }
    let was_never_here = client.ipv4.is_none() && client.ipv6.is_none();
    was_never_here.then(|| "the client has not connected yet".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use warren_session::PublicKey;
    use warren_session::clients::{Client, WireGuardClient};

    use super::*;

    #[test]
    fn a_client_without_a_profile_is_not_told_to_write_into_one() {
        let forward: Forward = "tcp/8080 to 80".parse().unwrap();
        let mut client = Client::new("phone", PublicKey([1; 32]), SystemTime::UNIX_EPOCH);
        client.ipv4 = "10.66.0.2".parse().ok();
        let text = |client: &Client, is_there| added(&ClientView::of(client, None), forward, is_there);
        assert!(text(&client, false).contains("[forwards]\nallow = [\"tcp/80\"]\n"));

        client.wireguard = Some(WireGuardClient::default());
        assert_eq!(
            text(&client, false),
            "Forwarded tcp/8080 of this exit to tcp/80 of phone.\nphone is a WireGuard client and has no profile: \
             its own firewall alone decides who reaches tcp/80 there.\n"
        );
        assert!(
            text(&client, true).starts_with(
                "tcp/8080 of this exit leads to tcp/80 of phone already; nothing was changed.\n"
            )
        );
    }

    #[test]
    fn the_command_of_a_forward_adds_the_same_one() {
        for (forward, command_line) in [
            ("tcp/443", "warren exit client forward add home tcp/443"),
            ("tcp/8443-8450 to 443", "warren exit client forward add home tcp/8443-8450 --to 443"),
        ] {
            assert_eq!(command("home", forward.parse().unwrap()), command_line);
        }
    }
}
