//! `copier`: joins two TUN devices without crypto, UDP or framing. It shows the limit of any TUN VPN on this machine.
//!
//! [`Copier`] does the work. The subcommand makes the namespaces unless the user names existing ones, and then waits.

mod copy;

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::Serialize;

pub(crate) use self::copy::Direction;
use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, join},
    report::{self, Table, number, number_or_dash},
    stats::float,
    tun_device::TunDevice,
};

/// The addresses of the two TUN devices.
pub(crate) const CLIENT: &str = "10.98.0.2";
pub(crate) const EXIT: &str = "10.98.0.1";
const CLIENT_ADDRESSES: [&str; 2] = ["10.98.0.2/24", "fd98::2/64"];
const EXIT_ADDRESSES: [&str; 2] = ["10.98.0.1/24", "fd98::1/64"];
/// The name of the TUN device. It is the same in both namespaces.
const DEVICE: &str = "wt-copy0";

/// The arguments of `copier`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds to run [default: until Ctrl-C]
    #[arg(long)]
    seconds: Option<u64>,
    /// MTU of both devices
    #[arg(long, default_value_t = 1380, value_parser = clap::value_parser!(u16).range(1280..))]
    mtu: u16,
    /// An existing network namespace for the client's end [default: a temporary one]
    #[arg(long, value_name = "NAME")]
    client_namespace: Option<String>,
    /// An existing network namespace for the exit's end [default: a temporary one]
    #[arg(long, value_name = "NAME")]
    exit_namespace: Option<String>,
    /// Print the result as one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs a copier until interrupted, then prints the traffic that it has copied.
///
/// Leaves nothing behind if it fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let client = Namespace::given_or_new(args.client_namespace.as_deref(), "client")?;
    let exit = Namespace::given_or_new(args.exit_namespace.as_deref(), "exit")?;
    if client.name() == exit.name() {
        bail!("both ends are in the namespace {}; give two namespaces", client.name());
    }
    let copier = Copier::start(&client, &exit, args.mtu)?;
    // `vpn` waits for the word "iperf3" in this text before it uses the devices.
    eprintln!(
        "client {} in {}, exit {} in {}; try\n  ip netns exec {} iperf3 -s -1 &\n  ip netns exec {} iperf3 -c {}",
        CLIENT,
        client.name(),
        EXIT,
        exit.name(),
        exit.name(),
        client.name(),
        EXIT,
    );
    interrupt.wait(args.seconds.map(Duration::from_secs));
    let carried = copier.stop()?;
    if args.json { report::print_json(&carried) } else { report::print(&carried.table().to_string()) }
}

/// A running copier. Dropping this value stops the copier and removes its devices.
#[derive(Debug)]
pub(crate) struct Copier {
    stop: Interrupt,
    up: Option<JoinHandle<anyhow::Result<Direction>>>,
    down: Option<JoinHandle<anyhow::Result<Direction>>>,
}

/// The traffic of both directions. Each direction has its own thread.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) up: Direction,
    pub(crate) down: Direction,
}

impl Copier {
    /// Makes a device with addresses in each namespace, and a thread for each direction between them.
    ///
    /// Leaves nothing behind if it fails.
    pub(crate) fn start(client: &Namespace, exit: &Namespace, mtu: u16) -> anyhow::Result<Self> {
        let at_client = TunDevice::create(client, DEVICE, mtu, &CLIENT_ADDRESSES)?;
        let at_exit = TunDevice::create(exit, DEVICE, mtu, &EXIT_ADDRESSES)?;
        let stop = Interrupt::default();
        let spawn = |name: &str, from: &TunDevice, to: &TunDevice| {
            let (from, to, stop) = (from.another()?, to.another()?, stop.clone());
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || copy::copy(&from, &to, &stop))
                .context("cannot start a thread")
        };
        let mut copier = Self { stop: stop.clone(), up: None, down: None };
        // From here on, dropping `copier` stops the first thread if the second one fails to start.
        copier.up = Some(spawn("copier-up", &at_client, &at_exit)?);
        copier.down = Some(spawn("copier-down", &at_exit, &at_client)?);
        // Each thread has duplicates of both files. `at_client` and `at_exit` are closed here, so the kernel removes the devices
        // when the threads end.
        Ok(copier)
    }

    /// Stops both threads, which removes the devices, and returns the traffic that they have copied.
    pub(crate) fn stop(mut self) -> anyhow::Result<Report> {
        self.stop.set();
        let finished = |thread: Option<JoinHandle<_>>| join(thread.context("the copier was not started")?);
        let (up, down) = (finished(self.up.take()), finished(self.down.take()));
        Ok(Report { up: up.context("client to exit")?, down: down.context("exit to client")? })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.stop.set();
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
                number_or_dash(usage.cpu_seconds_per_gb(float(*bytes))),
                refused.to_string(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests;
