//! `fleet.toml`: which fleet the exit belongs to, and how to reach its store.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use warren_config::ConfigError;
use warren_fleet_link::{ExitId, MAX_ADDRESSES};

use crate::keys::{Keys, is_fleet_name};
use crate::store::StoreOptions;
use crate::tls::{check_authority, check_pair};

/// The name of the file in the configuration directory.
const FILE: &str = "fleet.toml";

/// The content of `fleet.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FleetConfig {
    /// The fleet's name, which its keys in the store begin with.
    pub(crate) fleet: String,
    /// The exit's name in the fleet, as in `[fleet]` of exit.toml.
    pub(crate) exit: ExitId,
    pub(crate) store: StoreConfig,
}

/// `[store]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreConfig {
    /// The members of etcd, such as `https://a.example.net:2379`.
    pub(crate) endpoints: Vec<String>,
    /// The certificate authority of the store, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// This exit's certificate for the store, in PEM. Its common name is the store's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// The store's user, if it is not the certificate's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// A file with that user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) password_file: Option<PathBuf>,
}

impl FleetConfig {
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join(FILE)
    }

    /// The extension of the file while `warren fleet leave` has taken the exit out of its fleet but has not removed all files yet.
    pub(crate) const LEAVING: &str = "toml.leaving";

    /// Checks that the exit does not belong to a fleet yet.
    ///
    /// # Errors
    /// If there is a `fleet.toml` already, if that cannot be found out, or if leaving an earlier fleet was interrupted.
    pub(crate) fn check_free(directory: &Path) -> anyhow::Result<()> {
        let path = Self::path(directory);
        if is_there(&path)? {
            bail!(
                "{} exists, so this exit belongs to a fleet already; leave it with `warren fleet leave` first",
                path.display()
            );
        }
        if is_there(&path.with_extension(Self::LEAVING))? {
            bail!("an earlier `warren fleet leave` was interrupted; run it again first");
        }
        Ok(())
    }

    /// Reads `fleet.toml`.
    ///
    /// # Errors
    /// If there is no `fleet.toml`, or it is wrong.
    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = Self::path(directory);
        Self::find_at(&path)?.with_context(|| {
            format!(
                "{} does not exist, so this exit belongs to no fleet; begin one with `warren fleet init`, or join one with \
                 `warren fleet join TICKET`",
                path.display()
            )
        })
    }

    /// Reads a `fleet.toml` that may have another name. `None` if the file does not exist.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong.
    pub(crate) fn find_at(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match read_text(path) {
            Err(error) if error.downcast_ref().is_some_and(is_absent) => return Ok(None),
            read => read?,
        };
        let config: Self = toml::from_str(&text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| text.get(..span.start).unwrap_or("").matches('\n').count() + 1);
            ConfigError::at_line(path, line, error.message())
        })?;
        config.check().with_context(|| format!("{} is wrong", path.display()))?;
        Ok(Some(config))
    }

    fn check(&self) -> anyhow::Result<()> {
        // Every key in the store begins with the name, so it must not contain a slash.
        if !is_fleet_name(&self.fleet) {
            bail!("`fleet` is {:?}; use up to 63 lower-case letters, digits, `-`, `_` and `.`", self.fleet);
        }
        self.store.check()
    }

    pub(crate) fn keys(&self) -> Keys {
        Keys::new(&self.fleet)
    }
}

impl StoreConfig {
    /// Checks everything that can be checked without reading other files.
    ///
    /// # Errors
    /// If a setting is missing or contradicts another one.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.endpoints.is_empty() {
            bail!(
                "`endpoints` is empty; name the members of the store, such as \"https://a.example.net:2379\""
            );
        }
        // A message to the exit has room for this many members.
        if self.endpoints.len() > MAX_ADDRESSES {
            bail!(
                "`endpoints` names {} members of the store, but may name at most {MAX_ADDRESSES}",
                self.endpoints.len()
            );
        }
        for endpoint in &self.endpoints {
            // The colon ends the host. Otherwise `localhost.example.net` would count as local.
            let is_local = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"]
                .iter()
                .any(|local| endpoint.starts_with(local));
            if !endpoint.starts_with("https://") && !is_local {
                bail!(
                    "the endpoint {endpoint:?} does not begin with https://; only a store on this host may be reached without TLS"
                );
            }
        }
        if self.certificate.is_some() != self.key.is_some() {
            bail!("`certificate` and `key` belong together; name both or none");
        }
        if self.user.is_some() != self.password_file.is_some() {
            bail!("`user` and `password_file` belong together; name both or none");
        }
        Ok(())
    }

    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// If a file cannot be read, or has the wrong content.
    pub(crate) fn options(&self) -> anyhow::Result<StoreOptions> {
        let name_of =
            |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let (ca_name, certificate_name) = (name_of(&self.ca), name_of(&self.certificate));
        let ca = self.ca.as_deref().map(read_text).transpose()?;
        if let Some(pem) = &ca {
            check_authority(&ca_name, pem)?;
        }
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some(read_identity(certificate, key)?),
            _ => None,
        };
        let user = match (&self.user, &self.password_file) {
            // Editors end a file with a line break, which is not part of the password.
            (Some(user), Some(file)) => Some((user.clone(), read_text(file)?.trim_end().to_owned())),
            _ => None,
        };
        Ok(StoreOptions { endpoints: self.endpoints.clone(), ca, identity, user, ca_name, certificate_name })
    }
}

/// Reads a certificate and its private key.
///
/// # Errors
/// If they cannot be read, or do not belong together.
pub(crate) fn read_identity(certificate: &Path, key: &Path) -> anyhow::Result<(String, String)> {
    let identity = (read_text(certificate)?, read_text(key)?);
    let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
    check_pair((&certificate, &identity.0), (&key, &identity.1))?;
    Ok(identity)
}

/// Reads a file that an operator has named, such as a certificate, a key or a roster.
///
/// # Errors
/// If it cannot be read, is too large, or is not text.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    /// Maximum size of such a file.
    const MOST: u64 = 1024 * 1024;
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST + 1).read_to_string(&mut text));
    read.with_context(|| format!("{} cannot be read", path.display()))?;
    if text.len() as u64 > MOST {
        bail!("{} has more than {MOST} bytes, so it is the wrong file; name another one", path.display());
    }
    Ok(text)
}

/// Returns the path of the exit's configuration.
pub(crate) fn exit_toml(directory: &Path) -> PathBuf {
    directory.join("exit.toml")
}

/// Whether a file exists.
///
/// # Errors
/// If the system does not say whether the file exists.
pub(crate) fn is_there(path: &Path) -> anyhow::Result<bool> {
    match path.try_exists() {
        Err(error) if is_absent(&error) => Ok(false),
        found => found.with_context(|| format!("{} cannot be read", path.display())),
    }
}

/// Whether an error says that a file does not exist. Any other error says nothing about that.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(endpoints: &[&str]) -> StoreConfig {
        StoreConfig {
            endpoints: endpoints.iter().map(|&it| it.to_owned()).collect(),
            ..StoreConfig::default()
        }
    }

    #[test]
    fn only_a_store_on_this_host_needs_no_tls() {
        for good in ["https://a.example.net:2379", "http://127.0.0.1:2379", "http://[::1]:2379"] {
            store(&[good]).check().unwrap();
        }
        for bad in ["http://a.example.net:2379", "http://127.0.0.1.example.net:2379", "a.example.net:2379"] {
            assert!(store(&[bad]).check().unwrap_err().to_string().contains(bad), "{bad}");
        }
        assert!(store(&[]).check().is_err());
        store(&["https://a.example.net:2379"; MAX_ADDRESSES]).check().unwrap();
        assert!(store(&["https://a.example.net:2379"; MAX_ADDRESSES + 1]).check().is_err());
    }

    #[test]
    fn a_mistake_is_reported_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(FleetConfig::path(directory.path()), "fleet = \"home\"\nexits = 1\n").unwrap();
        let error = FleetConfig::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("fleet.toml:2: unknown field `exits`"), "{error}");
    }
}
