//! Who may write the clients' files.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::ConfigError;

/// The mode of a new store. The list of clients is private.
pub(super) const MODE: u32 = 0o600;

/// Refuses a file that others may write, because they could enrol any client.
pub(super) fn refuse_what_others_write(path: &Path, metadata: &Metadata) -> Result<(), ConfigError> {
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    // The bits for write permission of the group and of others.
    if mode & 0o022 != 0 {
        let sentence = format!(
            "may be written by other users (mode {mode:04o}); check which clients it lists, then run: chmod 600 {}",
            path.display()
        );
        return Err(ConfigError::of_file(path, sentence));
    }
    let own = rustix::process::geteuid().as_raw();
    let of_directory = path.parent().and_then(|parent| std::fs::metadata(parent).ok());
    // Root, this process's user, and the directory's owner can change the file anyway.
    if [Some(0), Some(own), of_directory.map(|directory| directory.uid())].contains(&Some(owner)) {
        return Ok(());
    }
    let sentence = format!(
        "belongs to user {owner}, but its directory belongs to another user; check which clients it lists, then chown it to \
         the directory's owner"
    );
    Err(ConfigError::of_file(path, sentence))
}

pub(super) fn unwritten(path: &Path, reason: &str) -> ConfigError {
    ConfigError::of_file(path, format!("cannot be written: {reason}; check its directory"))
}
