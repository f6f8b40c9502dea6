//! TUN to TUN without crypto, UDP or framing, by this program's `copier`. It shows the limit of any TUN VPN on the machine.

use std::{path::PathBuf, process::Command};

use anyhow::Context as _;

use super::tunnel::{Start, Tunnel, UP};
use crate::{
    copier::{CLIENT, EXIT},
    vpn::{load::first_reply, process::Process},
};

/// The copier ends by itself after this time, if no other process ends it.
const LIMIT_SECONDS: &str = "3600";

pub(super) fn find() -> anyhow::Result<(String, Vec<PathBuf>)> {
    let own = std::env::current_exe().context("cannot find this program")?;
    Ok((format!("warren-bench {}", env!("CARGO_PKG_VERSION")), vec![own]))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    let Start { topology, interrupt, installed } = start;
    let mut command = Command::new(installed.program(0)?);
    command.args(["copier", "--seconds", LIMIT_SECONDS]);
    command.args(["--client-namespace", topology.client.name(), "--exit-namespace", topology.exit.name()]);
    let mut copier = Process::start("copier", topology.path(), &mut command)?;
    // Once both devices are up, the copier prints an example with iperf3.
    copier.wait_for_output("iperf3", UP, interrupt)?;
    first_reply(topology, EXIT, UP, interrupt)?;
    Ok(Tunnel {
        client_address: CLIENT.to_owned(),
        exit_address: EXIT.to_owned(),
        // One process serves both ends.
        client_pids: vec![copier.id()],
        exit_pids: Vec::new(),
        setup: None,
        _processes: vec![copier],
        _files: Vec::new(),
    })
}
