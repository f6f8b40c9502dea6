//! Starts this program again: a detached daemon, a daemon's helper, and the processes of a helper.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::directories::Directories;
use crate::logging::LogSettings;

/// A command that runs this program in `/`, even after an upgrade has replaced its file.
pub fn command() -> Command {
    // In `/`, a relative path in the arguments would refer to another file, so directories are passed as absolute paths.
    let mut command = Command::new(program());
    command.current_dir("/");
    command
}

/// Like [`command`], with this process's directories and log settings as global options.
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

/// Returns the path of the program's file, so that process lists show its name. If that file was replaced, returns the kernel's
/// link to the running program.
pub fn program() -> PathBuf {
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
