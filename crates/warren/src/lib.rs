//! Warren: a userspace VPN over QUIC. One binary for the client, the exit, and the commands around them.
//!
//! The modules:
//! - `cli`: the arguments, and the commands that need no daemon of their own
//! - `doctor`: `warren doctor`
//! - `proc_net`, `lost_kill_switch`, `runtime`: parts that `cli` and `doctor` share
//! - `fuzzing`: access to private parsers for fuzz targets
//!
//! The daemons are in `warren_client` and `warren_exit`.
#![forbid(unsafe_code)]

mod cli;
mod doctor;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod lost_kill_switch;
mod proc_net;
mod runtime;

use warren_client as client;
use warren_config::{self as config, storage};
use warren_daemon::daemon_directory::{self, DaemonDirectory, ForSuccessor};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::logging::LogSettings;
use warren_daemon::{helper, logging, notify, output, panics};
use warren_exit as exit;

use runtime::block_on;

use cli::args::{
    CleanupArgs, Cli, ClientCommand, Command, DownArgs, ExitCommand, ImportCommand, ImportProfileCommand,
    UpArgs,
};

/// Runs the command that the program's arguments specify.
pub fn main() -> std::process::ExitCode {
    panics::abort_on_panic();
    cli::complete::answer_shell();
    let Cli { global, command } = Cli::read();
    let log = global.log_settings();
    let outcome = logging::start(&log).and_then(|()| run(&global.directories()?, &log, command));
    match outcome {
        Ok(()) => ExitCode::Done.into(),
        Err(error) => {
            output::report(&error);
            ExitCode::of(&error).into()
        }
    }
}

fn run(directories: &Directories, log: &LogSettings, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up(arguments) => up(directories, log, arguments),
        Command::Down(arguments) => block_on(down(directories, arguments)),
        Command::Exec(arguments) => cli::exec::run(directories, log, &arguments),
        Command::Portal(arguments) => cli::portal::run(directories, &arguments),
        Command::Network(arguments) => block_on(cli::network::run(directories, &arguments.name)),
        Command::Join(arguments) => block_on(cli::join::run(directories, arguments)),
        Command::Import(ImportProfileCommand::Wireguard(arguments)) => {
            block_on(cli::import::run(directories, arguments))
        }
        Command::Status(arguments) => block_on(cli::status::run(directories, arguments)),
        Command::List(arguments) => block_on(cli::list::run(directories, arguments.json)),
        Command::Logs(arguments) => block_on(cli::logs::run(directories, &arguments)),
        Command::Exits(arguments) => block_on(cli::exits::run(directories, &arguments)),
        Command::Fleet(arguments) => cli::fleet::run(directories, log, &arguments.arguments),
        Command::Set(arguments) => block_on(cli::set::run(directories, arguments)),
        Command::Reload(arguments) => {
            let profile = arguments.profile.map(|name| name.to_string_lossy().into_owned());
            block_on(cli::reload::reload(directories, profile.as_deref()))
        }
        Command::Doctor(arguments) => doctor::run(directories, &arguments),
        Command::Client(ClientCommand::Run(arguments)) => {
            let file = config::find_profile(&directories.config, Some(&arguments.profile))?;
            told(block_on(client::client_run(directories, log, &file, arguments.detached)))
        }
        Command::Client(ClientCommand::Close(arguments)) => {
            let file = config::find_profile(&directories.config, arguments.profile.as_deref())?;
            told(block_on(client::client_close(directories, &file, arguments.watch)))
        }
        Command::Exit(ExitCommand::Init(arguments)) => cli::exit_init::run(directories, &arguments),
        Command::Exit(ExitCommand::Run) => told(block_on(exit::exit_run(directories, log))),
        Command::Exit(ExitCommand::Release) => block_on(exit::release(directories)),
        Command::Exit(ExitCommand::Invite(arguments)) => {
            cli::exit_client::invite(directories, &arguments, |config| {
                cli::exit_client::open(directories, config)
            })
        }
        Command::Exit(ExitCommand::Audit(arguments)) => cli::exit_audit::run(directories, &arguments),
        Command::Exit(ExitCommand::Drain(arguments)) => {
            block_on(cli::drain::drain(directories, arguments.timeout, arguments.yes))
        }
        Command::Exit(ExitCommand::Import(ImportCommand::Wireguard(arguments))) => {
            cli::exit_import::run(directories, &arguments, |config| {
                cli::exit_client::open(directories, config)
            })
        }
        Command::Exit(ExitCommand::RotateKey(arguments)) => {
            block_on(cli::rotate_key::run(directories, &arguments))
        }
        Command::Exit(ExitCommand::Client(command)) => {
            cli::exit_client::run(directories, &command, |config| cli::exit_client::open(directories, config))
        }
        Command::Helper(arguments) => block_on(helper::serve(directories, &arguments.name)),
        Command::LookUp(arguments) => helper::look_up(&arguments.host),
        Command::Keygen => cli::keys::keygen(),
        Command::Pubkey => cli::keys::pubkey(),
        Command::Cleanup(arguments) => block_on(cleanup(directories, arguments)),
        Command::Completions(arguments) => output::print_all(&cli::args::completions(arguments.shell)?),
        Command::Man(arguments) => cli::args::man_pages(&arguments.directory),
    }
}

fn up(directories: &Directories, log: &LogSettings, arguments: UpArgs) -> anyhow::Result<()> {
    if client::is_member(directories) {
        return up_as_member(directories, arguments);
    }
    let profile = config::find_profile(&directories.config, arguments.profile.as_deref())?;
    let UpArgs { timeout, kill_switch, dry_run, exit, .. } = arguments;
    if dry_run {
        return block_on(client::dry_run(directories, &profile, kill_switch));
    }
    let options =
        client::UpOptions { log: log.clone(), profile, timeout, kill_switch, exit, host_outside: false };
    block_on(client::up(directories, options))
}

/// `up` for a user who is not root. The profile is given by name, because only root can read its file.
fn up_as_member(directories: &Directories, arguments: UpArgs) -> anyhow::Result<()> {
    let UpArgs { profile, timeout, kill_switch, dry_run, exit } = arguments;
    if kill_switch || dry_run || exit.is_some() {
        let sentence = "only root may use --kill-switch, --dry-run and --exit; run this as root";
        return Err(Failure::new(ExitCode::Usage, sentence).into());
    }
    let file = config::find_profile(&directories.config, profile.as_deref())?;
    if file.parent() != Some(directories.config.as_path()) {
        let sentence = format!(
            "only root may use a profile outside {0}; run this as root, or name a profile in {0}",
            directories.config.display()
        );
        return Err(Failure::new(ExitCode::Usage, sentence).into());
    }
    let name = client::profile_name(file.as_os_str())?;
    block_on(client::up_as_member(directories, &name, timeout))
}

/// `down` for a user who is not root and therefore cannot see which profiles are up.
async fn down_as_member(directories: &Directories, arguments: DownArgs) -> anyhow::Result<()> {
    if arguments.all {
        return Err(Failure::new(
            ExitCode::Usage,
            "only root may use --all; name a profile, or run this as root",
        )
        .into());
    }
    let file = config::find_profile(&directories.config, arguments.profile.as_deref())?;
    client::down_as_member(&client::profile_name(file.as_os_str())?).await
}

async fn down(directories: &Directories, arguments: DownArgs) -> anyhow::Result<()> {
    if client::is_member(directories) {
        return down_as_member(directories, arguments).await;
    }
    if let Some(name) = arguments.profile.as_ref().filter(|_| arguments.for_member) {
        return told(client::down_for_member(directories, &client::profile_name(name)?).await);
    }
    let running = client::candidates(directories)?;
    if arguments.all {
        for name in &running {
            client::down(directories, name).await?;
        }
        return Ok(());
    }
    let name = match (arguments.profile, running.as_slice()) {
        (Some(name), _) => client::profile_name(&name)?,
        (None, [name]) => name.clone(),
        (None, []) => {
            let sentence = format!("no profile is up; `{}` connects", directories.command("up"));
            return Err(Failure::new(ExitCode::NotRunning, sentence).into());
        }
        (None, several) => {
            let sentence = format!("{} are up; name one, or use --all", several.join(", "));
            return Err(Failure::new(ExitCode::Usage, sentence).into());
        }
    };
    client::down(directories, &name).await
}

/// Undoes the changes of killed daemons, and opens closed kill switches unless `--keep` is given. Running daemons are not
/// affected.
async fn cleanup(directories: &Directories, arguments: CleanupArgs) -> anyhow::Result<()> {
    // Killed commands may have left private keys in temporary files.
    for directory in [directories.config.clone(), directories.config.join("clients")] {
        storage::remove_abandoned(&directory);
    }
    let for_successor = if arguments.keep { ForSuccessor::Keep } else { ForSuccessor::Remove };
    // The helper of a daemon that was killed a moment ago may still hold the resolvers.
    for (_, directory) in daemon_directory::all(&directories.runtime)? {
        directory.wait_for_killed().await?;
    }
    let Some(name) = arguments.daemon else {
        client::clean_up_dns(&directories.state).await?;
        return daemon_directory::clean_up(&directories.runtime, for_successor).await.map(drop);
    };
    if name == daemon_directory::EXIT {
        return DaemonDirectory::new(&directories.runtime, daemon_directory::EXIT)
            .clean_up(for_successor)
            .await
            .map(drop);
    }
    let name = client::profile_name(&name)?;
    let directory = DaemonDirectory::new(&directories.runtime, &name);
    if !directory.exists() && warren_host::dns::recover(&directories.state, &name).await?.is_empty() {
        // The profile's daemon has left no changes or never ran. Only checks that the profile exists.
        return config::find_profile(&directories.config, Some(name.as_ref())).map(drop).map_err(Into::into);
    }
    warren_host::dns::recover(&directories.state, &name).await?;
    directory.clean_up(for_successor).await.map(drop)
}

/// Reports a daemon's error to the program that started it, such as `warren up` or systemd.
fn told(outcome: anyhow::Result<()>) -> anyhow::Result<()> {
    outcome.inspect_err(|error| notify::status(&output::sentence(error)))
}
