//! `warren join`: makes a key, enrols it with an invitation, and leaves a profile to connect with.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::invite::Invite;

use super::args::{GlobalArgs, JoinArgs};
use super::exit_client::{ClientKey, profile};
use super::output;
use crate::client::{EnrolError, Enrolment};
use crate::config::{Endpoint, ProfileName, describe, load_profile};
use crate::exit_code::{ExitCode, Failure};
use crate::storage;

/// Leaves a profile whose key is enrolled; or none, unless the exit's answer was lost.
pub(crate) async fn run(global: &GlobalArgs, arguments: JoinArgs) -> anyhow::Result<()> {
    let JoinArgs { invite, name, timeout } = arguments;
    let invited = Invited::of(&invite)?;
    let name = profile_name(name.as_deref(), &invite.name)?;
    let written = Written::prepare(&global.config_dir, &name, &invited)?;
    let enrolment = Enrolment {
        endpoint: &invited.endpoint,
        exit_key: invited.exit_key,
        identity: &written.key,
        token: invite.token.to_wire(),
        name: name.as_str(),
    };
    match enrolment.run(timeout).await {
        Ok(client) => output::print(&format!(
            "Enrolled as {client} and wrote {}. Connect with: {} {name}\n",
            written.path.display(),
            global.command("up"),
        )),
        Err(EnrolError::NotAnswered(sentence)) => {
            let sentence = format!(
                "{sentence}; {} is kept: run the same command again, which goes on with its key",
                written.path.display()
            );
            Err(Failure::new(ExitCode::TimedOut, sentence).into())
        }
        Err(EnrolError::NotReached(sentence)) => {
            written.discard();
            Err(Failure::new(ExitCode::TimedOut, sentence).into())
        }
        Err(EnrolError::Refused(sentence)) => {
            written.discard();
            Err(Failure::new(ExitCode::Refused, sentence).into())
        }
    }
}

/// The exit of an invitation.
struct Invited {
    endpoint: Endpoint,
    exit_key: PublicKey,
}

impl Invited {
    fn of(invite: &Invite) -> anyhow::Result<Self> {
        let endpoint = invite.endpoint.parse().map_err(|reason| {
            anyhow!(
                "the invitation's endpoint {:?} cannot be used: {reason}; ask for a new one",
                invite.endpoint
            )
        })?;
        Ok(Self { endpoint, exit_key: PublicKey(invite.exit_key.0) })
    }
}

fn profile_name(asked: Option<&str>, invited: &str) -> anyhow::Result<ProfileName> {
    let name = asked.unwrap_or(invited);
    name.parse().map_err(|reason| anyhow!("the profile's name {name:?} {reason}; choose another with --name"))
}

/// A profile that is there before the exit is asked, so that an enrolled key is never lost.
struct Written {
    path: PathBuf,
    key: PrivateKey,
    /// Whether this command wrote it.
    is_new: bool,
}

impl Written {
    /// Writes the profile with a new key; one that an earlier try left for the same exit is taken as it is.
    fn prepare(directory: &Path, name: &ProfileName, invited: &Invited) -> anyhow::Result<Self> {
        let path = directory.join(format!("{name}.toml"));
        if fs::symlink_metadata(&path).is_ok() {
            return Self::left_behind(path, invited);
        }
        storage::make_directory(directory).map_err(|error| {
            let reason = describe(&error);
            anyhow!("{} cannot be made: {reason}; choose another --config-dir", directory.display())
        })?;
        storage::remove_abandoned(directory);
        let key = PrivateKey::generate()?;
        let text =
            profile(name.as_str(), &invited.endpoint, &[invited.exit_key], &ClientKey::Ours(key.clone()));
        storage::create_new(&path, text.as_bytes(), 0o600).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                anyhow!("{} was made by somebody else meanwhile and is left as it is; choose another name with --name", path.display())
            } else {
                anyhow!("{} cannot be written: {}; check its directory", path.display(), describe(&error))
            }
        })?;
        Ok(Self { path, key, is_new: true })
    }

    fn left_behind(path: PathBuf, invited: &Invited) -> anyhow::Result<Self> {
        let exit = load_profile(&path).ok().filter(|profile| {
            profile.exit.endpoint == invited.endpoint && profile.exit.public_keys.contains(&invited.exit_key)
        });
        match exit {
            Some(profile) => Ok(Self { path, key: profile.private_key, is_new: false }),
            None => bail!("{} exists already; choose another name with --name", path.display()),
        }
    }

    /// Removes what this command wrote; the exit does not know its key.
    fn discard(self) {
        if self.is_new {
            let _ = fs::remove_file(self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invited(endpoint: &str) -> Invited {
        Invited { endpoint: endpoint.parse().unwrap(), exit_key: PrivateKey::generate().unwrap().public() }
    }

    #[test]
    fn second_try_goes_on_with_the_key_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let (name, invited) = ("home".parse().unwrap(), invited("exit.example.net:443"));

        let first = Written::prepare(&directory.path().join("etc"), &name, &invited).unwrap();
        let second = Written::prepare(&directory.path().join("etc"), &name, &invited).unwrap();

        assert!(first.is_new && !second.is_new);
        assert_eq!(first.key.public(), second.key.public());
        assert!(!load_profile(&first.path).unwrap().not_yet.iter().any(|_| true));
        let path = second.path.clone();
        second.discard();
        assert!(path.exists(), "what another command wrote stays");
        first.discard();
        assert!(!path.exists());
    }

    #[test]
    fn profile_of_another_exit_is_never_touched() {
        let directory = tempfile::tempdir().unwrap();
        let name = "home".parse().unwrap();
        let other = Written::prepare(directory.path(), &name, &invited("exit.example.net:443")).unwrap();
        let before = fs::read(&other.path).unwrap();

        for endpoint in ["exit.example.net:443", "other.example.net:443"] {
            let error = Written::prepare(directory.path(), &name, &invited(endpoint)).err().unwrap();
            assert!(error.to_string().contains("home.toml exists already"), "{error}");
        }

        assert_eq!(fs::read(&other.path).unwrap(), before);
    }

    #[test]
    fn name_that_cannot_be_a_profiles_asks_for_another() {
        for (asked, invited) in [(None, "exit"), (Some("a/b"), "laptop"), (Some(""), "laptop")] {
            let error = profile_name(asked, invited).unwrap_err().to_string();
            assert!(error.contains("--name"), "{error}");
        }
        assert_eq!(profile_name(None, "laptop").unwrap().as_str(), "laptop");
    }
}
