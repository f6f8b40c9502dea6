//! `warren exit invite`: prints a line that enrols another machine with a key of its own.

use anyhow::Context;

use super::store::ClientStore;
use crate::cli::args::InviteArgs;
use warren_config::ExitSettings;
use warren_control::timestamp;
use warren_daemon::output;
use warren_exit::invitation;

/// Makes an invitation and prints its line. The exit stores only the hash of the token in the line.
pub(super) fn run(
    config: &ExitSettings,
    arguments: &InviteArgs,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let (invitation, line) = invitation::make(config, &arguments.name, arguments.expires)?;
    let name = &arguments.name;
    let is_again = store.is_invited(name)?;
    store.invite(&invitation)?;
    // A client that has this name is a WireGuard client, because the exit refuses to invite any other client.
    let is_upgrade = store.show(name).is_ok();
    if let Err(error) = output::print_all(&format!("{line}\n")) {
        // The line could not be printed, so the invitation is removed again. If the name is that of a WireGuard client, the
        // invitation stays, because removing the name would remove the client.
        if !is_upgrade {
            store.remove(name).context("the invitation could not be withdrawn")?;
        }
        return Err(error);
    }
    output::note(format!(
        "Run this line as root on {name}. It works once, until {}, and cannot be shown again.",
        timestamp(invitation.expires)
    ));
    if is_upgrade {
        output::note(format!(
            "{name} is a WireGuard client. It keeps its addresses, limits and forwards. Once it connects with Warren, its WireGuard configuration no longer works."
        ));
    }
    if is_again {
        output::note(EARLIER_IS_VOID);
    }
    Ok(())
}

/// Printed when something replaces an open invitation.
pub(super) const EARLIER_IS_VOID: &str = "Its earlier invitation no longer works.";
