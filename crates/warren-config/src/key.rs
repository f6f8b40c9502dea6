//! Private keys in the configuration: inline, or in a file beside it.

use std::path::{Path, PathBuf};

use warren_quic::key::{KeyError, PrivateKey, PublicKey, read_exit_key_file, read_key_file};

use super::ConfigError;
use super::document::{Located, Section};
use super::value::{Problem, Value};
use super::wording::describe;

/// A section's settings of a private key. The key file has not been read yet.
#[derive(Debug)]
pub(super) struct KeySetting {
    inline: Option<Located<PrivateKey>>,
    file: Option<Located<PathBuf>>,
}

impl KeySetting {
    /// Reads `private_key_file`, and `private_key` where it is allowed.
    pub(super) fn read(section: &mut Section<'_>, allow_inline: bool) -> Result<Self, ConfigError> {
        // A relative path is relative to the directory of the configuration file, not to the working directory.
        let directory = section.path().parent().unwrap_or(Path::new("")).to_path_buf();
        let file = section.optional("private_key_file", |value| {
            let text = value.text("a file name such as \"home.key\"")?;
            if text.is_empty() {
                return Err(value.problem("is empty, but must be a file name such as \"home.key\""));
            }
            Ok(directory.join(text))
        })?;
        let inline = if allow_inline { section.optional("private_key", private_key)? } else { None };
        Ok(Self { inline, file })
    }

    /// The file with the key, unless the key is in the configuration itself.
    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.value.as_path())
    }

    /// The key. `mode` is the configuration file's mode, which must be private if it contains the key.
    pub(super) fn resolve(self, section: &Section<'_>, mode: u32) -> Result<PrivateKey, ConfigError> {
        match (self.inline, self.file) {
            (Some(inline), Some(file)) => Err(section.error(
                // The error is reported at the second of the two keys.
                inline.line.max(file.line),
                "private_key and private_key_file are both set; keep one of the two",
            )),
            // For a key file, `read_key_file` makes this check.
            (Some(inline), None) if mode & 0o077 != 0 => Err(section.error(
                inline.line,
                format!(
                    "private_key is in a file that other users can access (mode {mode:04o}); run: chmod 600 {}",
                    section.path().display()
                ),
            )),
            (Some(inline), None) => Ok(inline.value),
            (None, Some(file)) => {
                let path = credential(&file.value).unwrap_or(file.value);
                read_key_file(&path).map_err(|error| section.error(file.line, key_file_sentence(&error)))
            }
            (None, None) => Err(section.missing("private_key_file", WITHOUT_KEY)),
        }
    }

    /// An exit's keys, which are always in a file of their own.
    pub(super) fn resolve_exit(self, section: &Section<'_>) -> Result<ExitKeys, ConfigError> {
        let Some(file) = self.file else { return Err(section.missing("private_key_file", EXIT_WITHOUT_KEY)) };
        let copy = credential(&file.value);
        let is_copy = copy.is_some();
        let path = copy.unwrap_or_else(|| file.value.clone());
        let (current, old) =
            read_exit_key_file(&path).map_err(|error| section.error(file.line, key_file_sentence(&error)))?;
        Ok(ExitKeys { file: file.value, is_copy, current, old })
    }
}

const WITHOUT_KEY: &str =
    "make a key with \"warren keygen\" and name its file here, or ask the exit's operator for a profile";
const EXIT_WITHOUT_KEY: &str =
    "make a key with \"warren keygen\" and name its file here, or let \"warren exit init\" write both";

/// An exit's keys and the file that they come from.
#[derive(Debug)]
pub struct ExitKeys {
    /// The key file. Under a service manager, only root can read this file, and the service manager passes a copy to the exit.
    pub file: PathBuf,
    /// Whether the keys come from the service manager's copy, which stays the same until a restart.
    pub is_copy: bool,
    /// The key that the exit proves to its clients.
    pub current: PrivateKey,
    /// The previous key. The exit serves clients that pin it until the key is retired.
    pub old: Option<PrivateKey>,
}

/// Returns the path of the copy of the file that systemd passes to this service by `LoadCredential=`. By the copy, a daemon can
/// use a key file that its own user cannot read.
fn credential(file: &Path) -> Option<PathBuf> {
    let directory = std::env::var_os("CREDENTIALS_DIRECTORY")?;
    let path = Path::new(&directory).join(file.file_name()?);
    // If there is no copy of this file, the daemon reads the file itself.
    path.exists().then_some(path)
}

fn key_file_sentence(error: &KeyError) -> String {
    let KeyError::Read { path, source } = error else { return format!("private_key_file: {error}") };
    if source.kind() == std::io::ErrorKind::PermissionDenied {
        return format!(
            "private_key_file: {} cannot be read by this user; run the command as root",
            path.display()
        );
    }
    format!("private_key_file: cannot read {}: {}; check the name", path.display(), describe(source))
}

/// Parses 32 bytes in base64. The error never contains the text, which may be a key with a typing error.
fn private_key(value: Value<'_>) -> Result<PrivateKey, Problem> {
    let expected = "must be a key from \"warren keygen\": 44 characters of base64";
    let text = value.text("a key from \"warren keygen\", between quotes")?;
    PrivateKey::from_base64(text).map_err(|_| value.problem(format!("is not a private key; it {expected}")))
}

/// An exit's public key, or a list of them while the key is being rotated.
pub(super) fn public_keys(value: Value<'_>) -> Result<Vec<PublicKey>, Problem> {
    if !value.is_list() {
        return Ok(vec![public_key(value)?]);
    }
    let mut keys = Vec::new();
    for item in value.items("a key or a list of keys")? {
        let key = public_key(item)?;
        if keys.contains(&key) {
            return Err(item.problem("has the same key twice; remove one of the two"));
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(value.problem("is an empty list; write the key that \"warren exit init\" printed"));
    }
    Ok(keys)
}

fn public_key(value: Value<'_>) -> Result<PublicKey, Problem> {
    let text = value.text("the key that \"warren exit init\" printed, between quotes")?;
    text.parse().map_err(|_| {
        value.problem(
            "is not a public key; it must be the 44 characters of base64 that \"warren exit init\" printed",
        )
    })
}
