//! The membership with which this host has joined its fleet. A link that has never read the store learns the number from here, so it
//! notices if another host has joined under its exit's name.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::is_absent;

/// Returns the directory for the store's credentials. `join` writes them there. For `init`, an operator does.
pub(crate) fn credentials_directory(configuration: &Path) -> PathBuf {
    configuration.join("fleet")
}

/// The file beside the credentials that says with which ticket this host joins (`commands/attempt.rs`).
pub(crate) const ATTEMPT: &str = "join.json";

/// The number of the membership with which this host has joined. `None` if it is not known: this host has begun its fleet, an earlier
/// release has joined, or the file is damaged or cannot be read.
pub(crate) fn joined_as(configuration: &Path) -> Option<u64> {
    /// The part of the file that counts here.
    #[derive(Deserialize)]
    struct Kept {
        #[serde(default)]
        membership: Option<u64>,
    }
    let path = credentials_directory(configuration).join(ATTEMPT);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice::<Kept>(&text).ok()?.membership,
        Err(error) if is_absent(&error) => None,
        Err(error) => {
            tracing::warn!("{} cannot be read: {error}", path.display());
            None
        }
    }
}
