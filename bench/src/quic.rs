//! `quic`: measures QUIC alone, without TUN. One process per side sends datagrams or streams over loopback or between namespaces.

mod exit;
mod histogram;
mod options;
mod outcome;
mod remote;
mod side;
mod snapshot;
mod traffic;
mod worker;

use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;

use self::{
    options::Options,
    outcome::{Outcome, Run},
    remote::Remote,
    snapshot::Snapshot,
    worker::{Role, WorkerHandle},
};
use crate::{interrupt::Interrupt, report, way::Ways};

/// Time after the end of sending in which datagrams can still arrive. A datagram that has not arrived after this time counts as
/// missing.
const SETTLE: Duration = Duration::from_millis(300);

/// The arguments of `quic`. The process that the user starts is the client. It starts the exit's process with the same arguments.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// The side of this process. The exit reads commands from its standard input
    #[arg(long, value_enum, default_value_t = Side::Client, hide = true)]
    side: Side,
    /// Print the result as one line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Side {
    Client,
    Exit,
}

/// Runs one measurement as the client, or runs the exit's side of a measurement.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.options.check()?;
    match args.side {
        Side::Client => client(args),
        Side::Exit => exit::run(&args.options),
    }
}

fn client(args: &Args) -> anyhow::Result<()> {
    let outcome = measure(&args.options, &Interrupt::catch()?)?;
    if args.json { report::print_json(&outcome) } else { report::print(&outcome.to_string()) }
}

/// Measures once: connects, warms up, counts on both sides for the requested time, and lets the last datagrams arrive.
fn measure(options: &Options, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut exit = Remote::start().context("cannot start the exit")?;
    let client = WorkerHandle::start(options, Role::Client).context("cannot start the client")?;
    client.connect(&exit.listening)?;
    let mut both = Both { client, exit: &mut exit };

    both.send(options.direction, true)?;
    interrupt.wait(Some(Duration::from_secs_f64(options.warm_up)));
    interrupt.check()?;
    let start = both.snapshot()?;
    interrupt.wait(Some(Duration::from_secs_f64(options.seconds)));
    interrupt.check()?;
    let end = both.snapshot()?;
    // Sending stops only after the last snapshot, so traffic does not decrease before the end of the measurement.
    both.send(options.direction, false)?;
    interrupt.wait(Some(SETTLE));
    let settled = both.snapshot()?;

    drop(both.client);
    exit.stop()?;
    Ok(Outcome::new(options, &Run { start, end, settled }))
}

struct Both<'a> {
    client: WorkerHandle,
    exit: &'a mut Remote,
}

impl Both<'_> {
    fn send(&mut self, direction: Ways, on: bool) -> anyhow::Result<()> {
        if direction.is_up() {
            self.client.send(on)?;
        }
        if direction.is_down() {
            self.exit.send(on)?;
        }
        Ok(())
    }

    /// Takes a snapshot of the client's counters, then one of the exit's, about a millisecond later. Each snapshot has its own
    /// time.
    fn snapshot(&mut self) -> anyhow::Result<(Snapshot, Snapshot)> {
        let client = self.client.snapshot().context("the client")?;
        let exit = self.exit.snapshot().context("the exit")?;
        Ok((client, exit))
    }
}
