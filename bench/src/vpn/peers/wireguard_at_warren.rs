//! A wireguard-go client at a Warren exit that serves WireGuard.

use std::{path::PathBuf, time::Instant};

use super::{
    peer::Peer,
    tunnel::{Start, Tunnel},
    warren, wireguard, wireguard_go,
};
use crate::interrupt::Interrupt;

pub(super) fn find(peer: &Peer, interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    let (exit, mut programs) = warren::find(peer, interrupt)?;
    let (client, of_client) = wireguard_go::find(interrupt)?;
    programs.extend(of_client);
    Ok((format!("wireguard-go {client} at {exit}"), programs))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    let exit = warren::Exit::start(start, LISTEN, &["--wireguard"])?;
    let began = Instant::now();
    let program = start.installed.program(1)?;
    let (client, socket) = wireguard::start_client(start, program, wireguard_go::ARGUMENTS, &exit.client)?;
    start.interrupt.check()?;
    let tunnel = start.tunnel(began, client, exit.daemon)?;
    Ok(Tunnel { _files: vec![socket], ..tunnel })
}

const LISTEN: &str = "\n[wireguard]\nlisten = \"0.0.0.0:51820\"\n";
