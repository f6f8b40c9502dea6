//! boringtun: Cloudflare's WireGuard in Rust, from its crate.

use std::path::PathBuf;

use super::{
    install,
    tunnel::{Start, Tunnel},
    wireguard,
};
use crate::interrupt::Interrupt;

pub(super) fn find(interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    let programs = install::cargo("boringtun", "boringtun-cli", &["boringtun-cli"], interrupt)?;
    Ok((install::version(&programs, &["--version"], interrupt), programs))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    wireguard::start(start, &["--foreground", "--disable-drop-privileges"])
}
