//! Invitations: what an exit keeps of one, and the line that its client runs.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use warren_session::clients::{Invitation, is_valid_name};
use warren_session::invite::{Invite, InviteToken};

use warren_config::{Endpoint, ExitConfig, ProfileName};
use warren_daemon::daemon_dir::EXIT;

/// An invitation as the registry takes it, and the line to run on the client, which alone has the token.
///
/// # Errors
/// When the exit does not say where clients reach it, or the name cannot be a client's.
pub fn make(config: &ExitConfig, name: &str, expires_in: Duration) -> anyhow::Result<(Invitation, String)> {
    let endpoint = endpoint(config)?;
    check_name(name)?;
    let token = InviteToken::new(warren_daemon::entropy::bytes()?);
    let invitation = Invitation {
        name: name.to_owned(),
        token_sha256: token.digest(),
        expires: SystemTime::now() + expires_in,
        used_by: None,
    };
    let invite = Invite {
        endpoint: endpoint.to_string(),
        exit_key: config.private_key.public(),
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

/// What clients reach the exit at, which exit.toml may leave out.
pub fn endpoint(config: &ExitConfig) -> anyhow::Result<&Endpoint> {
    config.endpoint.as_ref().with_context(|| {
        let file = config.path.display();
        format!("{file}: endpoint is missing in [exit]; write the host and port that clients reach")
    })
}

/// Refuses what cannot be a client's name.
///
/// # Errors
/// Which name, and how one may look.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_valid_name(name) {
        bail!(
            "{:?} cannot be a client's name: use 1 to 63 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit",
            name.chars().take(80).collect::<String>()
        );
    }
    Ok(())
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
