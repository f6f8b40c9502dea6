//! `warren join`: makes a key, enrols it with an invitation, and writes a profile.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use warren_quic::key::{PrivateKey, PublicKey, read_key_file};
use warren_session::invite::Invite;
use zeroize::Zeroizing;

use super::args::JoinArgs;
use warren_client::{EnrolError, Enrolment, accept_learnt_keys};
use warren_config::storage;
use warren_config::{ClientKey, NEW_SETTINGS, profile_text_with, with_private_key};
use warren_config::{ClientProfile, Endpoint, ProfileName, check_profile, describe, load_profile};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;
use warren_host::durable_file::{self, Owner, Unfinished};

/// Enrols a new key and writes a profile with it. If the exit's answer is lost, keeps the key for the next attempt.
pub(crate) async fn run(directories: &Directories, arguments: JoinArgs) -> anyhow::Result<()> {
    run_with(directories, arguments, NEW_SETTINGS).await
}

/// Does the same as [`run`], and also writes these sections into the profile.
pub(crate) async fn run_with(
    directories: &Directories,
    arguments: JoinArgs,
    settings: &str,
) -> anyhow::Result<()> {
    let JoinArgs { invite, name, timeout } = arguments;
    let invited =
        Invited { settings: settings.to_owned(), state: directories.state.clone(), ..Invited::of(&invite)? };
    let name = profile_name(name.as_deref(), &invite.name)?;
    let joining = Joining::prepare(&directories.config, &name, &invited)?;
    if let Err(error) = joining.check(&name, &invited) {
        joining.discard();
        return Err(error);
    }
    let enrolment = Enrolment {
        endpoint: &invited.endpoint,
        exit_key: invited.exit_key,
        identity: &joining.key,
        token: invite.token.to_wire(),
        name: name.as_str(),
    };
    let outcome = tokio::select! {
        outcome = enrolment.run(timeout) => outcome,
        // The request may already have been sent, so this counts as a lost answer.
        _ = tokio::signal::ctrl_c() => Err(EnrolError::NotAnswered("interrupted".to_owned())),
    };
    match outcome {
        Ok(client) => {
            let done = joining.finish(&name, &invited)?;
            let daemon = DaemonDirectory::new(&directories.runtime, name.as_str());
            // A running daemon still uses the earlier key.
            let down = if daemon.is_running().unwrap_or(false) {
                format!("{} {name} && ", directories.command("down"))
            } else {
                String::new()
            };
            output::print(&format!(
                "Enrolled as {client}{done}. Connect with: {down}{} {name}\n",
                directories.command("up")
            ))
        }
        // The exit may have enrolled the key although its answer was lost, so the key must be kept.
        Err(EnrolError::NotAnswered(sentence)) => {
            let sentence = format!(
                "{sentence}; the new key is kept in {}: run the same command again to continue with it",
                joining.key_path().display()
            );
            Err(Failure::new(ExitCode::TimedOut, sentence).into())
        }
        Err(EnrolError::NotReached(sentence)) => {
            joining.discard();
            Err(Failure::new(ExitCode::TimedOut, sentence).into())
        }
        Err(EnrolError::Refused(sentence)) => {
            joining.discard();
            Err(Failure::new(ExitCode::Refused, sentence).into())
        }
    }
}

/// The beginning of the comment in a profile that identifies the invitation by which its key was enrolled.
const MARK: &str = "# Enrolled with the invitation ";

/// The content of an invitation, apart from its token.
struct Invited {
    endpoint: Endpoint,
    exit_key: PublicKey,
    /// Distinguishes this invitation from others.
    label: String,
    /// The profile's sections, without those of the exit and the key.
    settings: String,
    /// The directory in which this machine keeps exits' keys that it has learnt.
    state: PathBuf,
}

impl Invited {
    fn of(invite: &Invite) -> anyhow::Result<Self> {
        let endpoint = invite.endpoint.parse().map_err(|reason| {
            anyhow!(
                "the invitation's endpoint {:?} cannot be used: {reason}; ask for a new one",
                invite.endpoint
            )
        })?;
        let label = invite.token.digest().label();
        let settings = NEW_SETTINGS.to_owned();
        Ok(Self { endpoint, exit_key: invite.exit_key, label, settings, state: PathBuf::new() })
    }

    /// Returns the comment for a profile that identifies this invitation.
    fn mark(&self) -> String {
        format!("{MARK}{}.", self.label)
    }
}

fn profile_name(asked: Option<&str>, invited: &str) -> anyhow::Result<ProfileName> {
    let name = asked.unwrap_or(invited);
    name.parse().map_err(|reason| anyhow!("the profile's name {name:?} {reason}; choose another with --name"))
}

/// The key of an attempt to join. It is on disk before the exit is asked, so that an enrolled key is never lost. Each invitation
/// gets its own key, because the exit may have removed the key of an earlier invitation.
struct Joining {
    profile: PathBuf,
    before: Before,
    /// Where the key is stored until it is in the profile.
    key_file: PathBuf,
    key: PrivateKey,
    /// Whether this command wrote the key's file.
    is_new: bool,
}

/// The state of the file under the profile's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A profile of the same exit with an earlier key.
    OtherKey,
    /// The profile that this invitation produced.
    ThisInvitation,
}

impl Joining {
    /// Reads the key that an earlier attempt with the same invitation left, or makes one. Does not change the profile.
    fn prepare(directory: &Path, name: &ProfileName, invited: &Invited) -> anyhow::Result<Self> {
        let profile = directory.join(format!("{name}.toml"));
        let key_file = directory.join(format!("join-{}.key", invited.label));
        let (before, key) = look_at(&profile, invited)?;
        // An earlier `join` with this invitation has enrolled this key. Enrolling it again changes nothing, and shows whether the
        // exit still knows it.
        if let Some(key) = key {
            return Ok(Self { profile, before, key_file, key, is_new: false });
        }
        // An earlier attempt has left its key, which is used again, because the exit may have enrolled it.
        if fs::symlink_metadata(&key_file).is_ok() {
            let key = read_key_file(&key_file)?;
            return Ok(Self { profile, before, key_file, key, is_new: false });
        }
        storage::make_directory(directory).map_err(|error| {
            let reason = describe(&error);
            anyhow!("{} cannot be created: {reason}; choose another --config-dir", directory.display())
        })?;
        storage::remove_abandoned(directory);
        let key = PrivateKey::generate()?;
        storage::create_new(&key_file, key.to_line().as_bytes(), 0o600).map_err(|error| {
            anyhow!("{} cannot be written: {}; check its directory", key_file.display(), describe(&error))
        })?;
        Ok(Self { profile, before, key_file, key, is_new: true })
    }

    /// Returns where the key is stored.
    fn key_path(&self) -> &Path {
        if self.before == Before::ThisInvitation { &self.profile } else { &self.key_file }
    }

    /// Writes the profile of the enrolled key, and returns a description of it. An earlier profile is kept under another name.
    fn finish(self, name: &ProfileName, invited: &Invited) -> anyhow::Result<String> {
        let path = self.profile.display();
        if self.before == Before::ThisInvitation {
            // An earlier attempt that was killed just before its end may have left this file.
            drop(fs::remove_file(&self.key_file));
            // The profile was written before, and may have been changed since.
            let has_settings =
                fs::read_to_string(&self.profile).is_ok_and(|text| text.contains(&invited.settings));
            let left = if has_settings { "" } else { ", and keeps its settings" };
            return Ok(format!("; {path} is the profile{left}"));
        }
        let old = self.profile.with_extension("toml.old");
        let cannot = |error: &io::Error| {
            anyhow!(
                "the key is enrolled, but {path} cannot be written: {}; run the same command again, or with another --name",
                describe(error)
            )
        };
        let (text, is_kept) = self.text(name, invited);
        if self.before == Before::OtherKey {
            self.keep_earlier(&old).map_err(|error| cannot(&error))?;
        }
        // The profile is written before the key file is removed, so the key is always on disk. An earlier profile is replaced in
        // one step, so its settings are never missing, even if this process is killed or the disk is full.
        let written = match self.before {
            Before::OtherKey => {
                durable_file::replace(&self.profile, Unfinished::Random, text.as_bytes(), 0o600, None)
            }
            Before::Nothing | Before::ThisInvitation => {
                storage::create_new(&self.profile, text.as_bytes(), 0o600)
            }
        };
        written.map_err(|error| cannot(&error))?;
        drop(fs::remove_file(&self.key_file));
        Ok(match self.before {
            Before::OtherKey => {
                let settings = if is_kept { "and its settings" } else { "but without its settings" };
                let old = old.display();
                format!(" and wrote {path} with a new key {settings}; the earlier profile is now {old}")
            }
            Before::Nothing | Before::ThisInvitation => format!(" and wrote {path}"),
        })
    }

    /// Checks the profile that [`Self::finish`] will write, because an invitation works only once.
    ///
    /// # Errors
    /// What is wrong with a setting.
    fn check(&self, name: &ProfileName, invited: &Invited) -> anyhow::Result<()> {
        if self.before == Before::ThisInvitation {
            return Ok(());
        }
        let (text, _) = self.text(name, invited);
        check_profile(&self.profile, &text)
            .context("the profile could not be used, so the invitation was not used either")
    }

    /// The text of the profile, and whether it has the settings of an earlier one.
    fn text(&self, name: &ProfileName, invited: &Invited) -> (Zeroizing<String>, bool) {
        let kept = self.with_earlier_settings(invited);
        let is_kept = kept.is_some();
        let text = kept.unwrap_or_else(|| {
            let key = ClientKey::Ours(self.key.clone());
            let exit = [invited.exit_key];
            profile_text_with(name.as_str(), &invited.endpoint, &exit, &key, &invited.settings)
        });
        (Zeroizing::new([text.as_str(), "\n", &invited.mark(), "\n"].concat()), is_kept)
    }

    /// Copies the earlier profile to `old`. The profile itself stays where it is.
    fn keep_earlier(&self, old: &Path) -> io::Result<()> {
        let text = Zeroizing::new(fs::read(&self.profile)?);
        let metadata = fs::metadata(&self.profile)?;
        let (mode, owner) = (metadata.mode() & 0o777, Owner::of(&metadata));
        durable_file::replace(old, Unfinished::Random, &text, mode, Some(owner))
    }

    /// Returns the earlier profile with the new key. `None` if there is none, or other settings were asked for.
    fn with_earlier_settings(&self, invited: &Invited) -> Option<Zeroizing<String>> {
        if self.before != Before::OtherKey || invited.settings != NEW_SETTINGS {
            return None;
        }
        let text = Zeroizing::new(fs::read_to_string(&self.profile).ok()?);
        let unmarked: Vec<&str> = text.lines().filter(|line| !line.starts_with(MARK)).collect();
        let unmarked = Zeroizing::new(unmarked.join("\n"));
        let text = with_private_key(unmarked.trim_end(), &self.key)?;
        Some(Zeroizing::new([text.as_str(), "\n"].concat()))
    }

    /// Removes the files of this command, because the exit has not enrolled the key.
    fn discard(self) {
        if self.is_new {
            drop(fs::remove_file(self.key_file));
        }
    }
}

/// Returns the state of the file under the profile's name, and its key if this invitation enrolled that key.
///
/// # Errors
/// When the file is not a profile of the invitation's exit.
fn look_at(path: &Path, invited: &Invited) -> anyhow::Result<(Before, Option<PrivateKey>)> {
    if fs::symlink_metadata(path).is_err() {
        return Ok((Before::Nothing, None));
    }
    let mut profile = load_profile(path).ok();
    if let Some(profile) = &mut profile {
        accept_learnt_keys(&invited.state, profile);
    }
    let is_of_exit =
        |profile: &ClientProfile| profile.exits().any(|exit| exit.public_keys.contains(&invited.exit_key));
    let Some(profile) = profile.filter(is_of_exit) else {
        bail!(
            "{} exists already and is not a profile of the invitation's exit; choose another name with --name, or, if the profile is for \
             that exit and only the exit's key has changed, write the new key {} into it",
            path.display(),
            invited.exit_key
        );
    };
    let text = Zeroizing::new(fs::read_to_string(path)?);
    if text.lines().any(|line| line == invited.mark()) {
        return Ok((Before::ThisInvitation, Some(profile.private_key)));
    }
    Ok((Before::OtherKey, None))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use warren_session::invite::InviteToken;

    use super::*;

    fn name() -> ProfileName {
        "home".parse().unwrap()
    }

    fn invited(exit: PublicKey, token: u8) -> Invited {
        let invite = Invite {
            endpoint: "exit.example.net:443".to_owned(),
            exit_key: exit,
            name: "home".to_owned(),
            token: InviteToken::new([token; 16]),
        };
        Invited::of(&invite).unwrap()
    }

    fn exit() -> PublicKey {
        PrivateKey::generate().unwrap().public()
    }

    fn key_in(profile: &Path) -> PublicKey {
        load_profile(profile).unwrap().private_key.public()
    }

    fn files(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn interrupted_join_goes_on_with_its_key_under_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let (directory, invited) = (directory.path().join("etc"), invited(exit(), 1));

        let first = Joining::prepare(&directory, &name(), &invited).unwrap();
        assert!(!first.profile.exists(), "there is no profile before the key is enrolled");
        assert_eq!(fs::metadata(&first.key_file).unwrap().permissions().mode() & 0o7777, 0o600);
        let key = first.key.public();
        let second = Joining::prepare(&directory, &"work".parse().unwrap(), &invited).unwrap();
        assert!(first.is_new && !second.is_new);
        second.discard();
        let third = Joining::prepare(&directory, &name(), &invited).unwrap();
        let profile = third.profile.clone();
        let said = third.finish(&name(), &invited).unwrap();

        assert!(said.contains("wrote") && key_in(&profile) == key, "{said}");
        assert_eq!(files(&directory), 1, "the key is in the profile alone");
        // The state after the exit has answered but the answer was lost.
        let again = Joining::prepare(&directory, &name(), &invited).unwrap();
        assert_eq!(again.key.public(), key);
        let said = again.finish(&name(), &invited).unwrap();
        assert!(!said.contains("wrote") && files(&directory) == 1, "{said}");
    }

    #[test]
    fn another_invitation_has_another_key_and_keeps_the_profile_of_before() {
        let directory = tempfile::tempdir().unwrap();
        let exit = exit();
        let first = Joining::prepare(directory.path(), &name(), &invited(exit, 1)).unwrap();
        let (profile, old_key) = (first.profile.clone(), first.key.public());
        first.finish(&name(), &invited(exit, 1)).unwrap();

        let second = Joining::prepare(directory.path(), &name(), &invited(exit, 2)).unwrap();
        let new_key = second.key.public();
        assert_ne!(new_key, old_key);
        assert_eq!(key_in(&profile), old_key, "nothing changes before the exit has answered");
        let said = second.finish(&name(), &invited(exit, 2)).unwrap();

        let old = directory.path().join("old.toml");
        fs::rename(directory.path().join("home.toml.old"), &old).unwrap();
        assert_eq!((key_in(&profile), key_in(&old)), (new_key, old_key));
        assert!(said.contains("with a new key") && said.contains("home.toml.old"), "{said}");
        assert_eq!(files(directory.path()), 2);
    }

    /// Joins with the invitation of this token. Returns the profile, its key, and what the command says.
    fn join(directory: &Path, exit: PublicKey, token: u8) -> (PathBuf, PublicKey, String) {
        let invited = invited(exit, token);
        let joining = Joining::prepare(directory, &name(), &invited).unwrap();
        let (profile, key) = (joining.profile.clone(), joining.key.public());
        (profile, key, joining.finish(&name(), &invited).unwrap())
    }

    #[test]
    fn another_invitation_keeps_the_settings_of_before() {
        let directory = tempfile::tempdir().unwrap();
        let exit = exit();
        let join = |token| join(directory.path(), exit, token);
        let (profile, ..) = join(1);
        let edited = fs::read_to_string(&profile).unwrap() + "\n[kill_switch]\nenabled = true\n";
        fs::write(&profile, edited).unwrap();

        for token in [2, 3] {
            let (_, key, said) = join(token);
            assert!(load_profile(&profile).unwrap().kill_switch.enabled && key_in(&profile) == key);
            assert!(said.contains("and its settings"), "{said}");
            assert_eq!(fs::read_to_string(&profile).unwrap().matches(MARK).count(), 1);
        }
        // As a control, settings that are asked for replace the earlier ones.
        let asked = Invited { settings: "[routes]\nlan = false\n".to_owned(), ..invited(exit, 4) };
        let said =
            Joining::prepare(directory.path(), &name(), &asked).unwrap().finish(&name(), &asked).unwrap();
        assert!(!load_profile(&profile).unwrap().kill_switch.enabled);
        assert!(said.contains("but without its settings"), "{said}");
    }

    #[test]
    fn profile_is_missing_at_no_moment_while_another_invitation_replaces_it() {
        let directory = tempfile::tempdir().unwrap();
        let exit = exit();
        let join = |token| join(directory.path(), exit, token);
        let (profile, ..) = join(1);
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| (2..40).for_each(|token| drop(join(token))));
            while !joins.is_finished() {
                assert!(profile.exists());
            }
        });
    }

    #[test]
    fn settings_that_no_profile_can_have_are_refused_before_the_exit_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let settings = "[routes]\ninclude = [\"10.0.0.0/8\"]\n\n[dns]\ndomains = [\"~corp.example\"]\n";
        let invited = invited(exit(), 1);
        let wrong = Invited { settings: settings.to_owned(), ..invited };
        let joining = Joining::prepare(directory.path(), &name(), &wrong).unwrap();

        let error = format!("{:#}", joining.check(&name(), &wrong).unwrap_err());
        assert!(error.contains("domains in [dns] has \"~corp.example\""), "{error}");

        let right = Invited { settings: settings.replace('~', ""), ..wrong };
        joining.check(&name(), &right).unwrap();
    }

    #[test]
    fn refused_join_leaves_what_there_was() {
        let directory = tempfile::tempdir().unwrap();
        let exit = exit();
        let first = Joining::prepare(directory.path(), &name(), &invited(exit, 1)).unwrap();
        let (profile, key) = (first.profile.clone(), first.key.public());
        first.finish(&name(), &invited(exit, 1)).unwrap();

        Joining::prepare(directory.path(), &name(), &invited(exit, 2)).unwrap().discard();

        assert_eq!((key_in(&profile), files(directory.path())), (key, 1));
    }

    #[test]
    fn profile_of_another_exit_is_never_touched() {
        let directory = tempfile::tempdir().unwrap();
        let other = invited(exit(), 1);
        let joining = Joining::prepare(directory.path(), &name(), &other).unwrap();
        let path = joining.profile.clone();
        joining.finish(&name(), &other).unwrap();
        let before = fs::read(&path).unwrap();

        let error = Joining::prepare(directory.path(), &name(), &invited(exit(), 1)).err().unwrap();

        assert!(error.to_string().contains("home.toml exists already"), "{error}");
        assert_eq!((fs::read(&path).unwrap(), files(directory.path())), (before, 1));
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
