//! The directories that all commands and daemons of a host share.

use std::path::{Path, PathBuf};

/// The directories of configuration, run-time files and lasting state.
#[derive(Clone, Debug)]
pub struct Directories {
    /// Profiles, `exit.toml` and keys. `/etc/warren` by default.
    pub config: PathBuf,
    /// Files that last until the next boot. `/run/warren` by default.
    pub runtime: PathBuf,
    /// Files that outlast a boot, such as the exit's clients. `/var/lib/warren` by default.
    pub state: PathBuf,
}

impl Directories {
    /// Directories below one directory, for tests.
    pub fn below(directory: &Path) -> Self {
        Self { config: directory.join("etc"), runtime: directory.join("run"), state: directory.join("state") }
    }

    /// Returns the text of a `warren` command with the options that make it use the same directories.
    pub fn command(&self, words: &str) -> String {
        let directories = [
            ("--config-dir", &self.config, "/etc/warren"),
            ("--runtime-dir", &self.runtime, "/run/warren"),
            ("--state-dir", &self.state, "/var/lib/warren"),
        ];
        let mut command = format!("warren {words}");
        for (option, directory, default) in directories {
            if directory != Path::new(default) {
                command += &format!(" {option} {}", shell_word(directory));
            }
        }
        command
    }
}

/// Quotes a path as one word of a shell command.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    // Allows only characters that no shell treats in a special way.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Returns the path of the file with the exits' keys that a profile's daemon has learnt.
pub fn learnt_exit_keys(state: &Path, profile: &str) -> PathBuf {
    state.join("exit-keys").join(format!("{profile}.json"))
}

/// Returns the path of the file with the state of the fleet that a profile's daemon follows.
pub fn followed_fleet(state: &Path, profile: &str) -> PathBuf {
    state.join("fleets").join(format!("{profile}.json"))
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
