//! `warren exit run`: makes everything that the exit daemon runs on, in an order in which a failure leaves nothing behind.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{anyhow, bail};
use warren_session::clients::ClientRegistry;
use warren_session::exit::{ExitSessions, SessionConfig};
use warren_tun::{Device, DeviceConfig, Queue, TunError};

use super::daemon::{self, Ending, ExitStart};
use super::service_ports::ServicePorts;
use super::upkeep::Upkeep;
use super::{files, other_firewalls, sockets};
use warren_config::{ExitSettings, NatInterface, RegistryFile, WebListen, load_exit, lock_clients};
use warren_daemon::daemon_directory::{DaemonDirectory, DaemonLock, EXIT};
use warren_daemon::device_watch;
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
/// The reason, with the host as it was before.
pub async fn exit_run(directories: &Directories, log: &LogSettings) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    let directory = DaemonDirectory::new(&directories.runtime, EXIT);
    directory.create()?;
    // The lock comes before the sockets: a second daemon must never join their port.
    let Some(lock) = directory.lock_after_kill().await? else {
        let sentence = "an exit runs already; see `warren status exit`, or stop it first";
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
    let clients = config.clients_path(&directories.state);
    let _clients_lock = lock_clients(&clients, CLIENTS_LOCK_WAIT)?;
    refuse_others_directory(clients.parent().unwrap_or(&directories.state))?;
    let (clients, registry) = RegistryFile::open(clients)?;
    let reset_key = files::reset_key(clients.path().parent().unwrap_or(&directories.state))?;
    let tuning = config.transport.tuning();
    let sockets = sockets::bind(&config.listen, tuning.workers)?;
    // Ports below 1024 are bound by now, and nothing after this needs more rights.
    sandbox::keep_network_administration()?;
    // Clients that do not fit the pools are refused here, before the host is changed.
    let clients = Clients::new(sessions_of(&config, registry)?, file);
    let (device, queues) = create_device(&config, tuning.workers)?;
    let (helper, process) = Helper::start(directories, log, EXIT, lock)?;
    // The nft that owns the exit's table too: it takes whatever text it is given.
    helper.install_as_nft_runner();
    let mut hold = Hold::open(&directory.hold_journal()).await?;
    let held = hold.put(&facts).await.context("cannot make the table that keeps flows alive")?;
    let plan = exit_plan::exit(&facts);
    let upkeep = match host.apply(&plan).await {
        Ok(applied) => Upkeep::new(plan, applied, Instant::now()),
        Err(error) => {
            hold.remove().await?;
            return Err(error.into());
        }
    };
    for firewall in other_firewalls::look(&facts.listen_ports) {
        tracing::warn!("{}; {}", firewall.found(), firewall.fix(&facts.listen_ports));
    }
    let files = files_of(&config, clients.path(), directory);
    let gateways = gateways(config.ipv4, config.ipv6);
    let ended = daemon::run(ExitStart {
        config,
        clients,
        tuning,
        sockets,
        reset_key,
        device,
        queues,
        control: directory.socket(),
        helper: helper.clone(),
        files,
    };
    let ended = daemon::run(start, host).await;
    // An exit that failed leaves as little behind as one that was stopped.
    let left = hold::leave(&helper, hold, *ended.as_ref().unwrap_or(&Ending::Stop)).await;
    drop(helper);
    let ended = left.and(ended.map(drop));
    if let Err(error) = &ended {
        // While the helper still runs: only it can pass this on to systemd.
        notify::status(&output::sentence(error));
    }
    process.end().await;
    ended
}

/// The files of a running exit.
fn files_of(config: &ExitSettings, clients: &Path, directory: &DaemonDirectory) -> Files {
    let files = Files::new().reading(&config.path).reading(&config.keys.file).writing_in(directory.path());
    let web = match &config.web {
        Some(WebListen::Unix(path)) => Some(path.as_path()),
        Some(WebListen::Loopback(_)) | None => None,
    };
    let written = [Some(clients), web].into_iter().flatten().filter_map(Path::parent);
    written.fold(files, Files::writing_in)
}

fn session_config(config: &ExitSettings) -> SessionConfig {
    SessionConfig {
        ipv4: config.ipv4,
        ipv6: config.ipv6,
        mtu: INNER_MTU,
        dns: config.dns.clone(),
        routes: Vec::new(),
        max_connections: config.transport.connections,
        keep_alive: warren_quic::settings::KEEP_ALIVE,
        features: 0,
    }
}

/// What the plan of this exit depends on, as the host is now.
pub(super) async fn host_facts(
    config: &ExitSettings,
    registry: &ClientRegistry,
    host: &Host,
    services: &ServicePorts,
) -> anyhow::Result<ExitHost> {
    let interface = match &config.nat.interface {
        NatInterface::Auto => Egress::Auto,
        NatInterface::Name(name) => Egress::Device(DeviceName::new(name.clone())?),
    };
    let device = DeviceName::new(DEVICE)?;
    Ok(ExitHost {
        surroundings: host.surroundings(&device).await?,
        device,
        mtu: INNER_MTU,
        ipv4: config.ipv4,
        ipv6: config.ipv6,
        nat_ipv4: config.nat.ipv4,
        nat_ipv6: config.nat.ipv6,
        interface,
        listen_ports: config.listen.iter().map(std::net::SocketAddr::port).collect(),
        service_ports: services.kept(),
        allow: config.allow.clone(),
        prefixes: super::prefixes::of(registry),
        isolation: config.isolation,
        resolvers: config.dns.clone(),
        router_advertisements: facts::devices_taking_router_advertisements()?,
    })
}

/// Refuses an interface that the host has not; one that goes later may come back.
pub(super) fn refuse_missing_interface(config: &ExitSettings) -> anyhow::Result<()> {
    if let NatInterface::Name(name) = &config.nat.interface
        && !device_watch::exists(name)?
    {
        let file = config.path.display();
        bail!(
            "{file}: interface in [nat] is {name:?}, but this host has no such device; write \"auto\", or one that `ip link` shows"
        );
    }
    Ok(())
}

/// A name that is taken is not the operator's to choose.
fn of_device(error: TunError) -> anyhow::Error {
    if let TunError::NameTaken { name } = error {
        return anyhow!(
            "a network device named {name} exists already: a host has one exit, so stop the other (`warren status exit`), or run: ip link delete {name}"
        );
    }
    error.into()
}

/// Refuses another user's directory to root: once root has given up its rights, it cannot give the files that it writes to that user.
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
