//! OpenVPN: Debian's package in server and client mode, AES-128-GCM over UDP, without data channel offload.

use std::{path::PathBuf, time::Instant};

use super::{
    certificate::{Certificate, OPENSSL},
    install,
    tunnel::{Start, Tunnel, UP},
};
use crate::{
    interrupt::Interrupt,
    vpn::{process::Process, topology::Topology},
};

const DONE: &str = "Initialization Sequence Completed";

pub(super) fn find(interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    install::debian("openvpn", &[("openvpn", "openvpn"), OPENSSL], interrupt)?;
    let programs: Vec<_> = install::on_path("openvpn").into_iter().collect();
    let version = install::version(&programs, &["--version"], interrupt);
    // The text is like "OpenVPN 2.6.14 x86_64-pc-linux-gnu [SSL (OpenSSL)] ...".
    let version: Vec<_> = version.split_whitespace().take(2).collect();
    Ok((version.join(" "), programs))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    let Start { topology, interrupt, installed } = start;
    let program = installed.program(0)?;
    let (server, client) =
        (Certificate::make(start, "server", &[])?, Certificate::make(start, "client", &[])?);

    // With `dh none`, the key exchange uses elliptic curves only.
    let mode = "server 10.98.0.0 255.255.255.0\ntopology subnet\nkeepalive 10 60\ndh none\n";
    let path = start.write("server.conf", &configuration(mode, &server, &client))?;
    let mut exit = Process::start(
        "openvpn-exit",
        topology.path(),
        topology.exit.command(program).args(["--config", &path]),
    )?;
    exit.wait_for_output(DONE, UP, interrupt)?;

    let began = Instant::now();
    let mode = format!("client\nnobind\nremote {} 1194\n", Topology::EXIT);
    let path = start.write("client.conf", &configuration(&mode, &client, &server))?;
    let mut client = Process::start(
        "openvpn-client",
        topology.path(),
        topology.client.command(program).args(["--config", &path]),
    )?;
    client.wait_for_output(DONE, UP, interrupt)?;
    start.tunnel(began, client, exit)
}

fn configuration(mode: &str, own: &Certificate, peer: &Certificate) -> String {
    format!(
        // With `peer-fingerprint`, self-signed certificates need no CA.
        "{mode}dev tun\nproto udp4\nport 1194\ncert {}\nkey {}\npeer-fingerprint {}\n\
         data-ciphers AES-128-GCM\ndisable-dco\nverb 3\n",
        own.certificate, own.key, peer.fingerprint
    )
}
