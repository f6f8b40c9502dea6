//! A minimal QUIC tunnel between two TUN devices, by the `bare` subcommand of this program. Its figures are an upper bound for a
//! tunnel on this QUIC library.

use std::{process::Command, time::Instant};

use super::tunnel::{CLIENT, EXIT, Start, Tunnel, UP};
use crate::vpn::{process::Process, topology::Topology};

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    let Start { topology, interrupt, installed } = start;
    let side = |name, namespace: &str, address: &str, connect: &[&str]| {
        let mut command = Command::new(installed.program(0)?);
        command.args(["bare", "--namespace", namespace, "--address", &format!("{address}/24")]).args(connect);
        let mut process = Process::start(name, topology.path(), &mut command)?;
        process.wait_for_output("is up", UP, interrupt)?;
        anyhow::Ok(process)
    };
    let exit = side("bare-exit", topology.exit.name(), EXIT, &[])?;
    let began = Instant::now();
    let client = side("bare-client", topology.client.name(), CLIENT, &["--connect", Topology::EXIT])?;
    start.tunnel(began, client, exit)
}
