//! The key for stateless reset tokens. The exit keeps it in the directory of its clients' file.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use warren_config::storage::create_new;
use warren_host::read_plain;

/// Reads the key, or makes one. The key outlives the process, so that a restarted exit can tell clients at once that their old
/// connections are gone (RFC 9000 section 10.3).
///
/// # Errors
/// When the file cannot be read or made, or is not a key.
pub(crate) fn read_or_make(state_dir: &Path) -> anyhow::Result<[u8; 64]> {
    let path = state_dir.join("reset.key");
    // One byte more than a key is read, so that a file that is too long counts as damaged.
    match read_plain(&path, 65) {
        Ok(bytes) => bytes.try_into().map_err(|_| {
            anyhow::anyhow!(
                "{} is damaged: it must hold 64 bytes; delete it to get a new one",
                path.display()
            )
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // The file is secret: anybody with this key can forge resets that end clients' connections (RFC 9000 section 21.11).
            let key = warren_daemon::entropy::bytes::<64>()?;
            create_new(&path, &key, 0o600)
                .with_context(|| format!("cannot write {}; check its directory", path.display()))?;
            Ok(key)
        }
        Err(error) => Err(error).with_context(|| {
            format!("cannot read {}; give it to the user that the exit runs as", path.display())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn reset_key_is_made_once_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let first = read_or_make(directory.path()).unwrap();
        assert_eq!(read_or_make(directory.path()).unwrap(), first);
        let mode = std::fs::metadata(directory.path().join("reset.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn damaged_reset_key_is_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("reset.key"), b"short").unwrap();
        let error = read_or_make(directory.path()).unwrap_err().to_string();
        assert!(error.contains("reset.key") && error.contains("delete it"), "{error}");
    }
}
