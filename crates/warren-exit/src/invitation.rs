//! Invitations: what the exit stores, and the line that the new client runs.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use warren_session::clients::{Invitation, is_valid_name};
use warren_session::invite::{Invite, InviteToken};

use warren_config::{Endpoint, ExitSettings, ProfileName, derived_name};

/// Makes an invitation for the registry, and the line to run on the client. Only the line contains the token.
///
/// # Errors
/// When exit.toml lacks the endpoint, or the name cannot be a client's.
pub fn make(config: &ExitSettings, name: &str, expires_in: Duration) -> anyhow::Result<(Invitation, String)> {
    let endpoint = endpoint(config)?;
    check_name(name)?;
    let token = InviteToken::new(warren_daemon::entropy::bytes()?);
    let invitation = Invitation {
        name: name.to_owned(),
        // The registry keeps only the digest, so nobody who reads the file can use the invitation.
        token_sha256: token.digest(),
        expires: SystemTime::now() + expires_in,
        used_by: None,
        upgrades: None,
    };
    let invite = Invite {
        endpoint: endpoint.to_string(),
        exit_key: config.keys.current.public(),
        name: name.to_owned(),
        token,
    };
    let line = match profile_name(name) {
        Some(other) => format!("warren join {invite} --name {other}"),
        None => format!("warren join {invite}"),
    };
    Ok((invitation, line))
}

/// Returns another profile name, if the client's name cannot name a profile. `None` otherwise.
fn profile_name(client: &str) -> Option<&str> {
    match client.parse::<ProfileName>() {
        Ok(_) => None,
        Err(_) => {
            let shorter =
                client.get(..ProfileName::LONGEST).filter(|name| name.parse::<ProfileName>().is_ok());
            // Names such as `exit` are reserved for this host's exit, so no profile can have them.
            Some(shorter.unwrap_or("warren"))
        }
    }
}

/// The host and port where clients reach the exit.
///
/// # Errors
/// When exit.toml contains no endpoint.
pub fn endpoint(config: &ExitSettings) -> anyhow::Result<&Endpoint> {
    config.endpoint.as_ref().with_context(|| {
        let file = config.path.display();
        format!("{file}: endpoint is missing in [exit]; write the host and port that clients reach")
    })
}

/// Refuses a name that cannot be a client's.
///
/// # Errors
/// The name, and the rule for names.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_valid_name(name) {
        let such_as = derived_name(name).map(|name| format!(", such as {name}")).unwrap_or_default();
        bail!(
            "{:?} cannot be a client's name: use 1 to 63 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit{such_as}",
            name.chars().take(80).collect::<String>()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_people_type_is_refused_with_one_that_can_be_used() {
        assert!(check_name("annas-phone").is_ok());
        let refused = check_name("Anna's phone").unwrap_err().to_string();
        assert!(refused.ends_with("a letter or digit, such as annas-phone"), "{refused}");
        assert!(check_name("").unwrap_err().to_string().ends_with("a letter or digit"));
    }

    #[test]
    fn a_client_name_that_no_profile_can_have_gets_a_profile_name() {
        assert_eq!(profile_name("laptop"), None);
        let long = "l".repeat(63);
        for name in ["exit", &long] {
            profile_name(name).unwrap().parse::<ProfileName>().unwrap();
        }
    }
}
