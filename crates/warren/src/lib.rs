//! Warren: a userspace VPN over QUIC. One binary for the client, the exit, and the commands around them.
#![forbid(unsafe_code)]

mod breakdown;
mod cli;
mod client;
mod config;
mod control;
mod daemon_dir;
mod deadline;
mod device_watch;
mod doctor;
mod entropy;
mod exit;
mod exit_code;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod helper;
mod logging;
mod notify;
mod private_socket;
mod resolvers;
mod sandbox;
mod spare_memory;
mod status;
mod storage;
mod transport;
mod tuning;
mod worker;

use std::future::Future;

use anyhow::Context as _;
use clap::Parser;

use cli::args::{
    CleanupArgs, Cli, ClientCommand, Command, DownArgs, ExitCommand, GlobalArgs, ImportCommand, UpArgs,
};
use cli::output;
use daemon_dir::{DaemonDir, OnPurpose};
use exit_code::{ExitCode, Failure};

/// The program: does what its arguments say.
pub fn main() -> std::process::ExitCode {
    breakdown::end_on_panic();
    let Cli { mut global, command } = Cli::parse();
    let outcome = make_absolute(&mut global)
        .and_then(|()| logging::start(&global))
        .and_then(|()| run(&global, command));
    match outcome {
        Ok(()) => ExitCode::Done.into(),
        Err(error) => {
            output::report(&error);
            ExitCode::of(&error).into()
        }
    }
}

/// A daemon works in `/`, whatever directory it was started from.
fn make_absolute(global: &mut GlobalArgs) -> anyhow::Result<()> {
    for directory in [&mut global.config_dir, &mut global.runtime_dir, &mut global.state_dir] {
        *directory = std::path::absolute(&*directory)
            .context("cannot find the current directory; change to one that exists")?;
    }
    Ok(())
}

fn run(global: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up(arguments) => up(global, arguments),
        Command::Down(arguments) => block_on(down(global, arguments)),
        Command::Join(arguments) => block_on(cli::join::run(global, arguments)),
        Command::Status(arguments) => block_on(cli::status::run(global, arguments)),
        Command::Set(arguments) => block_on(cli::set::run(global, arguments)),
        Command::Reload(arguments) => {
            let profile = arguments.profile.map(|name| name.to_string_lossy().into_owned());
            block_on(cli::reload::reload(global, profile.as_deref()))
        }
        Command::Doctor(arguments) => doctor::run(global, &arguments),
        Command::Client(ClientCommand::Run(arguments)) => {
            let file = config::find_profile(&global.config_dir, Some(&arguments.profile))?;
            told(block_on(client::client_run(global, &file, arguments.detached)))
        }
        Command::Client(ClientCommand::Close(arguments)) => {
            let file = config::find_profile(&global.config_dir, arguments.profile.as_deref())?;
            told(block_on(client::client_close(global, &file, arguments.watch)))
        }
        Command::Exit(ExitCommand::Init(arguments)) => cli::exit_init::run(global, &arguments),
        Command::Exit(ExitCommand::Run) => told(block_on(exit::exit_run(global))),
        Command::Exit(ExitCommand::Release) => block_on(exit::release(global)),
        Command::Exit(ExitCommand::Invite(arguments)) => {
            cli::exit_client::invite(global, &arguments, |config| exit::client_store(global, config))
        }
        Command::Exit(ExitCommand::Drain(arguments)) => {
            block_on(cli::reload::drain(global, arguments.timeout))
        }
        Command::Exit(ExitCommand::Import(ImportCommand::Wireguard(arguments))) => {
            cli::exit_import::run(global, &arguments, |config| exit::client_store(global, config))
        }
        Command::Exit(ExitCommand::RotateKey(arguments)) => {
            block_on(cli::rotate_key::run(global, &arguments))
        }
        Command::Exit(ExitCommand::Client(command)) => {
            cli::exit_client::run(global, &command, |config| exit::client_store(global, config))
        }
        Command::Helper(arguments) => block_on(helper::serve(global, &arguments.name)),
        Command::LookUp(arguments) => helper::look_up(&arguments.host),
        Command::Keygen => cli::keys::keygen(),
        Command::Pubkey => cli::keys::pubkey(),
        Command::Cleanup(arguments) => block_on(cleanup(global, arguments)),
        Command::Completions(arguments) => {
            output::print(&String::from_utf8_lossy(&cli::args::completions(arguments.shell)))
        }
        Command::Man(arguments) => cli::args::man_pages(&arguments.directory),
    }
}

fn up(global: &GlobalArgs, arguments: UpArgs) -> anyhow::Result<()> {
    let profile = config::find_profile(&global.config_dir, arguments.profile.as_deref())?;
    let UpArgs { timeout, kill_switch, dry_run, .. } = arguments;
    if dry_run {
        return block_on(client::dry_run(global, &profile, kill_switch));
    }
    block_on(client::up(global, client::UpOptions { profile, timeout, kill_switch }))
}

async fn down(global: &GlobalArgs, arguments: DownArgs) -> anyhow::Result<()> {
    let running = client::candidates(global)?;
    if arguments.all {
        for name in &running {
            client::down(global, name).await?;
        }
        return Ok(());
    }
    let name = match (arguments.profile, running.as_slice()) {
        (Some(name), _) => client::profile_name(&name)?,
        (None, [name]) => name.clone(),
        (None, []) => {
            return Err(Failure::new(ExitCode::NotRunning, "no profile is up; `warren up` connects").into());
        }
        (None, several) => {
            let sentence = format!("{} are up; name one, or use --all", several.join(", "));
            return Err(Failure::new(ExitCode::Usage, sentence).into());
        }
    };
    client::down(global, &name).await
}

/// Removes what killed daemons left, closed kill switches too unless told otherwise; a running daemon keeps what it has.
async fn cleanup(global: &GlobalArgs, arguments: CleanupArgs) -> anyhow::Result<()> {
    for directory in [global.config_dir.clone(), global.config_dir.join("clients")] {
        storage::remove_abandoned(&directory);
    }
    let on_purpose = if arguments.keep { OnPurpose::Keep } else { OnPurpose::Remove };
    // The helper of a daemon that was killed a moment ago may still hold the resolvers.
    for (_, directory) in daemon_dir::all(&global.runtime_dir)? {
        directory.wait_for_the_dead().await?;
    }
    let Some(name) = arguments.daemon else {
        client::clean_up_dns(&global.state_dir).await?;
        return daemon_dir::clean_up(&global.runtime_dir, on_purpose).await.map(drop);
    };
    if name == daemon_dir::EXIT {
        return DaemonDir::new(&global.runtime_dir, daemon_dir::EXIT).clean_up(on_purpose).await.map(drop);
    }
    let name = client::profile_name(&name)?;
    let directory = DaemonDir::new(&global.runtime_dir, &name);
    if !directory.exists() && warren_host::dns::recover(&global.state_dir, &name).await?.is_empty() {
        // A profile whose daemon left nothing, or never ran, is clean.
        return config::find_profile(&global.config_dir, Some(name.as_ref())).map(drop).map_err(Into::into);
    }
    warren_host::dns::recover(&global.state_dir, &name).await?;
    directory.clean_up(on_purpose).await.map(drop)
}

/// Tells whoever started a daemon why it ended.
fn told(outcome: anyhow::Result<()>) -> anyhow::Result<()> {
    outcome.inspect_err(|error| notify::status(&output::sentence(error)))
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime; check the limits on descriptors and memory")?;
    let outcome = runtime.block_on(future);
    // A look-up that the system's resolver has not answered is nobody's concern any more.
    runtime.shutdown_background();
    outcome
}
