//! `warren exit invite`: one line to paste on a machine, which then enrols a key of its own.

use std::time::{Duration, SystemTime};

use anyhow::Context;
use warren_session::PeerKey;
use warren_session::clients::Invitation;
use warren_session::invite::{Invite, InviteToken};

use super::add::{check_name, endpoint};
use super::store::ClientStore;
use super::view::timestamp;
use crate::cli::args::InviteArgs;
use crate::cli::output;
use crate::config::ExitConfig;

/// Prints the line; the exit keeps the hash of its token and nothing else of it.
pub(super) fn run(
    config: &ExitConfig,
    arguments: &InviteArgs,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let (invitation, line) = make(config, &arguments.name, arguments.expires)?;
    store.invite(&invitation)?;
    if let Err(error) = output::print_all(&format!("{line}\n")) {
        // Nobody has read it.
        store.remove(&arguments.name).context("the invitation could not be withdrawn")?;
        return Err(error);
    }
    output::note(format!(
        "Run this line as root on {}. It works once, until {}, and cannot be shown again.",
        arguments.name,
        timestamp(invitation.expires)
    ));
    Ok(())
}

/// An invitation as the registry takes it, and the line to run on the client, which alone has the token.
///
/// # Errors
/// When the exit does not say where clients reach it, or the name cannot be a client's.
pub(crate) fn make(
    config: &ExitConfig,
    name: &str,
    expires_in: Duration,
) -> anyhow::Result<(Invitation, String)> {
    let endpoint = endpoint(config)?;
    check_name(name)?;
    let token = InviteToken::new(crate::entropy::bytes()?);
    let invitation = Invitation {
        name: name.to_owned(),
        token_sha256: token.digest(),
        expires: SystemTime::now() + expires_in,
        used_by: None,
    };
    let invite = Invite {
        endpoint: endpoint.to_string(),
        exit_key: PeerKey(config.private_key.public().0),
        name: name.to_owned(),
        token,
    };
    Ok((invitation, format!("warren join {invite}")))
}
