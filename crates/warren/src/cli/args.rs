//! Everything that can be typed after `warren`. `--help`, man pages and completions come from these types.

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

use super::portal::PlainUrl;
use warren_daemon::directories::Directories;
use warren_daemon::logging::{LogFormat, LogSettings};

pub(crate) use exit::{
    ClientAddArgs, ClientExportArgs, ClientImportArgs, ClientListArgs, ClientSetArgs, ExitAuditArgs,
    ExitClientCommand, ExitCommand, ExitInitArgs, ForwardAddArgs, ForwardCommand, ForwardListArgs,
    ImportCommand, ImportWireGuardArgs, InviteArgs, RotateKeyArgs,
};
pub(crate) use generate::{COMPLETION_VARIABLE, completions, man_pages};

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

Exit codes: 0 done, 1 failed, 2 usage, 3 not running, 4 refused by the exit, 5 timed out,
126 `exec` cannot start the program, 127 `exec` does not find it.";

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArgs {
    /// Directory of profiles, exit.toml and keys.
    #[arg(long, global = true, env = "WARREN_CONFIG_DIR", value_name = "DIR", default_value = "/etc/warren")]
    #[arg(help_heading = "Global options")]
    pub(crate) config_dir: PathBuf,
    /// Directory for files that last until the next boot.
    #[arg(
        long,
        global = true,
        env = "WARREN_RUNTIME_DIR",
        value_name = "DIR",
        default_value = "/run/warren"
    )]
    #[arg(help_heading = "Global options")]
    pub(crate) runtime_dir: PathBuf,
    /// Directory for files that outlast a boot, such as the exit's clients.
    #[arg(
        long,
        global = true,
        env = "WARREN_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/warren"
    )]
    #[arg(help_heading = "Global options")]
    pub(crate) state_dir: PathBuf,
    /// What to log: a level, or levels by module in the syntax of tracing filters.
    #[arg(long, global = true, env = "WARREN_LOG", value_name = "FILTER", default_value = "info")]
    #[arg(help_heading = "Global options")]
    pub(crate) log: String,
    /// Format of log lines: text for people, or one JSON object a line.
    #[arg(long, global = true, env = "WARREN_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    #[arg(value_parser = values::log_format())]
    #[arg(help_heading = "Global options")]
    pub(crate) log_format: LogFormat,
}

impl Cli {
    /// Reads this process's arguments. A mistake, or a request for help, ends the process.
    pub(crate) fn read() -> Self {
        // Building the definition of every command takes clap longer than everything that `up` does before it starts the daemon.
        // If the short definition does not accept the arguments, the full one does, or says what is wrong.
        Self::of_start(std::env::args_os()).unwrap_or_else(Self::parse)
    }

    /// Parses the arguments with the short definition.
    fn of_start(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let StartCli { global, command } = StartCli::try_parse_from(arguments).ok()?;
        Some(Self { global, command: command.into() })
    }
}

/// The part of [`Cli`] that a start and a stop of a client use.
#[derive(Debug, Parser)]
#[command(name = "warren", subcommand_required = true)]
struct StartCli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: StartCommand,
}

/// Some of the [`Command`]s.
#[derive(Debug, Subcommand)]
enum StartCommand {
    Up(UpArgs),
    Down(DownArgs),
    #[command(subcommand)]
    Client(ClientCommand),
    Helper(HelperArgs),
}

impl From<StartCommand> for Command {
    fn from(command: StartCommand) -> Self {
        match command {
            StartCommand::Up(arguments) => Self::Up(arguments),
            StartCommand::Down(arguments) => Self::Down(arguments),
            StartCommand::Client(command) => Self::Client(command),
            StartCommand::Helper(arguments) => Self::Helper(arguments),
        }
    }
}

impl GlobalArgs {
    /// The directories as absolute paths, because a daemon works in `/` wherever it was started.
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
    /// If the exit has refused a running client, the client asks the exit again. On a host with systemd, members of the group
    /// warren may connect the profiles in /etc/warren too.
    #[command(
        after_help = "Examples:\n  warren up\n  warren up home\n  warren up ./laptop.toml --timeout 30s\n  warren up home --dry-run"
    )]
    Up(UpArgs),
    /// Run one program inside the tunnel, its DNS included. The rest of the host may stay outside.
    ///
    /// If the profile is not up, the command brings it up for such programs alone; `warren down` ends that. With --outside, the
    /// program is outside while the host is inside. No packet of the program ever leaves on the wrong side: when the tunnel goes
    /// down or the daemon is killed, a program inside is cut off. docs/exec.md says what this does not cover.
    #[command(after_help = "Examples:\n  warren exec home -- curl https://example.net/\n  \
                            sudo warren exec --user alice home -- curl https://example.net/\n  \
                            warren exec --outside home -- ping 192.0.2.1")]
    Exec(ExecArgs),
    /// Open a hotel's or train's login page while the kill switch is closed, for at most five minutes.
    ///
    /// Only the browser that this command starts is let out. It runs as the calling user, and reaches only TCP ports 80 and 443,
    /// and the network's resolver. The browser has a throw-away profile. Everything else stays blocked. The login page closes
    /// with the browser, with Ctrl-C, when the tunnel is up, and when the daemon ends. docs/portal.md says more.
    #[command(
        after_help = "Examples:\n  sudo warren portal\n  sudo warren portal home -- w3m http://example.com/"
    )]
    Portal(PortalArgs),
    /// Say which network this host is in, and what to write in a profile to let its tunnel rest there.
    #[command(after_help = "Examples:\n  warren network\n  warren network office")]
    Network(NetworkArgs),
    /// Enrol this machine with an invitation, and write its profile.
    ///
    /// The key is made on this machine and never leaves it. If the answer is lost, run the same command again.
    ///
    /// A profile of that name for the same exit gets the new key and keeps its settings; the earlier file stays as
    /// NAME.toml.old. A profile for another exit is never changed: choose another --name.
    #[command(after_help = "Examples:\n  warren join warren1:...\n  warren join warren1:... --name home")]
    Join(JoinArgs),
    /// Write a profile from another VPN's file and an invitation.
    #[command(subcommand)]
    Import(ImportProfileCommand),
    /// Disconnect and restore the host exactly.
    ///
    /// A member of the group warren may do this too for profiles in /etc/warren. Only root may open a closed kill
    /// switch, unless the profile has `down = "group"` in [kill_switch].
    #[command(after_help = "Examples:\n  warren down\n  warren down home\n  warren down --all")]
    Down(DownArgs),
    /// Show what a client or an exit is doing, in ten lines, with one more line for each problem.
    #[command(
        after_help = "Examples:\n  warren status\n  warren status home --changes\n  warren status --all\n  \
                      warren status --watch\n  warren status exit --json"
    )]
    Status(StatusArgs),
    /// List this machine's profiles and the state of each.
    #[command(after_help = "Examples:\n  warren list\n  warren list --json")]
    List(ListArgs),
    /// Show the log of a client or an exit.
    ///
    /// If systemd runs the daemon, the log is in the journal. Otherwise it is in a file that begins with the latest `warren up`.
    #[command(
        after_help = "Examples:\n  warren logs\n  warren logs home --follow\n  warren logs exit --lines 50"
    )]
    Logs(LogsArgs),
    /// Measure the round-trip time to each exit of a profile and of its fleet, and say which one is in use.
    ///
    /// If the exits belong to a fleet, FROM says whether an exit is from the profile or from the fleet's roster, and gives its name in
    /// the roster. The command asks all exits at once, which takes about two seconds, or longer if one does not answer. A running
    /// session is not touched.
    #[command(after_help = "Examples:\n  warren exits\n  warren exits home --json")]
    Exits(ExitsArgs),
    /// Manage a fleet: exits that share their clients. Runs `warren-fleet`, a program of its own.
    ///
    /// All arguments go to `warren-fleet`; `warren fleet --help` shows its commands.
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  warren fleet status\n  warren fleet ticket ams2"
    )]
    Fleet(FleetArgs),
    /// Change a setting of a running client or exit, for as long as it runs.
    ///
    /// Keys: max_transmit_segments, max_transmit_datagrams, receive_batches, tun_batches, congestion. To keep a change,
    /// write it under `[transport]` in the configuration. `warren status --json` shows the values in force.
    #[command(after_help = "Examples:\n  warren set max_transmit_segments 10\n  \
                            warren set congestion bbr3 --profile exit")]
    Set(SetArgs),
    /// Tell a running daemon to read its configuration again.
    ///
    /// Sessions that the change does not affect continue. If the new configuration has an error, the command prints it
    /// and the old configuration stays in force.
    #[command(after_help = "Examples:\n  warren reload\n  warren reload home\n  warren reload exit")]
    Reload(ReloadArgs),
    /// Find what keeps Warren from working, or from working well, on this host.
    ///
    /// Checks the kernel, TUN, nft, configuration, clock, resolver, MTU, queue discipline and idle states. If an exit is
    /// set up here, also checks its port, inner prefixes, forwarding, other firewalls, offloads and connection tracking.
    /// Exits with 1 if there is a problem.
    ///
    /// With --path, it measures the path of a running tunnel to its exit instead.
    #[command(after_help = "Examples:\n  warren doctor\n  warren doctor --fix\n  warren doctor --json\n  \
                            warren doctor --path\n  warren doctor --path home --json")]
    Doctor(DoctorArgs),
    /// Run the client daemon.
    #[command(subcommand)]
    Client(ClientCommand),
    /// Set up and run an exit, and manage its clients.
    #[command(subcommand)]
    Exit(ExitCommand),
    /// Do what a sandboxed daemon may not do itself; started by daemons.
    #[command(hide = true)]
    Helper(HelperArgs),
    /// Print a name's addresses; started by helpers.
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
    /// Leaves alone routes, rules, devices and firewall tables of other programs, and everything that a running daemon
    /// uses. Opens a kill switch that a killed daemon left closed.
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
    /// A profile's name in the configuration directory, or a profile's file. Can be left out if there is only one
    /// profile.
    #[arg(value_name = "PROFILE|FILE")]
    pub(crate) profile: Option<OsString>,
    /// The exit to try first, this time: an endpoint of the profile or of its fleet's roster, a host name, or a name in
    /// the roster. The others stay as failover.
    #[arg(long, value_name = "NAME", conflicts_with = "dry_run")]
    pub(crate) exit: Option<String>,
    /// How long to wait for traffic to flow.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
    /// Let nothing leave outside the tunnel from now until `warren down`, like `enabled` in [kill_switch].
    #[arg(long)]
    pub(crate) kill_switch: bool,
    /// Print what would change on this host, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `warren exec`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExecArgs {
    /// Run the program outside of the tunnel. A closed kill switch refuses that, unless the profile has
    /// `allow_exec_outside = true`.
    #[arg(long)]
    pub(crate) outside: bool,
    /// Run the program as this user. Only for root. Unlike `sudo` and `su`, it opens no login session, in which the program would
    /// leave the tunnel.
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The profile's name. Can be left out if only one is up, or if there is only one profile.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

/// `warren portal`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PortalArgs {
    /// The profile's name. Can be left out if only one is up, or if there is only one profile.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
    /// How long the login page stays open, at most 5 minutes.
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = values::portal_time)]
    pub(crate) timeout: Duration,
    /// The page to ask for. The network answers with its login page instead.
    #[arg(long, value_name = "URL", default_value = PlainUrl::DEFAULT)]
    pub(crate) url: PlainUrl,
    /// For the process in the portal's cgroup.
    #[arg(long, hide = true)]
    pub(crate) inside: bool,
    /// A program to run instead of a browser, and its arguments. WARREN_PORTAL_URL contains the login page's
    /// address.
    #[arg(value_name = "COMMAND", last = true, num_args = 0..)]
    pub(crate) command: Vec<OsString>,
}

/// `warren network`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NetworkArgs {
    /// Your name for the network.
    #[arg(value_name = "NAME", default_value = "home")]
    pub(crate) name: String,
}

/// `warren join`.
#[derive(Args, Clone, Debug)]
pub(crate) struct JoinArgs {
    /// The line that `warren exit invite` printed on the exit.
    #[arg(value_name = "INVITE", value_parser = values::invite)]
    pub(crate) invite: Invite,
    /// The profile's name [default: the name in the invitation].
    #[arg(long, value_name = "PROFILE")]
    pub(crate) name: Option<String>,
    /// How long to try to reach the exit.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// `warren down`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DownArgs {
    /// The profile to stop. Can be left out if only one is up.
    #[arg(value_name = "PROFILE", conflicts_with = "all")]
    pub(crate) profile: Option<OsString>,
    /// Stop every profile that is up.
    #[arg(long)]
    pub(crate) all: bool,
    /// Run for a member of the group warren. The profile decides whether members may open the kill switch. For warren-down@.service.
    #[arg(long, hide = true, requires = "profile")]
    pub(crate) for_member: bool,
}

/// `warren import ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportProfileCommand {
    /// Enrol this machine, and take routes, resolvers and exclusions from a WireGuard client's file.
    ///
    /// Keys and addresses are new. What cannot be imported is listed.
    #[command(after_help = "Examples:\n  warren import wireguard /etc/wireguard/wg0.conf --dry-run\n  \
                            warren import wireguard /etc/wireguard/wg0.conf --invite warren1:...")]
    Wireguard(ImportProfileArgs),
}

/// `warren import wireguard`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImportProfileArgs {
    /// The client's configuration file for wg-quick.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The line that `warren exit invite` printed on the exit.
    #[arg(long, value_name = "INVITE", value_parser = values::invite, required_unless_present = "dry_run")]
    pub(crate) invite: Option<Invite>,
    /// The profile's name [default: the name in the invitation].
    #[arg(long, value_name = "PROFILE")]
    pub(crate) name: Option<String>,
    /// How long to try to reach the exit.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
    /// Print the settings that the profile would get, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `warren status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// The profile to show, or "exit" for this machine's exit. Can be left out if only one daemon runs.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
    /// Print one JSON object. docs/status.md describes its keys.
    #[arg(long, conflicts_with_all = ["watch", "changes", "all"])]
    pub(crate) json: bool,
    /// List what was changed on this host and will be undone: addresses, routes, rules, firewall, resolvers.
    #[arg(long, conflicts_with_all = ["watch", "all"])]
    pub(crate) changes: bool,
    /// Show everything: sessions, each connection and its path, every drop by reason, and the changes on this host.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) all: bool,
    /// Keep the display up to date, with each connection's rate, round-trip time and loss, until `q` is pressed.
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `warren list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListArgs {
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `warren logs`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogsArgs {
    /// The profile, or "exit" for this machine's exit. Can be left out if only one daemon runs.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
    /// Show new lines as they are written, until Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Show only the last lines [default: all].
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub(crate) lines: Option<u32>,
}

/// `warren fleet`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FleetArgs {
    /// What to do, and its options.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// `warren exits`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExitsArgs {
    /// A profile's name in the configuration directory, or a profile's file. Can be left out if there is only one
    /// profile.
    #[arg(value_name = "PROFILE|FILE")]
    pub(crate) profile: Option<OsString>,
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `warren set`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SetArgs {
    /// The setting to change.
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// Its new value.
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) value: String,
    /// The profile whose daemon to change, or "exit" for this machine's exit. Can be left out if only one daemon runs.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
}

/// `warren doctor`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Print a JSON array. Each element has the check, the verdict (good, advice or problem), what was found, why it
    /// matters and how to fix it.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show and apply the repairs that a program can make, then check again.
    #[arg(long)]
    pub(crate) fix: bool,
    /// Measure the path to the exit through a running tunnel: round-trip time, loss, MTU, rate and queue. It takes ten
    /// seconds. For almost four of these it fills the path, with at most 64 MB each way. The profile can be left out if
    /// only one daemon runs.
    #[arg(long, value_name = "PROFILE", num_args = 0..=1, conflicts_with = "fix")]
    pub(crate) path: Option<Option<OsString>>,
}

/// `warren reload`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReloadArgs {
    /// The profile, or "exit" for this machine's exit. Can be left out if only one daemon runs.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: Option<OsString>,
}

/// `warren client ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Run the client daemon in the foreground, as systemd does.
    #[command(after_help = "Example:\n  warren client run /etc/warren/home.toml")]
    Run(ClientRunArgs),
    /// Close a profile's kill switch without connecting. A boot unit uses this before the network is up.
    #[command(after_help = "Examples:\n  warren client close home\n  warren client close home --watch")]
    Close(ClientCloseArgs),
}

/// `warren client run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientRunArgs {
    /// Set by `up`: the daemon has a session of its own, and warnings were printed already.
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// The profile's file, or a profile's name in the configuration directory.
    #[arg(value_name = "FILE")]
    pub(crate) profile: OsString,
}

/// `warren cleanup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CleanupArgs {
    /// The profile that was up, or "exit". All daemons if left out.
    #[arg(value_name = "PROFILE")]
    pub(crate) daemon: Option<OsString>,
    /// Keep what a daemon left on purpose for its successor, such as a closed kill switch. Units use this when a daemon
    /// ends and at boot.
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
    /// Keep running, like warren-lockdown@.service, and close the kill switch again whenever another program deletes or changes
    /// its table. After `warren down`, wait until the kill switch is closed again. SIGTERM ends this command, and leaves the kill
    /// switch closed.
    #[arg(long)]
    pub(crate) watch: bool,
    /// The profile's file, or a profile's name in the configuration directory. Can be left out if there is only one
    /// profile.
    #[arg(value_name = "PROFILE|FILE")]
    pub(crate) profile: Option<OsString>,
}

/// `warren completions`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell to write completions for.
    pub(crate) shell: Shell,
}

/// `warren man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// The directory to write into. It is created if it is missing.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[cfg(test)]
mod tests;
