//! `warren exit run`: makes everything that the exit daemon needs, in an order in which no failure leaves anything behind.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{anyhow, bail};
use warren_session::clients::ClientRegistry;
use warren_session::exit::{ExitSessions, FleetNews, SessionConfig};
use warren_tun::{Device, DeviceConfig, Queue, TunError};
use warren_tunnel::Rings;

use crate::clients::Clients;
use crate::daemon::{self, ExitStart};
use crate::ending::Ending;
use crate::fleet::{Fleet, FleetSocket};
use crate::host::{DEVICE, FoundHost, INNER_MTU, hold};
use crate::session_settings::{session_settings, warn_of_networks_untold};
use crate::stopped::StoppedClients;
use crate::{other_firewalls, reset_key, roster, sockets, wireguard};
use warren_config::{ClientStore, ExitSettings, WebListen, counted, load_exit, lock_clients};
use warren_daemon::daemon_directory::{DaemonDirectory, DaemonLock, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::helper::Helper;
use warren_daemon::logging::LogSettings;
use warren_daemon::notify;
use warren_daemon::output;
use warren_daemon::sandbox::{self, Files};

/// How long to wait for the registry's lock. A command that changes the registry holds it only for an instant.
const CLIENTS_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Runs the exit daemon until it is stopped.
///
/// # Errors
/// Why the daemon stopped. By then, the host has been restored.
pub async fn exit_run(directories: &Directories, log: &LogSettings) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    let directory = DaemonDirectory::new(&directories.runtime, EXIT);
    directory.create()?;
    // The lock is taken before the sockets are bound, because otherwise a second daemon could join their shared port unnoticed.
    let Some(lock) = directory.lock_after_kill().await? else {
        let sentence = "an exit is already running; see `warren status exit`, or stop it first";
        return Err(Failure::new(ExitCode::Failed, sentence).into());
    };
    let recovered = warren_host::recover(&directory.journal()).await?;
    if !recovered.undone.is_empty() {
        tracing::info!("removed what a killed daemon had left");
    }
    let outcome = prepare_and_run(directories, log, config, &directory, &lock).await;
    directory.clear(&lock);
    drop(lock);
    outcome
}

async fn prepare_and_run(
    directories: &Directories,
    log: &LogSettings,
    config: ExitSettings,
    directory: &DaemonDirectory,
    lock: &DaemonLock,
) -> anyhow::Result<()> {
    let path = config.clients_path(&directories.state);
    // The lock is held until the exit ends. Commands then ask the exit instead of writing to the store.
    let _clients_lock = lock_clients(&path, CLIENTS_LOCK_WAIT)?;
    let state = path.parent().unwrap_or(&directories.state).to_owned();
    refuse_others_directory(&state)?;
    let (store, registry) = StoppedClients::new(&config, path.clone()).open()?;
    let mut files = files_of(&config, store.path(), directory);
    let reset_key = reset_key::read_or_make(&state)?;
    let tuning = config.transport.tuning();
    let sockets = sockets::bind(&config.listen, tuning.workers)?;
    let wireguard = wireguard::carrier(&config, &path, &registry)?;
    // Ports below 1024 are bound by now. From here on, the exit needs no right except network administration.
    sandbox::keep_network_administration()?;
    // Clients that do not fit the pools are refused here, before the host is changed.
    let (clients, fleet) = clients_of(&config, directories, registry, (store, path, &state))?;
    if let Some(socket) = &fleet {
        files = files.writing_in(socket.directory());
    }
    let (device, queues) = create_device(&config, tuning.workers)?;
    let (helper, process) = Helper::start(directories, log, EXIT, lock)?;
    // From here on, the helper runs every nft, including the one that owns the exit's table. Nft carries out any text that it is
    // given, so the daemon must have no access to it.
    helper.install_as_nft_runner();
    let known = (clients.registry(), clients.store_addresses());
    let found = FoundHost::look(&config, known, directory.journal(), &helper).await?;
    let (host, hold) = found.set_up(directory.hold_journal()).await?;
    warn_of_other_firewalls(&config);
    let rings = Rings::make(tuning.workers);
    let start = ExitStart {
        config,
        clients,
        tuning,
        sockets,
        wireguard,
        reset_key,
        device,
        queues,
        control: directory.socket(),
        helper: helper.clone(),
        files,
        rings,
        fleet,
    };
    let ended = daemon::run(start, host).await;
    // An exit that failed must leave as little behind as one that was stopped.
    let left = hold::leave(&helper, hold, *ended.as_ref().unwrap_or(&Ending::Stop)).await;
    drop(helper);
    let ended = left.and(ended.map(drop));
    if let Err(error) = &ended {
        // The status is reported while the helper still runs, because only the helper can pass it on to systemd.
        notify::status(&output::sentence(error));
    }
    process.end().await;
    ended
}

/// The clients, and the socket for `warren-fleet` if the exit belongs to a fleet.
fn clients_of(
    config: &ExitSettings,
    directories: &Directories,
    registry: ClientRegistry,
    (store, path, state): (ClientStore, PathBuf, &Path),
) -> anyhow::Result<(Clients, Option<FleetSocket>)> {
    let mut sessions = sessions_of(config, registry, state)?;
    let Some(settings) = config.fleet.clone() else {
        return Ok((Clients::new(sessions, store, path), None));
    };
    let socket = FleetSocket::bind(&directories.runtime)?;
    let fleet = Fleet::resume(settings, &store, &mut sessions)?;
    let mut clients = Clients::new(sessions, store, path);
    clients.join(fleet);
    Ok((clients, Some(socket)))
}

fn sessions_of(
    config: &ExitSettings,
    registry: ClientRegistry,
    state: &Path,
) -> anyhow::Result<ExitSessions> {
    refuse_misplaced(config, &registry)?;
    let entropy = warren_daemon::entropy::source();
    warn_of_networks_untold(config);
    let fleet = FleetNews { fleet: roster::load(state), loads: Vec::new() };
    let settings = SessionConfig { fleet, ..session_settings(config) };
    Ok(ExitSessions::new(settings, registry, Instant::now(), SystemTime::now(), entropy)?)
}

/// Refuses fixed addresses that are not in [addresses], probably because an operator has changed that section. The error names all
/// of them at once, and the command that gives a client another address.
fn refuse_misplaced(config: &ExitSettings, registry: &ClientRegistry) -> anyhow::Result<()> {
    const SHOWN: usize = 10;
    let is_misplaced =
        |address: &IpAddr| warren_config::client_address(*address, config.ipv4, config.ipv6).is_err();
    let misplaced: Vec<(&str, Vec<IpAddr>)> = registry
        .iter()
        .map(|client| {
            (client.name.as_str(), client.static_lease().addresses().filter(is_misplaced).collect())
        })
        .filter(|(_, addresses): &(_, Vec<_>)| !addresses.is_empty())
        .collect();
    let Some((first, addresses)) = misplaced.first() else { return Ok(()) };
    let shown = misplaced.iter().take(SHOWN).map(|(name, addresses)| {
        let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        format!("{name} ({})", addresses.join(", "))
    });
    let shown: Vec<String> = shown.collect();
    let more = match misplaced.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let options: String = addresses
        .iter()
        .map(|address| if address.is_ipv4() { " --ipv4 auto" } else { " --ipv6 auto" })
        .collect();
    bail!(
        "{}: [addresses] does not contain the fixed addresses of {}: {}{more}; correct [addresses], or give each client another address: warren exit client set {first}{options}",
        config.path.display(),
        counted(misplaced.len(), "client"),
        shown.join(", "),
    )
}

fn create_device(config: &ExitSettings, workers: u8) -> anyhow::Result<(Device, Vec<Queue>)> {
    let settings = DeviceConfig {
        name: DEVICE.to_owned(),
        mtu: INNER_MTU,
        queues: usize::from(workers),
        bulk_lane: true,
        offload: config.transport.tun_offload,
    };
    warren_tun::create(&settings).map_err(advise_on_device)
}

/// Logs each chain of another firewall that keeps clients from the exit or from the internet, and says how to fix it.
fn warn_of_other_firewalls(config: &ExitSettings) {
    let ports = config.ports();
    for firewall in other_firewalls::look(&ports) {
        tracing::warn!("{}; {}", firewall.found(), firewall.fix(&ports));
    }
}

/// The files that a running exit opens.
fn files_of(config: &ExitSettings, clients: &Path, directory: &DaemonDirectory) -> Files {
    let files = Files::new().reading(&config.path).reading(&config.keys.file).writing_in(directory.path());
    let web = match &config.web {
        Some(WebListen::Unix(path)) => Some(path.as_path()),
        Some(WebListen::Loopback(_)) | None => None,
    };
    let written = [Some(clients), web].into_iter().flatten().filter_map(Path::parent);
    written.fold(files, Files::writing_in)
}

/// Adds advice for the case that the device's name is taken. The operator cannot choose another name.
fn advise_on_device(error: TunError) -> anyhow::Error {
    if let TunError::NameTaken { name } = error {
        return anyhow!(
            "a network device named {name} exists already: a host has one exit, so stop the other (`warren status exit`), or run: ip link delete {name}"
        );
    }
    error.into()
}

/// Refuses to run as root in another user's directory. A daemon that runs as root gives up its privileges, so it could not give
/// its new files to that user.
fn refuse_others_directory(directory: &Path) -> anyhow::Result<()> {
    let owner = std::fs::metadata(directory).map(|metadata| metadata.uid());
    if !rustix::process::geteuid().is_root() || owner.as_ref().is_ok_and(|owner| *owner == 0) {
        return Ok(());
    }
    bail!(
        "{} belongs to another user, the service's: run `systemctl start warren-exit`, or, to run it as root, `chown -R root: {}`",
        directory.display(),
        directory.display()
    )
}
