//! Finds the file to which a PROFILE or FILE argument refers.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::ConfigError;
use super::wording::{describe, one_line, quoted, suggestion};

/// A profile's name, which also names a runtime directory and a firewall table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileName(String);

impl ProfileName {
    /// The longest name in bytes.
    pub const LONGEST: usize = 32;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the profile in a file: the file's name without `.toml`.
    pub fn of_file(path: &Path) -> Result<Self, ConfigError> {
        let name = path.file_name().unwrap_or(OsStr::new("")).to_string_lossy();
        let name = name.strip_suffix(".toml").unwrap_or(&name);
        name.parse().map_err(|reason| {
            let sentence =
                format!("cannot be a profile: its name {} {reason}; rename the file", quoted(name));
            ConfigError::of_file(path, sentence)
        })
    }
}

impl FromStr for ProfileName {
    type Err = &'static str;

    /// Parses a name. The error continues after the name.
    fn from_str(name: &str) -> Result<Self, &'static str> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() {
            Err("is empty")
        } else if ["exit", "exit_hold"].contains(&name) {
            // A profile's firewall table is `warren_NAME`. With one of these names, that would be the name of one of the exit's
            // tables.
            Err("is the exit's own")
        } else if name == "fleet" {
            // `fleet.toml` is the configuration of `warren-fleet`.
            Err("is the fleet's own")
        } else if name.len() > Self::LONGEST {
            // The next check makes sure that a name is ASCII, so its length in bytes is its number of
            // characters.
            Err("is longer than 32 characters")
        } else if !name.bytes().all(plain) || !name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            Err(
                "has characters other than a to z, A to Z, digits, dots, dashes and underscores, or does not begin with a letter or digit",
            )
        } else {
            Ok(Self(name.to_owned()))
        }
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Returns the file to which a PROFILE or FILE argument refers. Without an argument, returns the file of the only profile.
///
/// An argument with a slash or ending in `.toml` is a file. Any other is the name of a profile in the configuration
/// directory.
///
/// # Errors
///
/// Lists the known profiles if the requested one does not exist, or if there are several to choose from.
pub fn find_profile(config_directory: &Path, argument: Option<&OsStr>) -> Result<PathBuf, ConfigError> {
    let Some(argument) = argument else { return only_profile(config_directory) };
    let path = Path::new(argument);
    let text = argument.to_string_lossy();
    if text.contains('/') || text.ends_with(".toml") {
        return Ok(path.to_path_buf());
    }
    let file = config_directory.join(format!("{text}.toml"));
    // Names such as `..` are refused, because they would refer to a file outside of the directory.
    ProfileName::of_file(&file)?;
    if file.exists() {
        return Ok(file);
    }
    let names = profile_names(config_directory)?;
    let advice = match suggestion(&text, names.iter().map(ProfileName::as_str)) {
        Some(name) => format!("did you mean {name}?"),
        None if names.is_empty() => {
            "make it from an invitation with `warren join INVITE`, or put a profile from the exit's operator there".to_owned()
        }
        None => format!(
            "choose an existing profile ({}), or make this one from an invitation with `warren join INVITE --name {text}`",
            join(&names)
        ),
    };
    Err(ConfigError::of_file(&file, format!("does not exist; {advice}")))
}

/// Returns the names of the profiles in the configuration directory, in order. A missing directory has no profiles.
pub fn profile_names(config_directory: &Path) -> Result<Vec<ProfileName>, ConfigError> {
    let unreadable = |error: std::io::Error| {
        let is_forbidden = error.kind() == std::io::ErrorKind::PermissionDenied;
        let advice = if is_forbidden { "run it as root" } else { "name a profile's file" };
        let sentence = format!("cannot be listed: {}; {advice}", describe(&error));
        ConfigError::of_file(config_directory, sentence)
    };
    let entries = match std::fs::read_dir(config_directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        if path.extension() == Some(OsStr::new("toml")) {
            // A file with a name that no profile may have is not an error unless the user asks for it.
            names.extend(ProfileName::of_file(&path).ok());
        }
    }
    names.sort();
    Ok(names)
}

fn only_profile(config_directory: &Path) -> Result<PathBuf, ConfigError> {
    let names = profile_names(config_directory)?;
    match names.as_slice() {
        [only] => Ok(config_directory.join(format!("{only}.toml"))),
        [] => Err(ConfigError::of_file(
            config_directory,
            "has no profile; make one with `warren join`, or name a profile's file",
        )),
        several => Err(ConfigError::of_file(
            config_directory,
            format!("has several profiles; name one of {}", one_line(&join(several))),
        )),
    }
}

fn join(names: &[ProfileName]) -> String {
    names.iter().map(ProfileName::as_str).collect::<Vec<_>>().join(", ")
}
