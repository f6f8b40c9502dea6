//! One line of the clients' store: a transaction with a checksum, by which an incompletely written line is recognised.
//!
//! A line has the form `CHECKSUM JSON`. The checksum is the first 16 hexadecimal digits of the SHA-256 of the JSON.
//! The JSON is an array. Each element is a row to set, or the key of a row to remove.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use warren_session::clients::RowChange;

/// Number of hexadecimal digits of a line's checksum. With 64 bits, a torn line passes as complete in one of 2^64 cases.
const CHECKSUM: usize = 16;

/// Appends a transaction's line, with its line break.
pub(super) fn write<'a>(
    text: &mut String,
    changes: impl IntoIterator<Item = &'a RowChange>,
) -> Result<(), serde_json::Error> {
    let changes: Vec<_> = changes.into_iter().collect();
    let json = serde_json::to_string(&changes)?;
    text.push_str(&checksum(json.as_bytes()));
    text.push(' ');
    text.push_str(&json);
    text.push('\n');
    Ok(())
}

/// Reads a line without its line break. `None` if the line is torn or was edited.
pub(super) fn read(line: &[u8]) -> Option<Vec<RowChange>> {
    let (shown, rest) = line.split_at_checked(CHECKSUM)?;
    let json = rest.strip_prefix(b" ")?;
    if checksum(json).as_bytes() != shown {
        return None;
    }
    serde_json::from_slice(json).ok()
}

pub(super) fn checksum(bytes: &[u8]) -> String {
    let mut text = digest_of(bytes);
    text.truncate(CHECKSUM);
    text
}

/// The SHA-256 of a text in hexadecimal.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing into a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
