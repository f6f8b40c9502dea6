//! `warren exit invite`: one line to paste on a machine, which then enrols a key of its own.

use std::time::SystemTime;

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
    let endpoint = endpoint(config)?;
    check_name(&arguments.name)?;
    let mut token = [0; InviteToken::LENGTH];
    getrandom::fill(&mut token).context("the operating system gave no random bytes")?;
    let token = InviteToken::new(token);
    let expires = SystemTime::now() + arguments.expires;
    store.invite(&Invitation {
        name: arguments.name.clone(),
        token_sha256: token.digest(),
        expires,
        used_by: None,
    })?;
    let invite = Invite {
        endpoint: endpoint.to_string(),
        exit_key: PeerKey(config.private_key.public().0),
        name: arguments.name.clone(),
        token,
    };
    if let Err(error) = output::print_all(&format!("warren join {invite}\n")) {
        // Nobody has read it.
        store.remove(&arguments.name).context("the invitation could not be withdrawn")?;
        return Err(error);
    }
    output::note(format!(
        "Run this line as root on {}. It works once, until {}, and cannot be shown again.",
        arguments.name,
        timestamp(expires)
    ));
    Ok(())
}
