//! `wire`: a link emulator for kernels without netem. It has a TAP device in each of two namespaces, and a process that moves
//! frames between the devices.
//!
//! [`link`] is a pure state machine that decides what happens to the frames of one direction. [`pump`] is the thread that moves
//! frames. [`Wire`] is a running wire, which other benchmarks use as the link below a tunnel. Through [`control`], a shell can
//! change a running wire.

mod account;
mod control;
mod emulator;
mod frame;
mod link;
mod pump;
mod request;
mod self_test;
mod settings;
mod tap;
mod too_big;
mod unit;

use std::time::{Duration, Instant};

use anyhow::anyhow;

pub(crate) use self::{
    emulator::{Ends, Wire},
    request::{DirectionState, Handle, State},
    settings::{Change, Settings},
};
use crate::{
    interrupt::Interrupt,
    namespace::Namespace,
    report::{self, Table, number},
    stats::float,
    way::Ways,
};

/// The arguments of `wire`: a subcommand for a running wire, or the options of a new wire.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    /// Change a running wire
    Set {
        /// The wire's name, which it prints at its start
        name: String,
        /// up is from the client to the exit
        way: Ways,
        /// As in delay=30ms loss=1% rate=50mbit; other settings stay; `clear` resets all
        #[arg(required = true)]
        settings: Vec<String>,
    },
    /// Print the account of a running wire
    Stats {
        /// The wire's name, which it prints at its start
        name: String,
        /// Print one line of JSON instead of a table
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct RunArgs {
    /// An existing network namespace for the client's end [default: a temporary one]
    #[arg(long, value_name = "NAME")]
    client_namespace: Option<String>,
    /// An existing network namespace for the exit's end [default: a temporary one]
    #[arg(long, value_name = "NAME")]
    exit_namespace: Option<String>,
    /// Addresses of the client's end [default with temporary namespaces: 192.0.2.2/24,2001:db8::2/64]
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    client_address: Vec<String>,
    /// Addresses of the exit's end [default with temporary namespaces: 192.0.2.1/24,2001:db8::1/64]
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    exit_address: Vec<String>,
    /// The device's name in both namespaces
    #[arg(long, default_value = "eth0")]
    device: String,
    /// MTU of both devices
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u16).range(68..))]
    device_mtu: u16,
    /// Settings of both directions, as in "delay=15ms rate=50mbit queue=50ms"; `wire set` changes them later
    #[arg(long, default_value = "", value_name = "SETTINGS")]
    both: Change,
    /// Settings from the client to the exit, applied after --both
    #[arg(long, default_value = "", value_name = "SETTINGS")]
    up: Change,
    /// Settings from the exit to the client, applied after --both
    #[arg(long, default_value = "", value_name = "SETTINGS")]
    down: Change,
    /// Seed of all random choices; the same seed and frames give the same losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Name for `wire set` and `wire stats` [default: the name of the client's namespace]
    #[arg(long)]
    name: Option<String>,
    /// Seconds to run [default: until Ctrl-C]
    #[arg(long)]
    seconds: Option<u64>,
    /// Measure in temporary namespaces whether delay, rate, loss and the other settings take effect, and print
    /// the verdict
    #[arg(long)]
    self_test: bool,
    /// Print the account at the end as one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs a wire until interrupted, changes a running wire, or prints the state of a running wire.
///
/// Leaves nothing behind if it fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        None if args.run.self_test => self_test::run(&Interrupt::catch()?, args.run.json),
        None => run_wire(&args.run),
        Some(Command::Set { name, way, settings }) => {
            let settings = settings.join(" ");
            // The settings are parsed here, so that a mistake in them is reported even if the wire does not run.
            settings.parse::<Change>().map_err(|error| anyhow!(error))?;
            control::ask(name, &format!("set {} {settings}", report::value_name(way))).map(drop)
        }
        Some(Command::Stats { name, json }) => {
            let state = control::ask(name, "stats")?;
            if *json { report::print_json(&state) } else { report::print(&table(&state).to_string()) }
        }
    }
}

fn run_wire(args: &RunArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let client = Namespace::given_or_new(args.client_namespace.as_deref(), "client")?;
    let exit = Namespace::given_or_new(args.exit_namespace.as_deref(), "exit")?;
    let name = args.name.clone().unwrap_or_else(|| client.name().to_owned());
    let mut wire = Wire::start(
        &Ends { client: &client, exit: &exit, device: &args.device },
        args.device_mtu,
        args.seed,
    )?;
    // The default addresses are used only if both namespaces are temporary.
    let are_ours = args.client_namespace.is_none() && args.exit_namespace.is_none();
    let defaults = |own: u8| [format!("192.0.2.{own}/24"), format!("2001:db8::{own}/64")];
    for (namespace, given, own) in [(&client, &args.client_address, 2), (&exit, &args.exit_address, 1)] {
        let addresses = if given.is_empty() && are_ours { defaults(own).to_vec() } else { given.clone() };
        for address in addresses {
            namespace.ip(&format!("address add {address} dev {}", args.device))?;
        }
    }
    // Later settings override earlier ones, so --up and --down come after --both.
    let given = [args.both.each_way(Ways::Both), args.up.each_way(Ways::Up), args.down.each_way(Ways::Down)];
    wire.handle.change(&given.concat())?;
    // The wire listens only after the settings of the command line are applied, so that they cannot override a `wire set`.
    wire.listen(&name)?;
    eprintln!(
        "the wire runs; its ends are {device} in {} and in {}; try\n  ip netns exec {} ping 192.0.2.1\n  \
         warren-bench wire set {name} both delay=30ms loss=1%\n  warren-bench wire stats {name}",
        client.name(),
        exit.name(),
        client.name(),
        device = args.device,
    );
    let end = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    // The wire's thread ends by itself if one of the devices is deleted.
    while !interrupt.is_set() && wire.is_running() && end.is_none_or(|end| Instant::now() < end) {
        interrupt.wait(Some(Duration::from_millis(100)));
    }
    let state = wire.stop()?;
    if args.json { report::print_json(&state) } else { report::print(&table(&state).to_string()) }
}

/// Makes a table of the accounts of both directions. In each, `received` plus `doubled` equals the sum of the rows marked `=` and
/// `+`.
fn table(state: &State) -> Table {
    let State { seconds, cpu_seconds, up, down } = state;
    let mut table = Table::new(["frames", "up", "down"]);
    table.row(["settings".to_owned(), up.settings.clone(), down.settings.clone()]);
    let mut row = |name: &str, value: fn(&DirectionState) -> u64| {
        table.row([name.to_owned(), value(up).to_string(), value(down).to_string()]);
    };
    row("received", |of| of.account.received);
    row("doubled", |of| of.account.duplicated);
    row("= delivered", |of| of.account.delivered);
    row("+ lost", |of| of.account.lost);
    row("+ lost in bursts", |of| of.account.lost_in_burst);
    row("+ blacked out", |of| of.account.blacked_out);
    row("+ too large", |of| of.account.too_large);
    row("+ policed", |of| of.account.policed);
    row("+ queue full", |of| of.account.queue_full);
    row("+ waited too long", |of| of.account.codel);
    row("+ refused by the device", |of| of.account.refused);
    row("+ queued now", |of| of.account.queued);
    row("+ in flight now", |of| of.account.in_flight);
    row("of these marked", |of| of.account.marked);
    row("of these corrupted", |of| of.account.corrupted);
    row("of these held back", |of| of.account.held_back);
    row("senders told of the MTU", |of| of.account.told);
    row("missed by the wire", |of| of.missed);
    let rate = |of: &DirectionState| number(float(of.account.delivered_bytes) * 8e-6 / seconds.max(1e-9));
    table.row(["delivered, Mbit/s on average".to_owned(), rate(up), rate(down)]);
    let busy = format!("{} %", number(cpu_seconds / seconds.max(1e-9) * 100.0));
    table.row(["CPU of both directions' thread".to_owned(), busy.clone(), busy]);
    table
}

#[cfg(test)]
mod tests;
