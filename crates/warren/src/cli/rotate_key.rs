//! `warren exit rotate-key`: another key for the exit, with a time in which clients may pin either.

use anyhow::{anyhow, bail};
use warren_quic::key::PrivateKey;
use zeroize::Zeroizing;

use super::args::{GlobalArgs, RotateKeyArgs};
use super::output;
use crate::config::{ExitConfig, describe, load_exit};
use crate::storage;

/// Puts a new key before the old one in the exit's key file, or takes the old one out.
///
/// # Errors
/// When there is a key to retire already, or none, or the file cannot be written.
pub(crate) fn run(global: &GlobalArgs, arguments: &RotateKeyArgs) -> anyhow::Result<()> {
    let config = load_exit(&global.config_dir.join("exit.toml"))?;
    if arguments.retire { retire(&config) } else { rotate(&config) }
}

fn rotate(config: &ExitConfig) -> anyhow::Result<()> {
    if config.old_private_key.is_some() {
        bail!(
            "{} holds an old key already; once no client pins it, run: warren exit rotate-key --retire",
            config.key_file.display()
        );
    }
    let new = PrivateKey::generate()?;
    let old = &config.private_key;
    write(config, &[&new, old])?;
    output::print(&format!(
        "Wrote a new key before the old one in {}.\nNew public key: {}\nOld public key: {}\n\
         Next: restart the exit, which then has both. In each client's profile write both under [[exit]], and reload it:\n  \
         public_key = [\"{}\", \"{}\"]\n\
         New profiles have both already, and invitations the new one. Once every client has the new one, run:\n  \
         warren exit rotate-key --retire\n",
        config.key_file.display(),
        new.public(),
        old.public(),
        new.public(),
        old.public(),
    ))
}

fn retire(config: &ExitConfig) -> anyhow::Result<()> {
    let Some(old) = &config.old_private_key else {
        bail!("{} holds no old key; make a new one with: warren exit rotate-key", config.key_file.display());
    };
    write(config, &[&config.private_key])?;
    output::print(&format!(
        "Took the old key {} out of {}.\nNext: restart the exit; clients that pin the old key alone are refused from then on.\n",
        old.public(),
        config.key_file.display(),
    ))
}

fn write(config: &ExitConfig, keys: &[&PrivateKey]) -> anyhow::Result<()> {
    let mut text = Zeroizing::new(String::new());
    for key in keys {
        text.push_str(&key.to_base64());
        text.push('\n');
    }
    storage::write_atomic(&config.key_file, text.as_bytes(), 0o600).map_err(|error| {
        anyhow!("{} cannot be written: {}; run as root", config.key_file.display(), describe(&error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::ExitInitArgs;
    use crate::cli::exit_init;

    #[test]
    fn new_key_stands_before_the_old_one_until_that_is_retired() {
        let directory = tempfile::tempdir().unwrap();
        let global = GlobalArgs::below(directory.path());
        let endpoint = "192.0.2.1".parse().unwrap();
        exit_init::run(&global, &ExitInitArgs { endpoint, ipv4: None, ipv6: None }).unwrap();
        let keys = || load_exit(&global.config_dir.join("exit.toml")).unwrap().public_keys();
        let rotate = |retire| run(&global, &RotateKeyArgs { retire }).map_err(|error| error.to_string());

        let first = keys();
        assert!(rotate(true).unwrap_err().contains("exit.key holds no old key"));
        rotate(false).unwrap();
        let both = keys();
        assert_eq!((both.len(), both.get(1)), (2, first.first()));
        assert!(rotate(false).unwrap_err().contains("rotate-key --retire"));
        rotate(true).unwrap();
        assert_eq!(keys(), both[..1]);
    }
}
