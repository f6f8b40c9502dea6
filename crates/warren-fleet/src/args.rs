//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::commands::{
    self, AdmitArguments, BackupArguments, DrainArguments, InitArguments, JoinArguments, LeaveArguments,
    RecoverArguments, RemoveArguments, RotateKeyArguments, StatusArguments, TicketArguments,
};
use crate::run::{self, Directories};

/// Links an exit to the store that its fleet shares, and manages the fleet. `warren fleet` runs this program.
#[derive(Debug, Parser)]
#[command(name = "warren-fleet", version, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    global: GlobalArguments,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
struct GlobalArguments {
    /// Directory of exit.toml and fleet.toml.
    #[arg(long, global = true, env = "WARREN_CONFIG_DIR", value_name = "DIR", default_value = "/etc/warren")]
    config_dir: PathBuf,
    /// Directory for files that last until the next boot.
    #[arg(
        long,
        global = true,
        env = "WARREN_RUNTIME_DIR",
        value_name = "DIR",
        default_value = "/run/warren"
    )]
    runtime_dir: PathBuf,
    /// Directory for files that outlast a boot.
    #[arg(
        long,
        global = true,
        env = "WARREN_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/warren"
    )]
    state_dir: PathBuf,
    /// What to log: a level, or levels by module in the syntax of tracing filters.
    #[arg(long, global = true, env = "WARREN_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Link the exit of this host to the store. The unit warren-fleet.service runs this.
    Run,
    /// Begin a fleet with this host's exit and its clients.
    Init(InitArguments),
    /// Print a ticket, with which a further exit joins the fleet once.
    Ticket(TicketArguments),
    /// Make this host an exit of a fleet, with a ticket. `warren exit init --fleet` does this too.
    Join(JoinArguments),
    /// Put an exit into the roster, so that clients find it. Needs the fleet key.
    Admit(AdmitArguments),
    /// Show the exits of the fleet.
    Status(StatusArguments),
    /// Make an exit send its clients to other exits, or take clients again.
    Drain(DrainArguments),
    /// Remove an exit from the fleet.
    Remove(RemoveArguments),
    /// Hand the fleet over to a new fleet key.
    RotateKey(RotateKeyArguments),
    /// Write all clients, invitations, removed keys, exits and the roster into a file.
    Backup(BackupArguments),
    /// Use the store again after it was restored from an old backup. No removed client comes back.
    Recover(RecoverArguments),
    /// Take this exit out of the fleet, and write the fleet's clients into a file.
    Leave(LeaveArguments),
}

impl Arguments {
    pub(crate) fn start_logging(&self) {
        let filter = EnvFilter::try_new(&self.global.log).unwrap_or_else(|_| EnvFilter::new("info"));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_target(false)
            .init();
    }

    pub(crate) async fn carry_out(&self) -> anyhow::Result<()> {
        let GlobalArguments { config_dir, runtime_dir, state_dir, .. } = &self.global;
        let directories = Directories { config: config_dir, runtime: runtime_dir, state: state_dir };
        match &self.command {
            Command::Run => run::run(directories).await,
            Command::Init(arguments) => commands::init(directories, arguments).await,
            Command::Ticket(arguments) => commands::ticket(directories, arguments).await,
            Command::Join(arguments) => commands::join(directories, arguments).await,
            Command::Admit(arguments) => commands::admit(directories, arguments).await,
            Command::RotateKey(arguments) => commands::rotate_key(directories, arguments).await,
            Command::Status(arguments) => commands::status(directories, arguments).await,
            Command::Drain(arguments) => commands::drain(directories, arguments).await,
            Command::Remove(arguments) => commands::remove(directories, arguments).await,
            Command::Backup(arguments) => commands::backup(directories, arguments).await,
            Command::Recover(arguments) => commands::recover(directories, arguments).await,
            Command::Leave(arguments) => commands::leave(directories, arguments).await,
        }
    }
}
