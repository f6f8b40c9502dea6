//! wireguard-go: the newest version of its Go module, built by the benchmark. Debian's version is too old to support offloads.

use std::{path::PathBuf, process::Command, time::Duration};

use super::{
    install,
    tunnel::{Start, Tunnel},
    wireguard,
};
use crate::{interrupt::Interrupt, vpn::process};

const MODULE: &str = "golang.zx2c4.com/wireguard";

pub(super) fn find(interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    let program = install::go("wireguard-go", MODULE, "wireguard", interrupt)?;
    let mut command = Command::new("go");
    command.args(["version", "-m"]).arg(&program);
    let built = process::run(&mut command, Duration::from_secs(10), interrupt).unwrap_or_default();
    let version = module_version(&built).unwrap_or("unknown version").to_owned();
    Ok((version, vec![program]))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    wireguard::start(start, ARGUMENTS)
}

pub(super) const ARGUMENTS: &[&str] = &["--foreground"];

/// Returns the module's version from the output of `go version -m`.
fn module_version(text: &str) -> Option<&str> {
    let mut words = text.lines().map(str::split_whitespace).find_map(|mut words| {
        let is_module = words.next() == Some("mod") && words.next() == Some(MODULE);
        is_module.then_some(words)
    })?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_of_the_module() {
        let text = "/x/wireguard: go1.26.8\n\tpath\tgolang.zx2c4.com/wireguard\n\
                    \tmod\tgolang.zx2c4.com/wireguard\tv0.0.0-20260522210424-ecfc5a8d5446\th1:x=\n";
        assert_eq!(module_version(text), Some("v0.0.0-20260522210424-ecfc5a8d5446"));
        assert_eq!(module_version(""), None);
    }
}
