//! Installs peers from package registries when they are first used. Each peer has its own directory.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;

use crate::{interrupt::Interrupt, vpn::process};

/// Timeout for building a peer. It is long enough for two shared cores.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Returns the directory of a peer's programs, `~/.cache/warren-peers/NAME`.
pub(super) fn directory(name: &str) -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("HOME").context("HOME is not set, but peers are installed below it")?;
    Ok(Path::new(&home).join(".cache/warren-peers").join(name))
}

/// Returns the programs of a crate. If a program is missing, installs the crate.
pub(super) fn cargo(
    name: &str,
    krate: &str,
    programs: &[&str],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<PathBuf>> {
    let root = directory(name)?;
    // All peers share the build directory, so that common dependencies are compiled only once.
    let target = directory("build")?;
    programs_in(name, &root.join("bin"), programs, || {
        let mut command = Command::new("cargo");
        command.args(["install", "--locked", krate, "--root"]).arg(&root);
        // In a directory of the workspace, cargo would apply the workspace's configuration.
        command.arg("--target-dir").arg(target).current_dir("/");
        process::run(&mut command, LIMIT, interrupt).with_context(|| format!("cargo install {krate}"))
    })
}

/// Returns the program of a Go module. If the program is missing, installs the newest version.
pub(super) fn go(name: &str, module: &str, program: &str, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    let bin = directory(name)?.join("bin");
    let programs = programs_in(name, &bin, &[program], || {
        let mut command = Command::new("go");
        command.args(["install", &format!("{module}@latest")]).env("GOBIN", &bin).current_dir("/");
        process::run(&mut command, LIMIT, interrupt).with_context(|| format!("go install {module}"))
    })?;
    programs.into_iter().next().context("one program was asked for")
}

/// Installs the Debian packages of those programs that are missing.
pub(super) fn debian(name: &str, programs: &[(&str, &str)], interrupt: &Interrupt) -> anyhow::Result<()> {
    let missing: Vec<_> = programs.iter().filter(|(program, _)| on_path(program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    eprintln!("installing {name}: package {}", packages.join(", "));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        // Packages must not ask questions, because the benchmark cannot answer them.
        command.arg("-q").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        process::run(&mut command, LIMIT, interrupt)
    };
    apt(&["update"]).context("apt-get update")?;
    let arguments: Vec<_> =
        ["install", "-y", "--no-install-recommends"].into_iter().chain(packages).collect();
    apt(&arguments).context("apt-get install")?;
    Ok(())
}

/// Runs the first program with the arguments, which should make it print its version, and returns the first line of its output.
pub(super) fn version(programs: &[PathBuf], arguments: &[&str], interrupt: &Interrupt) -> String {
    let Some(program) = programs.first() else { return "no program".to_owned() };
    // The exit code is ignored, because some programs print their version and then fail.
    let told = process::run_whatever_it_returns(
        Command::new(program).args(arguments),
        Duration::from_secs(10),
        interrupt,
    );
    let line = told.ok().and_then(|told| told.output.lines().next().map(|line| line.trim().to_owned()));
    line.filter(|line| !line.is_empty()).unwrap_or_else(|| "unknown version".to_owned())
}

/// Returns the path of a program. Searches /usr/sbin and /sbin too, which are not on every user's PATH.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn programs_in(
    name: &str,
    bin: &Path,
    programs: &[&str],
    install: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<Vec<PathBuf>> {
    let paths: Vec<_> = programs.iter().map(|program| bin.join(program)).collect();
    if !paths.iter().all(|path| path.is_file()) {
        eprintln!("installing {name} to {} (takes minutes, once)", bin.display());
        install()?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_installed_again() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("tool"), "").unwrap();
        let found = programs_in("tool", directory.path(), &["tool"], || unreachable!("it is there")).unwrap();
        assert_eq!(found, [directory.path().join("tool")]);
        assert!(programs_in("x", directory.path(), &["x"], || anyhow::bail!("no")).is_err());
    }

    #[test]
    fn programs_of_root_are_found_too() {
        assert!(on_path("sh").is_some());
        assert!(on_path("no-such-program-anywhere").is_none());
    }
}
