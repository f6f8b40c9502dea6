//! The token that gives access to the page.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq as _;
use warren_host::open_plain;
use zeroize::Zeroizing;

use warren_config::storage;

/// Number of random bytes in a token.
const BYTES: usize = 32;

/// Maximum number of bytes that are read from the file. The token has 43 bytes, and a line break follows.
const LONGEST: usize = 64;

/// A token. It can be compared, but is never printed.
pub(super) struct Token(Zeroizing<String>);

impl Token {
    /// Reads the token in the exit's state directory, or makes one.
    ///
    /// # Errors
    /// When the file cannot be read or made, may be read by others, or holds no token. The message says what to do.
    pub(super) fn read_or_make(directory: &Path) -> anyhow::Result<Self> {
        let path = path(directory);
        match open_plain(&path) {
            Ok(file) => Self::of_file(&path, file),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let random = Zeroizing::new(warren_daemon::entropy::bytes::<BYTES>()?);
                let token = Zeroizing::new(URL_SAFE_NO_PAD.encode(*random));
                // The full size is allocated at once, because a string that grows leaves its old buffer behind, unwiped.
                let mut line = Zeroizing::new(String::with_capacity(token.len() + 1));
                line.push_str(&token);
                line.push('\n');
                storage::create_new(&path, line.as_bytes(), 0o600)
                    .with_context(|| format!("cannot write {}; check its directory", path.display()))?;
                Ok(Self(token))
            }
            Err(error) => Err(error)
                .with_context(|| format!("cannot read {}; delete it to get a new one", path.display())),
        }
    }

    fn of_file(path: &Path, file: File) -> anyhow::Result<Self> {
        let mode = file.metadata()?.permissions().mode();
        // Another user may have read the token, so it is no longer a secret.
        if mode & 0o077 != 0 {
            bail!(
                "{}: others may read it (mode {:04o}); delete it, so that a new token is made",
                path.display(),
                mode & 0o7777
            );
        }
        // The capacity is large enough from the start. A string that grows leaves copies of the token in memory, which are not
        // wiped.
        let mut text = Zeroizing::new(String::with_capacity(LONGEST));
        file.take(LONGEST as u64)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read {}; delete it to get a new one", path.display()))?;
        let token = text.trim();
        if URL_SAFE_NO_PAD.decode(token).map_or(0, |bytes| bytes.len()) != BYTES {
            bail!("{} is damaged: it must hold a token; delete it to get a new one", path.display());
        }
        Ok(Self(Zeroizing::new(token.to_owned())))
    }

    /// Whether `shown` is the token. The comparison takes the same time no matter how many bytes are right.
    pub(super) fn is(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token")
    }
}

/// The token's file in the exit's state directory.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join("web.token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_made_once_for_its_owner_alone_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let token = Token::read_or_make(directory.path()).unwrap();
        let path = path(directory.path());
        let text = std::fs::read_to_string(&path).unwrap();

        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(token.is(text.trim()) && text.trim().len() == 43);
        assert!(Token::read_or_make(directory.path()).unwrap().is(text.trim()));
        for wrong in ["", "x", &text, &text.trim()[1..], &format!("{}x", text.trim()), &"A".repeat(43)] {
            assert!(!token.is(wrong), "{wrong:?}");
        }
        assert!(!format!("{token:?}").contains(text.trim()));
    }

    #[test]
    fn token_that_others_may_read_or_that_is_none_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path());
        storage::create_new(&path, b"\n", 0o600).unwrap();
        let damaged = Token::read_or_make(directory.path()).unwrap_err().to_string();
        assert!(damaged.contains("web.token is damaged"), "{damaged}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let open = Token::read_or_make(directory.path()).unwrap_err().to_string();
        assert!(open.contains("others may read it (mode 0644)"), "{open}");
    }
}
