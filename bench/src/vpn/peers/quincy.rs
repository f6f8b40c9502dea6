//! quincy: a VPN over QUIC datagrams, from its crates, in its default mode (mutual TLS 1.3, hybrid key exchange).

use std::{path::PathBuf, time::Instant};

use super::{
    certificate::{Certificate, OPENSSL},
    install,
    tunnel::{CLIENT, EXIT, Start, Tunnel, UP},
};
use crate::{
    interrupt::Interrupt,
    vpn::{
        process::Process,
        topology::{Topology, wait_for},
    },
};

pub(super) fn find(interrupt: &Interrupt) -> anyhow::Result<(String, Vec<PathBuf>)> {
    install::debian("openssl for quincy", &[OPENSSL], interrupt)?;
    let server = install::cargo("quincy", "quincy-server", &["quincy-server"], interrupt)?;
    let client = install::cargo("quincy", "quincy-client", &["quincy-client"], interrupt)?;
    let programs: Vec<_> = server.into_iter().chain(client).collect();
    Ok((install::version(&programs, &["--version"], interrupt), programs))
}

pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Tunnel> {
    let Start { topology, interrupt, installed } = start;
    // By default, openssl makes a CA certificate, which rustls does not accept for a server or client.
    let leaf = "basicConstraints=critical,CA:FALSE";
    let name = format!("subjectAltName=IP:{}", Topology::EXIT);
    let server = Certificate::make(start, "server", &[leaf, &name])?;
    let client = Certificate::make(start, "client", &[leaf])?;

    // quincy writes fingerprints in lower case and without colons.
    let fingerprint = client.fingerprint.replace(':', "").to_lowercase();
    let users =
        format!("[users.bench]\nauthorized_keys = []\nauthorized_certs = [\"sha256:{fingerprint}\"]\n");
    let users = start.write("users.toml", &users)?;
    let exit = format!(
        "name = \"bench\"\ntunnel_network = \"10.98.0.1/24\"\nusers_file = \"{users}\"\n\n\
         [protocol]\nmode = \"tls\"\ncertificate_file = \"{}\"\ncertificate_key_file = \"{}\"\n\n\
         [log]\nlevel = \"info\"\n",
        server.certificate, server.key
    );
    let exit = start.write("quincy-server.toml", &exit)?;
    let mut command = topology.exit.command(installed.program(0)?);
    let mut exit = Process::start("quincy-server", topology.path(), command.args(["--config-path", &exit]))?;
    exit.wait_for_output("Starting connection handler", UP, interrupt)?;

    let began = Instant::now();
    let configuration = format!(
        "connection_string = \"{}:55555\"\n\n[protocol]\nmode = \"tls\"\ntrusted_certificate_paths = [\"{}\"]\n\
         client_certificate_file = \"{}\"\nclient_certificate_key_file = \"{}\"\n\n[log]\nlevel = \"info\"\n",
        Topology::EXIT,
        server.certificate,
        client.certificate,
        client.key
    );
    let path = start.write("quincy-client.toml", &configuration)?;
    let mut command = topology.client.command(installed.program(1)?);
    let mut client =
        Process::start("quincy-client", topology.path(), command.args(["--config-path", &path]))?;
    // The device is up when the kernel finds a route with the device's address as the source.
    wait_for("quincy's device", UP, interrupt, || {
        client.check()?;
        Ok(topology.client.ip(&format!("route get {} from {CLIENT}", EXIT)).is_ok().then_some(()))
    })?;
    start.tunnel(began, client, exit)
}
