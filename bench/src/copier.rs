//! `copier`: two TUN devices joined without crypto, UDP or framing: the limit of any TUN VPN on this machine.
//!
//! [`Copier`] is what the comparison of whole tunnels calls; the subcommand sets up namespaces around it and waits.

mod copy;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::Serialize;

pub(crate) use self::copy::Direction;
use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, join},
    report::{self, Table, number},
    tun_device::TunDevice,
};

/// The inner addresses, as those of a tunnel.
pub(crate) const CLIENT_ADDRESSES: [&str; 2] = ["10.98.0.2/24", "fd98::2/64"];
pub(crate) const EXIT_ADDRESSES: [&str; 2] = ["10.98.0.1/24", "fd98::1/64"];
/// The device's name in both namespaces.
pub(crate) const DEVICE: &str = "wt-copy0";

/// Where, how long, and with which MTU.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds to run; until Ctrl-C unless given
    #[arg(long)]
    seconds: Option<u64>,
    /// MTU of both devices
    #[arg(long, default_value_t = 1380, value_parser = clap::value_parser!(u16).range(1280..))]
    mtu: u16,
    /// An existing network namespace for the client's end; made and removed unless given
    #[arg(long, value_name = "NAME")]
    client_namespace: Option<String>,
    /// An existing network namespace for the exit's end; made and removed unless given
    #[arg(long, value_name = "NAME")]
    exit_namespace: Option<String>,
    /// Print the result as one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs a copier until told to stop, then prints what it carried.
///
/// # Errors
/// A sentence when a namespace or device cannot be made, or a device fails while it runs. Nothing is left behind.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let client = Namespace::given_or_new(args.client_namespace.as_deref(), "client")?;
    let exit = Namespace::given_or_new(args.exit_namespace.as_deref(), "exit")?;
    if client.name() == exit.name() {
        bail!("both ends are in the namespace {}; name two", client.name());
    }
    let copier = Copier::start(&client, &exit, args.mtu)?;
    let address = |addresses: [&str; 2]| addresses[0].split('/').next().unwrap_or_default().to_owned();
    eprintln!(
        "client {} in {}, exit {} in {}; try\n  ip netns exec {} iperf3 -s -1 &\n  ip netns exec {} iperf3 -c {}",
        address(CLIENT_ADDRESSES),
        client.name(),
        address(EXIT_ADDRESSES),
        exit.name(),
        exit.name(),
        client.name(),
        address(EXIT_ADDRESSES),
    );
    interrupt.wait(args.seconds.map(Duration::from_secs));
    let carried = copier.stop()?;
    if args.json { report::print_json(&carried) } else { report::print(&carried.table().to_string()) }
}

/// A copier that runs; dropping it stops it and removes its devices.
#[derive(Debug)]
pub(crate) struct Copier {
    stop: Arc<AtomicBool>,
    up: Option<JoinHandle<anyhow::Result<Direction>>>,
    down: Option<JoinHandle<anyhow::Result<Direction>>>,
}

/// What a copier carried, each way by one thread.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) up: Direction,
    pub(crate) down: Direction,
}

impl Copier {
    /// Makes a device with addresses in each namespace and a thread for each direction between them.
    ///
    /// # Errors
    /// A sentence when a device cannot be made or set up; nothing is left behind.
    pub(crate) fn start(client: &Namespace, exit: &Namespace, mtu: u16) -> anyhow::Result<Self> {
        let at_client = TunDevice::create(client, DEVICE, mtu, &CLIENT_ADDRESSES)?;
        let at_exit = TunDevice::create(exit, DEVICE, mtu, &EXIT_ADDRESSES)?;
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |name: &str, from: &TunDevice, to: &TunDevice| {
            let (from, to, stop) = (from.another()?, to.another()?, stop.clone());
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || copy::copy(&from, &to, &stop))
                .context("cannot start a thread")
        };
        let mut copier = Self { stop: stop.clone(), up: None, down: None };
        copier.up = Some(spawn("copier-up", &at_client, &at_exit)?);
        copier.down = Some(spawn("copier-down", &at_exit, &at_client)?);
        Ok(copier)
    }

    /// Stops both threads, which removes the devices, and returns what they carried.
    ///
    /// # Errors
    /// A sentence when a device failed while the copier ran.
    pub(crate) fn stop(mut self) -> anyhow::Result<Report> {
        self.stop.store(true, Relaxed);
        let finished = |thread: Option<JoinHandle<_>>| join(thread.context("the copier was not started")?);
        let (up, down) = (finished(self.up.take()), finished(self.down.take()));
        Ok(Report { up: up.context("client to exit")?, down: down.context("exit to client")? })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in [self.up.take(), self.down.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

impl Report {
    fn table(&self) -> Table {
        let mut table = Table::new([
            "direction",
            "super-packets",
            "bytes each",
            "Mbit/s",
            "CPU %",
            "CPU s per GB",
            "refused writes",
        ]);
        for (name, direction) in [("client to exit", &self.up), ("exit to client", &self.down)] {
            let Direction { super_packets, bytes, refused, usage, .. } = direction;
            table.row([
                name.to_owned(),
                super_packets.to_string(),
                bytes.checked_div(*super_packets).unwrap_or(0).to_string(),
                number(direction.mbit_per_s()),
                number(usage.cpu_percent()),
                usage.cpu_seconds_per_gb(direction.bytes()).map_or_else(|| "-".to_owned(), number),
                refused.to_string(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests;
