//! The command line.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use clap_complete::env::CompleteEnv;
use warren_manual::{Manual, Origin, completions};

use crate::commands::{
    self, AdmitArguments, BackupArguments, DrainArguments, InitArguments, JoinArguments, LeaveArguments,
    PublishArguments, RecoverArguments, RemoveArguments, RotateKeyArguments, SignArguments, StatusArguments,
    TicketArguments, print,
};
use crate::logging::{self, LogFormat};
use crate::run::{self, Directories};

/// The environment variable by which a shell's completion script asks this program for candidates.
const COMPLETION_VARIABLE: &str = "WARREN_FLEET_COMPLETE";

/// Links an exit to the store that its fleet shares, and manages the fleet. `warren fleet` runs this program.
#[derive(Debug, Parser)]
#[command(
    name = "warren-fleet",
    bin_name = "warren fleet",
    version,
    disable_help_subcommand = true,
    after_help = "Examples:\n  warren fleet init --exit ams1 --store https://192.0.2.1:2379 --ca ca.pem --certificate root.pem --key root.key\n  \
                  warren fleet ticket fra1\n  warren fleet status"
)]
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
    /// Format of the log lines of `run`: text for people, or one JSON object a line.
    #[arg(long, global = true, env = "WARREN_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Link the exit of this host to the store. The unit warren-fleet.service runs this.
    Run,
    /// Begin a fleet with this host's exit and its clients.
    Init(InitArguments),
    /// Print a ticket, with which a further exit joins the fleet once.
    #[command(after_help = "Example:\n  warren fleet ticket fra1 --certificate fra1.pem --key fra1.key")]
    Ticket(TicketArguments),
    /// Make this host an exit of a fleet, with a ticket. `warren exit init --fleet` does this too.
    #[command(after_help = "Examples:\n  warren fleet join - < ticket\n  warren fleet join @ticket")]
    Join(JoinArguments),
    /// Put an exit into the roster, so that clients find it. Needs the fleet key.
    #[command(
        after_help = "Examples:\n  warren fleet admit fra1 --fleet-key fleet.key\n  warren fleet admit fra1 --fleet-key fleet.key --public-key KEY"
    )]
    Admit(AdmitArguments),
    /// Sign a roster in a file, on a machine without a network. Needs the fleet key and no store.
    #[command(
        after_help = "Examples:\n  warren fleet sign roster --fleet-key fleet.key --admit fra1 --public-key KEY --endpoint fra1.example.net:443\n  \
                      warren fleet sign roster --fleet-key fleet.key --remove fra1"
    )]
    Sign(SignArguments),
    /// Put a roster that was signed elsewhere into the store.
    #[command(after_help = "Example:\n  warren fleet publish roster")]
    Publish(PublishArguments),
    /// Show the exits of the fleet.
    #[command(after_help = "Examples:\n  warren fleet status\n  warren fleet status --json")]
    Status(StatusArguments),
    /// Make an exit send its clients to other exits, or accept clients again.
    #[command(after_help = "Examples:\n  warren fleet drain fra1\n  warren fleet drain fra1 --end")]
    Drain(DrainArguments),
    /// Remove an exit from the fleet.
    #[command(after_help = "Example:\n  warren fleet remove fra1 --fleet-key fleet.key")]
    Remove(RemoveArguments),
    /// Hand the fleet over to a new fleet key.
    #[command(after_help = "Example:\n  warren fleet rotate-key --fleet-key fleet.key --new-key new.key")]
    RotateKey(RotateKeyArguments),
    /// Write all clients, invitations, removed keys, exits and the roster into a file.
    #[command(after_help = "Example:\n  warren fleet backup /root/fleet.backup")]
    Backup(BackupArguments),
    /// Use the store again after it was restored from an old backup. No removed client or exit comes back.
    #[command(
        after_help = "Examples:\n  warren fleet recover\n  warren fleet recover --from /root/fleet.backup"
    )]
    Recover(RecoverArguments),
    /// Take this exit out of the fleet, and write the fleet's clients into a file.
    #[command(after_help = "Example:\n  warren fleet leave --clients clients.toml")]
    Leave(LeaveArguments),
    /// Write a shell's completions to standard output, for the package.
    #[command(hide = true)]
    Completions { shell: Shell },
    /// Write the man pages into a directory, below `man1`, for the package.
    #[command(hide = true)]
    Man { directory: PathBuf },
}

/// Answers a shell that asks for completions, and ends the process. Returns if no shell asks.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Arguments::command).var(COMPLETION_VARIABLE).bin("warren-fleet").complete();
}

impl Arguments {
    /// Starts the log of `run`, or the warnings of another command.
    ///
    /// # Errors
    /// If `--log` is not a filter.
    pub(crate) fn start_logging(&self) -> anyhow::Result<()> {
        let format = matches!(self.command, Command::Run).then_some(self.global.log_format);
        logging::start(&self.global.log, format)
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
            Command::Sign(arguments) => commands::sign(arguments),
            Command::Publish(arguments) => commands::publish(directories, arguments).await,
            Command::RotateKey(arguments) => commands::rotate_key(directories, arguments).await,
            Command::Status(arguments) => commands::status(directories, arguments).await,
            Command::Drain(arguments) => commands::drain(directories, arguments).await,
            Command::Remove(arguments) => commands::remove(directories, arguments).await,
            Command::Backup(arguments) => commands::backup(directories, arguments).await,
            Command::Recover(arguments) => commands::recover(directories, arguments).await,
            Command::Leave(arguments) => commands::leave(directories, arguments).await,
            Command::Completions { shell } => {
                print(&completions(*shell, COMPLETION_VARIABLE, "warren-fleet")?)
            }
            Command::Man { directory } => man_pages(directory),
        }
    }
}

/// Writes `man1/warren-fleet.1`, and a page for each command beside it.
fn man_pages(directory: &Path) -> anyhow::Result<()> {
    let origin = Origin::of(std::env::var("SOURCE_DATE_EPOCH").ok().as_deref(), SystemTime::now());
    let exit_status = [
        ("0", "Done."),
        ("1", "Failed. A sentence on standard error says what, where and what to do."),
        ("2", "The command line is wrong."),
    ];
    let related: [(&str, &[&str]); 2] = [
        ("warren-fleet", &["warren(1)", "warren-exit.toml(5)"]),
        ("warren-fleet-join", &["warren-exit-init(1)"]),
    ];
    let manual = Manual { exit_status: &exit_status, related: &related, origin: &origin };
    let written = manual.write(&directory.join("man1"), Arguments::command(), "warren-fleet", "warren fleet");
    written
        .with_context(|| format!("cannot write man pages into {}; check the directory", directory.display()))
}
