//! `warren exit client add|list|show|remove|rename|disable|enable|set|forward|export|import` and `exit invite`, for a running exit
//! and a stopped one.

mod add;
mod forward;
mod invite;
pub(crate) mod store;
mod transfer;
mod view;
mod wg_quick;
mod wireguard;

use std::time::SystemTime;

use warren_session::PublicKey;

use super::args::{ClientListArgs, ClientSetArgs, ExitClientCommand, InviteArgs};
use super::host_networks;
use warren_config::{ExitSettings, load_exit};
use warren_control::{ClientChange, ClientSettings, CutOff, PageQuery};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

pub(crate) use forward::command as forward_command;
#[cfg(test)]
pub(crate) use store::StoppedExit;
pub(crate) use store::{ClientStore, all, open};

/// Runs the command on the store that `open` returns: a running exit's, or [`StoppedExit`].
pub(crate) fn run(
    directories: &Directories,
    command: &ExitClientCommand,
    open: impl FnOnce(&ExitSettings) -> anyhow::Result<Box<dyn ClientStore>>,
) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    let mut store = open(&config)?;
    match command {
        ExitClientCommand::Add(args) if args.wireguard => {
            let clients = config.clients_path(&directories.state);
            wireguard::add(&config, &clients, args, store.as_mut())
        }
        ExitClientCommand::Add(args) => add::run(&config, args, store.as_mut()),
        ExitClientCommand::List(args) if args.removed => list_removed(args, store.as_mut()),
        ExitClientCommand::List(args) => list(directories, args, store.as_mut()),
        ExitClientCommand::Show(args) => {
            let client =
                store.show(&args.name).or_else(|error| view::gone(&args.name, store.as_mut(), error))?;
            if args.json {
                output::print_json(&client)
            } else {
                output::print(&view::text(&client, SystemTime::now()))
            }
        }
        ExitClientCommand::Export(args) => transfer::export(directories, &config, args),
        ExitClientCommand::Import(args) => transfer::import(directories, &config, args, store.as_mut()),
        ExitClientCommand::Remove(args) => {
            // `None` means that the name is that of an invitation, which is withdrawn.
            let client = store.show(&args.name).ok();
            let cut_off = store.remove(&args.name)?;
            output::print(&view::removal(&args.name, client.as_ref(), directories))?;
            print_cut_off(cut_off.as_ref())
        }
        ExitClientCommand::Rename(args) => {
            store.change(&args.name, &ClientChange::Rename { to: args.new_name.clone() })?;
            output::print(&format!("Renamed {} to {}.\n", args.name, args.new_name))
        }
        ExitClientCommand::Disable(args) => {
            let cut_off = store.change(&args.name, &ClientChange::Disable)?;
            output::print(&format!(
                "Disabled {name}: it is refused, and its addresses stay reserved. Admit it with: {enable} {name}\n",
                name = args.name,
                enable = directories.command("exit client enable"),
            ))?;
            print_cut_off(cut_off.as_ref())
        }
        ExitClientCommand::Enable(args) => {
            store.change(&args.name, &ClientChange::Enable)?;
            output::print(&format!("Enabled {}: it can connect again at once.\n", args.name))
        }
        ExitClientCommand::Set(args) => set(&config, args, store.as_mut()),
        ExitClientCommand::Forward(command) => forward::run(command, store.as_mut()),
    }
}

/// Prints which exits of a fleet have applied a removal.
fn print_cut_off(cut_off: Option<&CutOff>) -> anyhow::Result<()> {
    cut_off.map_or(Ok(()), |cut_off| output::print(&format!("{}\n", cut_off.line())))
}

fn set(config: &ExitSettings, args: &ClientSetArgs, store: &mut dyn ClientStore) -> anyhow::Result<()> {
    let is_given = args.no_prefixes || !args.prefixes.is_empty();
    let prefixes = is_given.then(|| args.prefixes.clone());
    let ClientSetArgs { ipv4, ipv6, rate_limit, public_key, allow_removed, .. } = *args;
    add::check_key(config, public_key)?;
    host_networks::refuse(&args.prefixes, config)?;
    let settings = ClientSettings { ipv4, ipv6, prefixes, rate_limit, public_key, allow_removed };
    store.change(&args.name, &ClientChange::Set(settings))?;
    let next = match public_key {
        Some(_) => {
            " It can use either key until it first connects with the new one. Its profile needs the private key that belongs to the new one."
        }
        None => "",
    };
    output::print(&format!("Changed {}.{next}\n", args.name))
}

/// Runs `exit invite` on the store that `open` returns.
pub(crate) fn invite(
    directories: &Directories,
    arguments: &InviteArgs,
    open: impl FnOnce(&ExitSettings) -> anyhow::Result<Box<dyn ClientStore>>,
) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    let mut store = open(&config)?;
    invite::run(&config, arguments, store.as_mut())
}

fn list(directories: &Directories, args: &ClientListArgs, store: &mut dyn ClientStore) -> anyhow::Result<()> {
    let query = query(args);
    let page = all(&query, |page| store.clients(page))?;
    if args.json {
        output::print_json(&page.rows)?;
    } else if page.rows.is_empty() && args.name.is_some() {
        output::print("No client has such a name.\n")?;
    } else {
        output::print(&view::table(&page.rows, &directories.command("exit client add"), SystemTime::now()))?;
    }
    if let Some(next) = &page.next {
        output::note(format!("There are more: add --after {next} to list the next."));
    } else if !args.json {
        let of_name = PageQuery { name: args.name.clone(), ..PageQuery::default() };
        let invitations = all(&of_name, |page| store.invitations(page))?.rows;
        output::print(&view::invited(&invitations, SystemTime::now()))?;
    }
    Ok(())
}

fn list_removed(args: &ClientListArgs, store: &mut dyn ClientStore) -> anyhow::Result<()> {
    if let Some(after) = &args.after {
        PublicKey::unchecked(after)
            .map_err(|error| Failure::new(ExitCode::Usage, format!("--after with --removed: {error}")))?;
    }
    let mut page = all(&query(args), |page| store.removed(page))?;
    page.rows.sort_by(|one, other| (&one.name, &one.removed).cmp(&(&other.name, &other.removed)));
    if args.json {
        return output::print_json(&page.rows);
    }
    output::print(&view::removed(&page.rows, SystemTime::now()))?;
    if page.next.is_some() {
        output::note("There are more: list them without --limit, or with --name.");
    }
    Ok(())
}

fn query(args: &ClientListArgs) -> PageQuery {
    let limit = args.limit.and_then(|limit| usize::try_from(limit).ok());
    PageQuery { name: args.name.clone(), after: args.after.clone(), limit }
}

#[cfg(test)]
mod tests;
