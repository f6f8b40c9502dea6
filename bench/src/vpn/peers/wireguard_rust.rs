//! Implementations of WireGuard in Rust, from their crates: Cloudflare's boringtun and Mullvad's gotatun.

use std::path::PathBuf;

use super::{
    install,
    tunnel::{Start, Tunnel},
    wireguard,
};
use crate::interrupt::Interrupt;

pub(super) fn find_boringtun(interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    find("boringtun", "boringtun-cli", "boringtun-cli", interrupt)
}

pub(super) fn find_gotatun(interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    find("gotatun", "gotatun-cli", "gotatun", interrupt)
}

fn find(
    name: &str,
    krate: &str,
    program: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<(String, Vec<PathBuf>)> {
    let programs = install::cargo(name, krate, &[program], interrupt)?;
    Ok((install::version(&programs, &["--version"], interrupt), programs))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    wireguard::start(start, &["--foreground", "--disable-drop-privileges"])
}
