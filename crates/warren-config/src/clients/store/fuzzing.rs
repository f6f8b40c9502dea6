//! Fuzzing: any bytes as the clients' store.

use std::path::Path;

use super::{Contents, FORMAT, NAME, NO_IMPORT, read_lines, record};
use crate::ConfigError;

/// Reads `data` as a store, and again as the lines of a store to which the right checksums are added.
///
/// # Panics
/// If an error is not one line that begins with the file's name, or if an accepted store changes when it is written and
/// read again.
pub fn clients_store(data: &[u8]) {
    let _ = outcome(data);
    let mut bytes = header().into_bytes();
    for line in data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        bytes.extend(record::checksum(line).into_bytes());
        bytes.push(b' ');
        bytes.extend([line, b"\n"].concat());
    }
    let Some(contents) = outcome(&bytes) else { return };
    // A last line that contains zeros may be the result of a power cut, so it may be ignored.
    assert!(contents.length == bytes.len() as u64 || bytes.contains(&0), "every line was read");

    let mut snapshot = header();
    for row in contents.registry.rows() {
        record::write(&mut snapshot, [&row]).expect("a row that was read can be written");
    }
    let again = outcome(snapshot.as_bytes()).expect("a snapshot can be read");
    assert_eq!(again.registry, contents.registry, "{snapshot}");

    // Simulates a power cut by removing the end of the last line, whose change was not reported as successful yet.
    let whole = bytes.len() as u64;
    bytes.truncate(bytes.len() - 1 - data.len() % 2);
    if let Some(before) = outcome(&bytes) {
        assert!(before.length < whole && before.written <= contents.written);
    }
}

fn header() -> String {
    format!("{NAME} {FORMAT} {NO_IMPORT}\n")
}

fn outcome(bytes: &[u8]) -> Option<Contents> {
    let path = Path::new("clients.store");
    read_lines(path, bytes).inspect_err(is_one_line).ok()
}

/// # Panics
/// Unless the error is one line that begins with the file's name.
fn is_one_line(error: &ConfigError) {
    let shown = error.to_string();
    let sentence = shown.strip_prefix("clients.store:").unwrap_or_else(|| panic!("{shown}"));
    assert!(!sentence.is_empty() && !sentence.chars().any(char::is_control), "{shown:?}");
}
