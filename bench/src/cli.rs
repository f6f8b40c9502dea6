//! The command line: each subcommand is a module with its own arguments and `run`.

use clap::{Parser, Subcommand};

use crate::{ab, bare, copier, path, quic, setup, soak, sweep, vpn, wire};

/// Benchmarks of Warren and its peers. bench/README.md explains the figures.
#[derive(Debug, Parser)]
#[command(name = "warren-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare two variants of anything, alternating, until the answer is precise enough
    Ab(ab::Args),
    /// Measure QUIC alone, without TUN: one process per side, datagrams or streams
    Quic(quic::Args),
    /// Copy between two TUN devices without crypto: the limit of any TUN VPN on this machine
    Copier(copier::Args),
    /// Run one side of a tunnel that consists only of QUIC between two TUN devices: what a whole tunnel could reach
    Bare(bare::Args),
    /// Compare whole tunnels side by side: Warren, its limits, and other VPNs
    Vpn(vpn::Args),
    /// Compare whole tunnels over emulated paths: loss, bursts, delay, reordering, full queues
    Path(path::Args),
    /// Try Warren's settings on clean, long and lossy networks: a heat map, and the best defaults
    Sweep(sweep::Args),
    /// Load a Warren tunnel for minutes: does its memory grow, do its counters add up, does it log warnings?
    Soak(soak::Args),
    /// Bring a Warren tunnel up and down many times: time to the first reply, and until the host is restored
    Setup(setup::Args),
    /// Emulate a link between two namespaces: delay, loss, rate, MTU and more, per direction, changeable at any time
    Wire(wire::Args),
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Ab(args) => ab::run(&args),
            Command::Quic(args) => quic::run(&args),
            Command::Copier(args) => copier::run(&args),
            Command::Bare(args) => bare::run(&args),
            Command::Vpn(args) => vpn::run(&args),
            Command::Path(args) => path::run(&args),
            Command::Sweep(args) => sweep::run(&args),
            Command::Soak(args) => soak::run(&args),
            Command::Setup(args) => setup::run(&args),
            Command::Wire(args) => wire::run(&args),
        }
    }
}
