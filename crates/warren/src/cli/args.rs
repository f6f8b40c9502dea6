//! Everything that can be typed after `warren`; `--help`, man pages and completions are made from these types.

pub(super) mod exit;
mod generate;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use warren_session::invite::Invite;

use warren_daemon::directories::Directories;
use warren_daemon::logging::{LogFormat, LogSettings};

pub(crate) use exit::{
    ClientAddArgs, ClientSetArgs, ExitClientCommand, ExitCommand, ExitInitArgs, ImportCommand,
    ImportWireGuardArgs, InviteArgs, RotateKeyArgs,
};
pub(crate) use generate::{completions, man_pages};

/// A userspace VPN over QUIC.
#[derive(Debug, Parser)]
#[command(name = "warren", version, about, max_term_width = 100, subcommand_required = true)]
#[command(arg_required_else_help = true, infer_subcommands = false, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  warren exit init --endpoint exit.example.net    Set up this machine as an exit.
  warren exit invite laptop                       Print the line that enrols a client.
  warren join warren1:...                         Enrol this machine with it, and write its profile.
  warren up                                       Connect.
  warren down                                     Disconnect and restore the host.

Exit codes: 0 done, 1 failed, 2 usage, 3 not running, 4 refused by the exit, 5 timed out.";

/// Options that every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArgs {
    /// Directory of profiles, exit.toml and keys.
    #[arg(long, global = true, env = "WARREN_CONFIG_DIR", value_name = "DIR", default_value = "/etc/warren")]
    #[arg(help_heading = "Global options")]
    pub(crate) config_dir: PathBuf,
    /// Directory of what lives until the next boot.
    #[arg(
        long,
        global = true,
        env = "WARREN_RUNTIME_DIR",
        value_name = "DIR",
        default_value = "/run/warren"
    )]
    #[arg(help_heading = "Global options")]
    pub(crate) runtime_dir: PathBuf,
    /// Directory of what outlives a boot, such as the exit's clients.
    #[arg(
        long,
        global = true,
        env = "WARREN_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/warren"
    )]
    #[arg(help_heading = "Global options")]
    pub(crate) state_dir: PathBuf,
    /// What is logged: a level, or levels by module as tracing filters have it.
    #[arg(long, global = true, env = "WARREN_LOG", value_name = "FILTER", default_value = "info")]
    #[arg(help_heading = "Global options")]
    pub(crate) log: String,
    /// How log lines are written: for people, or as one JSON object a line.
    #[arg(long, global = true, env = "WARREN_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    #[arg(value_parser = values::log_format())]
    #[arg(help_heading = "Global options")]
    pub(crate) log_format: LogFormat,
}

impl GlobalArgs {
    /// The directories, made absolute: a daemon works in `/`, whatever directory it was started from.
    ///
    /// # Errors
    /// When the current directory is gone.
    pub(crate) fn directories(&self) -> anyhow::Result<Directories> {
        let absolute = |directory: &PathBuf| {
            std::path::absolute(directory)
                .context("cannot find the current directory; change to one that exists")
        };
        Ok(Directories {
            config: absolute(&self.config_dir)?,
            runtime: absolute(&self.runtime_dir)?,
            state: absolute(&self.state_dir)?,
        })
    }

    pub(crate) fn log_settings(&self) -> LogSettings {
        LogSettings { filter: self.log.clone(), format: self.log_format }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Connect: start the client and wait until traffic flows.
    ///
    /// A running client that its exit has refused asks the exit again.
    #[command(
        after_help = "Examples:\n  warren up\n  warren up home\n  warren up ./laptop.toml --timeout 30s\n  warren up home --dry-run"
    )]
    Up(UpArgs),
    /// Enrol this machine with an invitation, and write its profile.
    ///
    /// The key is made here and never leaves. If the answer is lost, the same command can be run again.
    #[command(after_help = "Examples:\n  warren join warren1:...\n  warren join warren1:... --name home")]
    Join(JoinArgs),
    /// Disconnect and restore the host exactly.
    #[command(after_help = "Examples:\n  warren down\n  warren down home\n  warren down --all")]
    Down(DownArgs),
    /// Show state, session, connections, rates and every drop by reason.
    #[command(
        after_help = "Examples:\n  warren status\n  warren status home\n  warren status --watch\n  warren status exit --json"
    )]
    Status(StatusArgs),
    /// Change a setting of a running client or exit, until it ends.
    ///
    /// Keys: max_transmit_segments, max_transmit_datagrams, receive_batches, tun_batches, congestion; `[transport]` in
    /// the configuration has them for good. `warren status --json` shows what is in force.
    #[command(after_help = "Examples:\n  warren set max_transmit_segments 10\n  \
                            warren set congestion bbr3 --profile exit")]
    Set(SetArgs),
    /// Let a running daemon read its configuration again, without touching sessions that it does not concern.
    ///
    /// What is wrong with the new configuration is said, and the old one stays in force.
    #[command(after_help = "Examples:\n  warren reload\n  warren reload home\n  warren reload exit")]
    Reload(ReloadArgs),
    /// Look for what on this host keeps Warren from working, or from working well.
    ///
    /// Kernel, TUN, nft, configuration, clock, resolver, MTU, queue discipline and idle states; where an exit is set up, also
    /// its port, inner prefixes, forwarding, other firewalls, offloads and connection tracking. Ends with 1 if there is a
    /// problem.
    #[command(after_help = "Examples:\n  warren doctor\n  warren doctor --fix\n  warren doctor --json")]
    Doctor(DoctorArgs),
    /// Run the client daemon.
    #[command(subcommand)]
    Client(ClientCommand),
    /// Set up and run an exit, and manage its clients.
    #[command(subcommand)]
    Exit(ExitCommand),
    /// Do for a sandboxed daemon what it may not do itself; daemons start it.
    #[command(hide = true)]
    Helper(HelperArgs),
    /// Print a name's addresses; helpers start it.
    #[command(hide = true)]
    LookUp(LookUpArgs),
    /// Write a new private key to standard output.
    #[command(after_help = "Example:\n  (umask 077 && warren keygen > home.key)")]
    Keygen,
    /// Read a private key from standard input and write its public key.
    #[command(after_help = "Example:\n  warren pubkey < home.key")]
    Pubkey,
    /// Remove what a killed daemon left on this host.
    ///
    /// Routes, rules, devices and firewall tables that are not Warren's are left alone, and so is what a running
    /// daemon uses. A kill switch that a killed daemon left closed is opened.
    #[command(after_help = "Examples:\n  warren cleanup\n  warren cleanup home")]
    Cleanup(CleanupArgs),
    /// Write a shell's completions to standard output.
    #[command(after_help = "Example:\n  warren completions bash > /etc/bash_completion.d/warren")]
    Completions(CompletionsArgs),
    /// Write the man pages into a directory, below `man1` and `man5`.
    #[command(after_help = "Example:\n  warren man /usr/local/share/man")]
    Man(ManArgs),
}

/// `warren up`.
#[derive(Args, Clone, Debug)]
pub(crate) struct UpArgs {
    /// A profile's name in the configuration directory, or a profile's file; may be left out if there is only one
    /// profile.
    #[arg(value_name = "PROFILE|FILE")]
    pub(crate) profile: Option<OsString>,
    /// How long to wait for traffic to flow before giving up.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
    /// Let nothing leave outside the tunnel, from now until `warren down`, as `enabled` in [kill_switch] does.
    #[arg(long)]
    pub(crate) kill_switch: bool,
    /// Print what would be done on this host, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `warren join`.
#[derive(Args, Clone, Debug)]
pub(crate) struct JoinArgs {
    /// What `warren exit invite` printed on the exit.
    #[arg(value_name = "INVITE", value_parser = values::invite)]
    pub(crate) invite: Invite,
    /// The profile's name; unless said, what the operator calls this machine.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) name: Option<String>,
    /// How long to try to reach the exit before giving up.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// `warren down`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DownArgs {
    /// The profile to stop; may be left out if only one is up.
    #[arg(value_name = "PROFILE", conflicts_with = "all")]
    pub(crate) profile: Option<OsString>,
    /// Stop every profile that is up.
    #[arg(long)]
    pub(crate) all: bool,
}

/// `warren status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// The profile to show, or "exit" for this machine's exit; may be left out if only one daemon runs.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
    /// Write one JSON object; docs/status.md says what is in it.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) json: bool,
    /// Show it as it changes, with the rate, round-trip time and loss of each connection, until `q` is pressed.
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `warren set`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SetArgs {
    /// What to change.
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// Its new value.
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) value: String,
    /// The profile whose daemon is meant, or "exit" for this machine's exit; may be left out if only one daemon runs.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
}

/// `warren doctor`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Write a JSON array: check, verdict (good, advice or problem), what was found, why it matters, how to fix it.
    #[arg(long)]
    pub(crate) json: bool,
    /// Do what mends the findings, as far as a program can, after showing it; then look again.
    #[arg(long)]
    pub(crate) fix: bool,
}

/// `warren reload`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReloadArgs {
    /// The profile, or "exit" for this machine's exit; may be left out if only one daemon runs.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
}

/// `warren client ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Run the client daemon in the foreground, as systemd does.
    #[command(after_help = "Example:\n  warren client run /etc/warren/home.toml")]
    Run(ClientRunArgs),
    /// Close a profile's kill switch without connecting, as a boot unit does before the network is up.
    #[command(after_help = "Examples:\n  warren client close home\n  warren client close home --watch")]
    Close(ClientCloseArgs),
}

/// `warren client run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientRunArgs {
    /// Started by `up`: in a session of its own, with warnings printed already.
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// The profile's file, or a profile's name in the configuration directory.
    #[arg(value_name = "FILE")]
    pub(crate) profile: OsString,
}

/// `warren cleanup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CleanupArgs {
    /// The profile that was up, or "exit"; every daemon's unless said.
    #[arg(value_name = "PROFILE")]
    pub(crate) daemon: Option<OsString>,
    /// Keep what a daemon left on purpose for the one that follows it, such as a closed kill switch, as the units do when
    /// a daemon ends and at boot.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// `warren helper`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HelperArgs {
    /// The daemon's name: a profile's, or "exit".
    pub(crate) name: String,
}

/// `warren look-up`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LookUpArgs {
    /// What to look up.
    pub(crate) host: String,
}

/// `warren client close`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientCloseArgs {
    /// Stay, as warren-lockdown@.service does, and close it again whenever its table is deleted or changed, until it is opened by
    /// `warren down` and closed anew. It stays closed when this ends.
    #[arg(long)]
    pub(crate) watch: bool,
    /// The profile's file, or a profile's name in the configuration directory; may be left out if there is only one
    /// profile.
    #[arg(value_name = "PROFILE|FILE")]
    pub(crate) profile: Option<OsString>,
}

/// `warren completions`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell to write them for.
    pub(crate) shell: Shell,
}

/// `warren man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// The directory to write them into; it is made if it is missing.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[cfg(test)]
mod tests;
