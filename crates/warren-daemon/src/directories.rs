//! The directories that the commands and daemons of one host share.

use std::path::{Path, PathBuf};

/// Where configuration, run-time files and lasting state are.
#[derive(Clone, Debug)]
pub struct Directories {
    /// Profiles, `exit.toml` and keys; `/etc/warren` unless said.
    pub config: PathBuf,
    /// What lives until the next boot; `/run/warren` unless said.
    pub runtime: PathBuf,
    /// What outlives a boot, such as the exit's clients; `/var/lib/warren` unless said.
    pub state: PathBuf,
}

impl Directories {
    /// Directories that are all below one, for tests.
    pub fn below(directory: &Path) -> Self {
        Self { config: directory.join("etc"), runtime: directory.join("run"), state: directory.join("state") }
    }

    /// The command as it has to be typed to work on the same directories.
    pub fn command(&self, words: &str) -> String {
        let directories = [
            ("--config-dir", &self.config, "/etc/warren"),
            ("--runtime-dir", &self.runtime, "/run/warren"),
            ("--state-dir", &self.state, "/var/lib/warren"),
        ];
        let mut command = format!("warren {words}");
        for (option, directory, default) in directories {
            if directory != Path::new(default) {
                command += &format!(" {option} {}", quoted(directory));
            }
        }
        command
    }
}

/// A path as a shell takes it for one word.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_that_is_not_the_default_is_named_and_survives_the_shell() {
        let mut directories = Directories::below(Path::new("/e"));
        let all = "warren exit invite --config-dir /e/etc --runtime-dir /e/run --state-dir /e/state";
        assert_eq!(directories.command("exit invite"), all);

        directories.config = "/etc/warren".into();
        directories.runtime = "/run/it's here".into();
        directories.state = "/var/lib/warren".into();
        assert_eq!(directories.command("up"), r"warren up --runtime-dir '/run/it'\''s here'");
    }
}
