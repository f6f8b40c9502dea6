//! The commands that people are told to type next.

use std::path::Path;

use super::args::GlobalArgs;

impl GlobalArgs {
    /// The command as it has to be typed to work on the same directories.
    pub(crate) fn command(&self, words: &str) -> String {
        let directories = [
            ("--config-dir", &self.config_dir, "/etc/warren"),
            ("--runtime-dir", &self.runtime_dir, "/run/warren"),
            ("--state-dir", &self.state_dir, "/var/lib/warren"),
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
        let mut global = GlobalArgs::below(Path::new("/e"));
        let all = "warren exit invite --config-dir /e/etc --runtime-dir /e/run --state-dir /e/state";
        assert_eq!(global.command("exit invite"), all);

        global.config_dir = "/etc/warren".into();
        global.runtime_dir = "/run/it's here".into();
        global.state_dir = "/var/lib/warren".into();
        assert_eq!(global.command("up"), r"warren up --runtime-dir '/run/it'\''s here'");
    }
}
