//! The `[wireguard]` section of an exit: where the exit serves WireGuard clients, and its WireGuard key.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use warren_wireguard::PrivateKey;
use zeroize::Zeroizing;

use super::ConfigError;
use super::document::{Document, Located};
use super::endpoint::Endpoint;
use super::file;
use super::storage;
use super::value::{Problem, Value, list, socket_address};
use super::wording::{describe, quoted};

/// How an exit serves WireGuard clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireGuardSettings {
    /// The UDP addresses to listen on: at least one, without duplicates.
    pub listen: Vec<SocketAddr>,
    /// Where clients reach the exit, for new configurations: host and port.
    pub endpoint: Option<Endpoint>,
}

/// Reads the section. Without `listen`, the exit serves no WireGuard.
pub(super) fn read_wireguard(document: &mut Document<'_>) -> Result<Option<WireGuardSettings>, ConfigError> {
    let mut section = document.section("wireguard")?;
    let listen = section.optional("listen", addresses)?;
    let endpoint = section.optional("endpoint", wireguard_endpoint)?;
    section.finish()?;
    match (listen, endpoint) {
        (None, None) => Ok(None),
        (None, Some(Located { line, .. })) => {
            let sentence = "endpoint in [wireguard] has no effect without listen; add listen = \"0.0.0.0:51820\", or remove \
                            endpoint";
            Err(section.error(line, sentence))
        }
        (Some(Located { value, line }), _) if value.is_empty() => {
            Err(section.error(line, format!("listen in [wireguard] is empty, but must be {EXPECTED}")))
        }
        (Some(listen), endpoint) => Ok(Some(WireGuardSettings {
            listen: listen.value,
            endpoint: endpoint.map(|endpoint| endpoint.value),
        })),
    }
}

const EXPECTED: &str =
    "an address such as \"0.0.0.0:51820\", or a list such as [\"0.0.0.0:51820\", \"[::]:51820\"]";

fn addresses(value: Value<'_>) -> Result<Vec<SocketAddr>, Problem> {
    if value.is_list() { list(EXPECTED, socket_address)(value) } else { Ok(vec![socket_address(value)?]) }
}

fn wireguard_endpoint(value: Value<'_>) -> Result<Endpoint, Problem> {
    let text = value.text("a host and a port such as \"exit.example.net:51820\"")?;
    text.parse::<Endpoint>().map_err(|error| value.problem(format!("is {}, but {error}", quoted(text))))
}

/// The file with the exit's WireGuard key, beside its clients' file.
pub fn wireguard_key_path(clients: &Path) -> PathBuf {
    clients.with_file_name("wireguard.key")
}

/// Reads the exit's WireGuard key. `None` if the exit has no such key yet.
///
/// # Errors
/// When the file cannot be read, others may read it, or it does not hold a key.
pub fn read_wireguard_key(path: &Path) -> Result<Option<PrivateKey>, ConfigError> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    // A key has 44 characters. A longer file is damaged.
    let read = file::read_opened(warren_host::open_plain(path), 1_024, path, "restore it from a backup")?;
    let mode = read.metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let sentence =
            format!("may be read by other users (mode {mode:04o}); run: chmod 600 {}", path.display());
        return Err(ConfigError::of_file(path, sentence));
    }
    let key = PrivateKey::from_base64(read.text.trim());
    key.map(Some).map_err(|_| {
        ConfigError::of_file(path, "is damaged: it must hold a WireGuard key; restore it from a backup")
    })
}

/// Writes the exit's WireGuard key into a new file that only its owner can read. The clients' directory must exist.
///
/// # Errors
/// When there is a file already, or it cannot be written.
pub fn write_wireguard_key(path: &Path, key: &PrivateKey) -> Result<(), ConfigError> {
    write_key(path, key, storage::create_new)
}

/// Like [`write_wireguard_key`], but replaces an existing key.
///
/// # Errors
/// When it cannot be written.
pub fn replace_wireguard_key(path: &Path, key: &PrivateKey) -> Result<(), ConfigError> {
    write_key(path, key, storage::write_atomic)
}

fn write_key(
    path: &Path,
    key: &PrivateKey,
    write: fn(&Path, &[u8], u32) -> std::io::Result<()>,
) -> Result<(), ConfigError> {
    let text = Zeroizing::new(format!("{}\n", *key.to_base64()));
    write(path, text.as_bytes(), 0o600).map_err(|error| {
        ConfigError::of_file(path, format!("cannot be written: {}; check its directory", describe(&error)))
    })
}
