//! Copies between two TUN devices without crypto, UDP or framing, by the `copier` subcommand of this program. Its figures are an
//! upper bound for any TUN VPN on this machine.

use std::{path::PathBuf, process::Command};

use anyhow::Context as _;

use super::tunnel::{Start, Tunnel, UP};
use crate::{
    copier::{CLIENT, EXIT},
    vpn::{load::first_reply, process::Process},
};

/// The copier ends by itself after this time if it is not ended before.
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
    // When both devices are up, the copier prints an example that uses iperf3.
    copier.wait_for_output("iperf3", UP, interrupt)?;
    first_reply(topology, EXIT, UP, interrupt)?;
    Ok(Tunnel {
        client_address: CLIENT.to_owned(),
        exit_address: EXIT.to_owned(),
        // The same process serves both ends, so it counts only as the client's.
        client_pids: vec![copier.id()],
        exit_pids: Vec::new(),
        setup: None,
        _processes: vec![copier],
        _files: Vec::new(),
    })
}
