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
use crate::config::{ExitConfig, ProfileName};
use crate::daemon_dir::EXIT;

/// Prints the line; the exit keeps the hash of its token and nothing else of it.
pub(super) fn run(
    config: &ExitConfig,
    arguments: &InviteArgs,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let (invitation, line) = make(config, &arguments.name, arguments.expires)?;
    let is_again = is_invited(store, &arguments.name)?;
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
    if is_again {
        output::note(EARLIER_IS_VOID);
    }
    Ok(())
}

/// Said when something takes an open invitation's place.
pub(super) const EARLIER_IS_VOID: &str = "The line that invited it before does not work any more.";

/// Whether somebody may still join by that name.
pub(super) fn is_invited(store: &mut dyn ClientStore, name: &str) -> anyhow::Result<bool> {
    Ok(store.invitations()?.iter().any(|invitation| invitation.name == name))
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
    let line = match profile_name(name) {
        Some(other) => format!("warren join {invite} --name {other}"),
        None => format!("warren join {invite}"),
    };
    Ok((invitation, line))
}

/// What the profile is called whose client has a name that is none of a profile.
fn profile_name(client: &str) -> Option<&str> {
    match client.parse::<ProfileName>() {
        Ok(_) => None,
        Err(_) if client == EXIT => Some("warren"),
        Err(_) => Some(client.get(..ProfileName::LONGEST).unwrap_or(client)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_for_a_name_that_profiles_cannot_have_names_one_that_they_can() {
        assert_eq!(profile_name("laptop"), None);
        let long = "l".repeat(63);
        for name in ["exit", &long] {
            profile_name(name).unwrap().parse::<ProfileName>().unwrap();
        }
    }
}
