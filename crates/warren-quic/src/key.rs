//! Ed25519 identities: private keys that are never printed, and key files.

use std::{
    fmt, fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    error::Unspecified,
    signature::{Ed25519KeyPair, KeyPair, Signature},
};
use base64::{Engine, decoded_len_estimate, engine::general_purpose::STANDARD};
pub use warren_session::{PublicKey, PublicKeyError};
use zeroize::Zeroizing;

/// Length in bytes of a private key's seed.
const KEY_LENGTH: usize = 32;

/// An Ed25519 private key. All clones share one copy in aws-lc's memory, which is wiped when the last clone is dropped.
///
/// ```
/// use warren_quic::key::PrivateKey;
///
/// let key = PrivateKey::generate()?;
/// let again = PrivateKey::from_base64(&key.to_base64())?;
/// assert_eq!(key.public(), again.public());
/// assert_eq!(format!("{key:?}"), "PrivateKey(..)");
/// # Ok::<_, warren_quic::key::KeyError>(())
/// ```
#[derive(Clone)]
pub struct PrivateKey(Arc<Ed25519KeyPair>);

impl PrivateKey {
    /// Makes a new key from the operating system's random source.
    ///
    /// # Errors
    /// When that source cannot be read.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0; KEY_LENGTH]);
        getrandom::fill(seed.as_mut_slice()).map_err(KeyError::Random)?;
        Ok(Self::of_seed(&seed))
    }

    /// Reads a key in the format of a key file: standard base64 with padding.
    ///
    /// # Errors
    /// If the text is not base64 of 32 bytes. The message never repeats the text.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        let bytes = decode(text)?;
        let seed = bytes.as_slice().try_into().map_err(|_| KeyError::Length(bytes.len()))?;
        Ok(Self::of_seed(seed))
    }

    /// Returns the key in the format of a key file.
    pub fn to_base64(&self) -> Zeroizing<String> {
        // The DER text is wiped on drop, unlike the results of other accessors of the seed.
        let der: Pkcs8V1Der<'_> = self.0.as_der().expect("there is memory for a few bytes");
        let seed = der.as_ref().last_chunk::<KEY_LENGTH>().expect("the seed is at the end");
        Zeroizing::new(STANDARD.encode(seed))
    }

    /// Returns the key as a line of a key file.
    pub fn to_line(&self) -> Zeroizing<String> {
        let text = self.to_base64();
        // Allocated at full size, because a string that grows leaves its old buffer behind without wiping it.
        let mut line = Zeroizing::new(String::with_capacity(text.len() + 1));
        line.push_str(&text);
        line.push('\n');
        line
    }

    /// Returns the corresponding public key.
    pub fn public(&self) -> PublicKey {
        let mut public = [0; KEY_LENGTH];
        public.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(public)
    }

    /// Signs for the TLS layer.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Signature, Unspecified> {
        self.0.try_sign(message)
    }

    /// Makes the key from its 32-byte seed (RFC 8032).
    fn of_seed(seed: &[u8; KEY_LENGTH]) -> Self {
        // The public key is not checked, because a key file contains none to compare with.
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are an Ed25519 seed");
        Self(Arc::new(pair))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// Reads a private key file, which only its owner may access.
///
/// # Errors
/// If the file cannot be read, is not a regular file, is accessible to others, or does not hold a key. Each message says what to
/// do.
pub fn read_key_file(path: &Path) -> Result<PrivateKey, KeyError> {
    let text = read_private(path, ENCODED_LENGTH)?;
    key_of(path, &text)
}

/// Reads an exit's key file: its key, and during a key rotation the old key on a second line.
///
/// # Errors
/// As [`read_key_file`], or if there are more than two keys.
pub fn read_exit_key_file(path: &Path) -> Result<(PrivateKey, Option<PrivateKey>), KeyError> {
    let text = read_private(path, 2 * ENCODED_LENGTH)?;
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (current, old, more) = (lines.next().unwrap_or_default(), lines.next(), lines.next());
    if more.is_some() {
        return Err(KeyError::TooMany { path: path.to_owned() });
    }
    Ok((key_of(path, current)?, old.map(|line| key_of(path, line)).transpose()?))
}

fn key_of(path: &Path, text: &str) -> Result<PrivateKey, KeyError> {
    PrivateKey::from_base64(text.trim())
        .map_err(|reason| KeyError::Content { path: path.to_owned(), reason: Box::new(reason) })
}

/// Reads a file that only its owner may access and that has about `length` characters.
fn read_private(path: &Path, length: usize) -> Result<Zeroizing<String>, KeyError> {
    let at = || path.to_owned();
    // O_NONBLOCK: a FIFO at the key's path must not hang the daemon.
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|source| KeyError::Read { path: at(), source })?;
    // Checks the open file, not the path, which could be replaced in between.
    let metadata = file.metadata().map_err(|source| KeyError::Read { path: at(), source })?;
    if !metadata.is_file() {
        return Err(KeyError::NotAFile { path: at() });
    }
    let mode = metadata.mode() & 0o7777;
    // Bits for the group and for others.
    if mode & 0o077 != 0 {
        return Err(KeyError::Mode { path: at(), mode });
    }
    // Twice the length leaves room for white space and still detects a file that is too long.
    let mut text = Zeroizing::new(String::with_capacity(2 * length));
    io::Read::read_to_string(&mut io::Read::take(file, 2 * length as u64), &mut text)
        .map_err(|source| KeyError::Read { path: at(), source })?;
    Ok(text)
}

/// Characters of a key in base64.
const ENCODED_LENGTH: usize = 44;

/// Why a private key could not be generated or read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: {0}")]
    Random(getrandom::Error),
    /// The text is not standard base64.
    #[error("a key is 44 characters of base64 (32 bytes with padding), and this is not base64")]
    NotBase64,
    /// The text is base64 of another length.
    #[error("a key is 32 bytes (44 characters of base64), and this is {0} bytes")]
    Length(usize),
    /// The file could not be opened or read.
    #[error("cannot read the key file {path}: {source}; check the file, or name another", path = path.display())]
    Read {
        /// The key file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The path is a directory or a device.
    #[error("the key file {path} is not a regular file; name the file that `warren keygen` wrote", path = path.display())]
    NotAFile {
        /// The key file.
        path: PathBuf,
    },
    /// Users other than the owner may access the file.
    #[error("the key file {path} may be used by others (mode {mode:04o}); run `chmod 600 {path}`", path = path.display())]
    Mode {
        /// The key file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// An exit's key file holds more than two keys.
    #[error("the key file {path} holds more than two keys; keep the new one and, below it, the old one", path = path.display())]
    TooMany {
        /// The key file.
        path: PathBuf,
    },
    /// The file does not hold exactly one key.
    #[error("the key file {path} holds no private key: {reason}; make one with `warren keygen`", path = path.display())]
    Content {
        /// The key file.
        path: PathBuf,
        /// The problem with its content.
        reason: Box<Self>,
    },
}

fn decode(text: &str) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    // Allocated at full size: a growing vector leaves copies behind that are not wiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(decoded_len_estimate(text.len())));
    STANDARD.decode_vec(text, &mut bytes).map_err(|_| KeyError::NotBase64)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key_file(content: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn public_key_is_that_of_rfc_8032() {
        // RFC 8032 section 7.1, test 1.
        let seed = [
            0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4,
            0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60,
        ];
        let public = PrivateKey::of_seed(&seed).public();
        assert_eq!(public.0[..4], [0xd7, 0x5a, 0x98, 0x01]);
        assert_eq!(public.0[28..], [0xf7, 0x07, 0x51, 0x1a]);
    }

    #[test]
    fn keys_survive_their_text_form() {
        let private = PrivateKey::generate().unwrap();
        let again = PrivateKey::from_base64(&private.to_base64()).unwrap();
        assert_eq!(private.public(), again.public());
    }

    #[test]
    fn every_key_that_is_made_is_taken_as_text() {
        for _ in 0..200 {
            let public = PrivateKey::generate().unwrap().public();
            assert_eq!(public.to_string().parse(), Ok(public));
        }
    }

    #[test]
    fn debug_never_shows_the_secret() {
        let private = PrivateKey::generate().unwrap();
        assert_eq!(format!("{private:?}"), "PrivateKey(..)");
    }

    #[test]
    fn key_file_of_its_owner_alone_is_read() {
        let private = PrivateKey::generate().unwrap();
        let text = private.to_line();
        for mode in [0o600, 0o400] {
            let file = key_file(text.as_bytes(), mode);
            assert_eq!(read_key_file(file.path()).unwrap().public(), private.public());
        }
    }

    #[test]
    fn exits_key_file_may_hold_the_old_key_below_the_new_one() {
        let keys: Vec<_> = (0..3).map(|_| PrivateKey::generate().unwrap()).collect();
        let lines: Vec<_> = keys.iter().map(|key| format!("{}\n", *key.to_base64())).collect();
        let read = |lines: &[String]| read_exit_key_file(key_file(lines.concat().as_bytes(), 0o600).path());

        let (current, old) = read(&lines[..1]).unwrap();
        assert_eq!((current.public(), old.map(|key| key.public())), (keys[0].public(), None));
        let (current, old) = read(&lines[..2]).unwrap();
        assert_eq!(
            (current.public(), old.map(|key| key.public())),
            (keys[0].public(), Some(keys[1].public()))
        );
        assert!(matches!(read(&lines), Err(KeyError::TooMany { .. })));
        assert!(matches!(read(&[]), Err(KeyError::Content { .. })));
        let file = key_file(lines[..2].concat().as_bytes(), 0o600);
        assert!(matches!(read_key_file(file.path()), Err(KeyError::Content { .. })), "a client has one");
    }

    #[test]
    fn key_file_others_may_use_is_refused_with_the_fix() {
        let private = PrivateKey::generate().unwrap();
        for mode in [0o640, 0o604, 0o644, 0o620, 0o610, 0o660] {
            let file = key_file(private.to_base64().as_bytes(), mode);
            let error = read_key_file(file.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("{mode:04o}")), "{error}");
            assert!(error.contains(&format!("chmod 600 {}", file.path().display())), "{error}");
            assert!(!error.contains(&**private.to_base64()), "{error}");
        }
    }

    #[test]
    fn wrong_content_is_refused_without_being_repeated() {
        let cases: [(&[u8], &str); 4] = [
            (b"not base64 at all!", "not base64"),
            (b"c2hvcnQ=", "5 bytes"),
            (b"", "0 bytes"),
            (&[b'A'; 88], "66 bytes"),
        ];
        for (content, reason) in cases {
            let file = key_file(content, 0o600);
            let error = read_key_file(file.path()).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
            assert!(content.is_empty() || !error.contains(std::str::from_utf8(content).unwrap()), "{error}");
        }
    }

    #[test]
    fn directory_and_missing_file_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(read_key_file(directory.path()), Err(KeyError::NotAFile { .. })));
        assert!(matches!(read_key_file(&directory.path().join("none")), Err(KeyError::Read { .. })));
    }
}
