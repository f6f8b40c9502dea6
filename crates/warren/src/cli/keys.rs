//! `warren keygen` and `warren pubkey`, which work like `wg genkey` and `wg pubkey`.

use std::io::{self, Read};
use std::os::fd::AsFd;

use anyhow::{Context, bail};
use warren_quic::key::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use warren_daemon::output;

/// Writes a new private key to standard output.
pub(crate) fn keygen() -> anyhow::Result<()> {
    warn_if_others_read_stdout("private key");
    let key = PrivateKey::generate()?;
    output::print_all(&key.to_line())
}

/// Reads a private key from standard input and writes its public key to standard output.
pub(crate) fn pubkey() -> anyhow::Result<()> {
    let key = public_key_of(io::stdin().lock())?;
    output::print(&format!("{key}\n"))
}

/// Warns, like `wg genkey`, when a secret goes to a file that others can read.
pub(crate) fn warn_if_others_read_stdout(secret: &str) {
    if let Some(mode) = file_mode(io::stdout()).filter(|mode| mode & 0o077 != 0) {
        output::warn(format!(
            "the {secret} goes to a file that other users can access (mode {mode:04o}); run chmod 600 on it, or umask \
             077 before the command"
        ));
    }
}

/// The permission bits of the regular file behind a descriptor.
fn file_mode(descriptor: impl AsFd) -> Option<u32> {
    let stat = rustix::fs::fstat(descriptor).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    is_file.then_some(stat.st_mode & 0o7777)
}

fn public_key_of(input: impl Read) -> anyhow::Result<PublicKey> {
    // The limit is enough for a key's 44 characters and white space that an editor may add.
    const LIMIT: u64 = 1024;
    let mut text = Zeroizing::new(String::new());
    input
        .take(LIMIT)
        .read_to_string(&mut text)
        .context("cannot read a private key from standard input; write: warren pubkey < FILE")?;
    if text.trim().is_empty() {
        bail!("standard input has no private key; write: warren pubkey < FILE");
    }
    let key = PrivateKey::from_base64(text.trim())
        .context("standard input is not a private key; make one with: warren keygen")?;
    Ok(key.public())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_key_is_that_of_the_private_key_read() {
        let key = PrivateKey::generate().unwrap();
        let text = format!(" {}\r\n", key.to_base64().as_str());
        assert_eq!(public_key_of(text.as_bytes()).unwrap(), key.public());
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        let long = "A".repeat(5000);
        for text in ["", " \n", "secret", "c2VjcmV0", long.as_str(), "\0"] {
            let error = output::sentence(&public_key_of(text.as_bytes()).unwrap_err());
            assert!(
                !error.contains("secret") && !error.contains("c2Vj") && !error.contains("AAAA"),
                "{error}"
            );
        }
        assert!(public_key_of(&[0xff, 0xfe][..]).is_err());
    }

    #[test]
    fn only_a_regular_file_has_a_mode_to_warn_about() {
        let file = tempfile::tempfile().unwrap();
        assert!(file_mode(&file).is_some());
        assert_eq!(file_mode(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
