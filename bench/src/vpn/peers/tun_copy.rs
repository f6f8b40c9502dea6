//! TUN to TUN without crypto, UDP or framing, by this program's `copier`: the limit of any TUN VPN on the machine.

use std::{path::PathBuf, process::Command};

use anyhow::Context as _;

use super::tunnel::{Start, Tunnel, UP};
use crate::{
    copier::{CLIENT_ADDRESSES, EXIT_ADDRESSES},
    vpn::{load::first_reply, process::Process},
};

/// It ends by itself after that, should nobody be left to end it.
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
    // It says where to connect to once both devices are up.
    copier.wait_for_output("iperf3", UP, interrupt)?;
    let address = |addresses: [&str; 2]| addresses[0].split('/').next().unwrap_or_default().to_owned();
    let (client_address, exit_address) = (address(CLIENT_ADDRESSES), address(EXIT_ADDRESSES));
    first_reply(topology, &exit_address, UP, interrupt)?;
    Ok(Tunnel {
        client_address,
        exit_address,
        // One process is both ends.
        client_pids: vec![copier.id()],
        exit_pids: Vec::new(),
        setup: None,
        _processes: vec![copier],
        _files: Vec::new(),
    })
}
