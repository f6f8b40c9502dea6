//! `bare`: one side of a tunnel that is QUIC datagrams between two TUN devices and nothing else. It has one thread and one
//! connection. It has no runtime, sessions, queues, address checks or sandbox. It shows what a tunnel on this QUIC library can
//! reach on a machine. The difference from Warren is the cost of Warren's other work.

mod quic;
mod tunnel;

use anyhow::Context as _;

use self::tunnel::Tunnel;
use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, join},
    tun_device::TunDevice,
};

/// The device's name in both namespaces.
const DEVICE: &str = "wt-bare0";

/// The side and its namespace.
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
