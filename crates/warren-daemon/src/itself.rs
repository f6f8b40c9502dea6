//! Processes of this program's own: a detached daemon, a daemon's helper, and what helpers start.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::directories::Directories;
use crate::logging::LogSettings;

/// A command that runs this program in `/`, also after an upgrade has put another file into its place.
pub fn command() -> Command {
    let mut command = Command::new(program());
    command.current_dir("/");
    command
}

/// The same, with the directories and the log settings of this process as its global options.
pub fn command_like_this(directories: &Directories, log: &LogSettings) -> Command {
    let mut command = command();
    let Directories { config, runtime, state } = directories;
    for (option, directory) in [("--config-dir", config), ("--runtime-dir", runtime), ("--state-dir", state)]
    {
        command.arg(option).arg(directory);
    }
    command.args(["--log", &log.filter, "--log-format", log.format.name()]);
    command
}

/// The program's file, for people who look at a list of processes, or the kernel's link to it when the file was replaced.
fn program() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    let is_this = |path: &PathBuf| is_same_file(path, link);
    std::env::current_exe().ok().filter(is_this).unwrap_or_else(|| link.to_owned())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    let identity = |path: &Path| path.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_the_same_name_that_another_program_has_taken_is_not_this_program() {
        assert!(is_same_file(&program(), Path::new("/proc/self/exe")));
        assert!(!is_same_file(Path::new("/bin/sh"), Path::new("/proc/self/exe")));
    }
}
