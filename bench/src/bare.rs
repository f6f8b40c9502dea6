//! `bare`: one side of a minimal tunnel that sends the packets of a TUN device as QUIC datagrams. It has one thread and one
//! connection, and no async runtime, sessions, queues, address checks or sandbox. Its figures are an upper bound for a tunnel on
//! this QUIC library on this machine. The difference between `bare` and Warren is the cost of Warren's other work.

mod quic;
mod tunnel;

use anyhow::Context as _;

use self::tunnel::Tunnel;
use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, join},
    tun_device::TunDevice,
};

/// The name of the TUN device. It is the same in both namespaces.
const DEVICE: &str = "wt-bare0";

/// The arguments of `bare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The exit's address. Without it, this side is the exit
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<std::net::IpAddr>,
    /// The network namespace
    #[arg(long, value_name = "NAME")]
    namespace: String,
    /// The inner address with its prefix length
    #[arg(long, value_name = "CIDR")]
    address: String,
    /// MTU of the device
    #[arg(long, default_value_t = 1380, value_parser = clap::value_parser!(u16).range(1280..=1380))]
    mtu: u16,
}

/// Carries packets until interrupted.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let namespace = Namespace::existing(&args.namespace)?;
    let device = TunDevice::create(&namespace, DEVICE, args.mtu, &[&args.address])?;
    let remote = args.connect;
    let tunnel = namespace.enter(move || {
        let mut tunnel = Tunnel::new(device, remote)?;
        // `vpn` waits for the words "is up" before it starts the other side.
        eprintln!("the bare tunnel is up");
        tunnel.run(&interrupt)
    })?;
    join(tunnel).context("the bare tunnel ended")
}
