//! Fuzzing: any bytes as each of the files that this crate reads.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::clients;
use super::exit::{self, ExitSettings};
use super::file::decode;
use super::profile::{self, ClientProfile};
use super::wording::without_keys;
use super::{ClientKey, profile_text};
use super::{ConfigError, Endpoint, ProfileName};

pub use super::clients::fuzzing::clients_store;

const PROFILE: &str = "home.toml";
const CLIENTS: &str = "clients.toml";
// 32 bytes, each of them 1.
const KEY: &[u8] = b"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// Reads bytes as a profile, as an exit's configuration and as its clients.
///
/// # Panics
/// If an error is not one line that begins with file and line, or if an accepted value changes when it is written and read again.
pub fn configuration(data: &[u8]) {
    let accepted = read(PROFILE, data, |path, text| profile::parse(name(), path, text, 0o600));
    if let Some(profile) = accepted {
        reads_back(&profile);
    }
    if let Some(config) = read_exit(data) {
        config.endpoint.iter().for_each(endpoint_reads_back);
        assert!(!config.listen.is_empty() && config.listen.iter().all(|listen| listen.port() != 0));
        assert!(config.ipv4.is_some() || config.ipv6.is_some());
    }
    if let Some(registry) = read(CLIENTS, data, clients::parse) {
        let path = Path::new(CLIENTS);
        let text = clients::clients_text(path, &registry).expect("a registry that was read can be written");
        assert_eq!(clients::parse(path, &text).as_ref(), Ok(&registry), "{text}");
    }
}

/// An exit's configuration next to a key file with the usual name.
pub fn read_exit(data: &[u8]) -> Option<ExitSettings> {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let file = directory.path().join("exit.key");
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    file.and_then(|mut file| file.write_all(KEY)).expect("a key can be written");
    read(directory.path().join("exit.toml"), data, exit::parse)
}

/// Parses a file with these bytes.
///
/// # Panics
/// If the error is not one line that begins with file and line.
fn read<T>(
    path: impl AsRef<Path>,
    data: &[u8],
    parse: impl FnOnce(&Path, &str) -> Result<T, ConfigError>,
) -> Option<T> {
    let path = path.as_ref();
    match decode(path, data).and_then(|text| parse(path, text)) {
        Ok(value) => Some(value),
        Err(error) => {
            assert_is_one_line(path, data, &error);
            None
        }
    }
}

/// # Panics
/// Unless the error is one line that begins with file and line and contains no key.
pub fn assert_is_one_line(path: &Path, data: &[u8], error: &impl Display) {
    let shown = error.to_string();
    let rest = shown.strip_prefix(&format!("{}:", path.display())).unwrap_or_else(|| panic!("{shown}"));
    let (line, sentence) = rest.split_once(": ").unwrap_or_else(|| panic!("{shown}"));
    let lines = 1 + data.iter().filter(|byte| **byte == b'\n').count();
    assert!(line.parse().is_ok_and(|line: usize| (1..=lines).contains(&line)), "{shown}");
    assert!(!sentence.is_empty() && !sentence.chars().any(char::is_control), "{shown:?}");
    assert_eq!(without_keys(sentence), sentence);
}

fn name() -> ProfileName {
    "home".parse().expect("it is a name")
}

/// Writes a profile with this profile's exit and key, and checks that reading it gives the same exit and key.
fn reads_back(profile: &ClientProfile) {
    let key = profile.private_key.clone();
    for exit in profile.exits() {
        endpoint_reads_back(&exit.endpoint);
        let key = ClientKey::Ours(key.clone());
        let text = profile_text("home", &exit.endpoint, &exit.public_keys, &key);
        let again = profile::parse(name(), Path::new(PROFILE), &text, 0o600)
            .unwrap_or_else(|error| panic!("{error} in {}", text.as_str()));
        assert_eq!(&again.exit, exit);
        assert_eq!(again.private_key.public(), profile.private_key.public());
    }
}

fn endpoint_reads_back(endpoint: &Endpoint) {
    assert_eq!(endpoint.to_string().parse().as_ref(), Ok(endpoint));
}
