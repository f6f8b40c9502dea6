//! `warren exit client add|list|show|remove|rename|disable|enable|set` and `exit invite`, for a running exit and a
//! stopped one.

mod add;
mod invite;
mod store;
mod view;

use anyhow::bail;

use super::args::{ClientSetArgs, ExitClientCommand, InviteArgs};
use super::host_networks;
use warren_config::{ExitSettings, load_exit};
use warren_control::{ClientChange, ClientSettings, ClientView};
use warren_daemon::directories::Directories;
use warren_daemon::output;

#[cfg(test)]
pub(crate) use store::StoppedExit;
pub(crate) use store::{ClientStore, open};

/// Runs the command on the store that `open` returns: a running exit's, or [`StoppedExit`].
pub(crate) fn run(
    directories: &Directories,
    command: &ExitClientCommand,
    open: impl FnOnce(&ExitSettings) -> anyhow::Result<Box<dyn ClientStore>>,
) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    let mut store = open(&config)?;
    match command {
        ExitClientCommand::Add(args) => add::run(&config, args, store.as_mut()),
        ExitClientCommand::List(args) if args.removed => {
            let removed = store.removed()?;
            if args.json { output::print_json(&removed) } else { output::print(&view::removed(&removed)) }
        }
        ExitClientCommand::List(args) => {
            let clients = store.list()?;
            if args.json {
                return output::print_json(&clients);
            }
            output::print(&view::list(
                &clients,
                &store.invitations()?,
                &directories.command("exit client add"),
            ))
        }
        ExitClientCommand::Show(args) => {
            let client = find(directories, store.as_mut(), &args.name)?;
            if args.json { output::print_json(&client) } else { output::print(&view::text(&client)) }
        }
        ExitClientCommand::Remove(args) => {
            store.remove(&args.name)?;
            output::print(&format!(
                "Removed {name}: its profile or invitation no longer works. Invite it again with: {invite} {name}\n",
                name = args.name,
                invite = directories.command("exit invite"),
            ))
        }
        ExitClientCommand::Rename(args) => {
            store.change(&args.name, &ClientChange::Rename { to: args.new_name.clone() })?;
            output::print(&format!("Renamed {} to {}.\n", args.name, args.new_name))
        }
        ExitClientCommand::Disable(args) => {
            store.change(&args.name, &ClientChange::Disable)?;
            output::print(&format!(
                "Disabled {name}: it is refused, and its addresses stay reserved. Admit it with: {enable} {name}\n",
                name = args.name,
                enable = directories.command("exit client enable"),
            ))
        }
        ExitClientCommand::Enable(args) => {
            store.change(&args.name, &ClientChange::Enable)?;
            output::print(&format!("Enabled {}: it can connect again at once.\n", args.name))
        }
        ExitClientCommand::Set(args) => set(&config, args, store.as_mut()),
    }
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
            " It can use either key until it first connects with the new one. Write the new key into its profile."
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

fn find(directories: &Directories, store: &mut dyn ClientStore, name: &str) -> anyhow::Result<ClientView> {
    let clients = store.list()?;
    if let Some(client) = clients.iter().find(|client| client.name == name) {
        return Ok(client.clone());
    }
    bail!("there is no client {name:?}; `{}` lists the clients", directories.command("exit client list"))
}

#[cfg(test)]
mod tests;
