//! Where an exit's clients are stored: behind a running exit's control socket, or on disk while it is stopped.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::bail;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::de::DeserializeOwned;
use serde_json::Value;
use warren_session::PublicKey;
use warren_session::clients::{ClientRegistry, Invitation, RegistryError};
use warren_session::exit::check_clients;

use crate::cli::running_exit;
use crate::runtime::block_on;
use warren_config::{ExitSettings, load_clients, lock_clients};
use warren_control::status::Status;
use warren_control::{
    ClientChange, ClientView, CutOff, ImportSummary, InvitationView, NewClient, Page, PageQuery, RemovedView,
    Request, ask_as,
};
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::output;
use warren_exit::audit::{AuditFile, Change, Entry, Who};
use warren_exit::list;
use warren_exit::stopped::StoppedClients;

/// An exit's clients. Every change is durable when its function returns.
pub(crate) trait ClientStore {
    /// Enrols a client.
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()>;
    /// Enrols all of these clients, or none.
    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()>;
    /// A page of the clients, sorted by name.
    fn clients(&mut self, page: &PageQuery) -> anyhow::Result<Page<ClientView>>;
    /// One client.
    fn show(&mut self, name: &str) -> anyhow::Result<ClientView>;
    /// Adds an invitation.
    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()>;
    /// A page of the unused invitations, sorted by name.
    fn invitations(&mut self, page: &PageQuery) -> anyhow::Result<Page<InvitationView>>;
    /// Whether an unused invitation has this name.
    fn is_invited(&mut self, name: &str) -> anyhow::Result<bool>;
    /// A page of the keys of removed clients, sorted by key.
    fn removed(&mut self, page: &PageQuery) -> anyhow::Result<Page<RemovedView>>;
    /// Removes a client and ends its session, or withdraws the invitation of that name. In a fleet, returns the number of exits
    /// that have cut the client off.
    fn remove(&mut self, name: &str) -> anyhow::Result<Option<CutOff>>;
    /// Changes a client. The client's session continues unless the change affects it. If the client is disabled in a fleet,
    /// returns the number of exits that have cut the client off.
    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<Option<CutOff>>;
    /// Whether the exit serves WireGuard clients under this key. For a stopped exit, whether it will once it runs.
    fn serves_wireguard(&mut self, key: PublicKey) -> anyhow::Result<bool>;
    /// Imports the clients of `clients.toml`, and returns the changes. With `dry_run`, nothing is changed.
    fn import(&mut self, dry_run: bool) -> anyhow::Result<ImportSummary>;
}

/// Reads all pages of a list. If `query` has a limit, reads only that many rows. Returns the rows, and the row after which to
/// continue.
pub(crate) fn all<Row>(
    query: &PageQuery,
    mut page: impl FnMut(&PageQuery) -> anyhow::Result<Page<Row>>,
) -> anyhow::Result<Page<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut after = query.after.clone();
    loop {
        let limit = query.limit.map(|limit| limit.saturating_sub(rows.len()));
        let found = page(&PageQuery { name: query.name.clone(), after, limit })?;
        rows.extend(found.rows);
        let is_full = query.limit.is_some_and(|limit| rows.len() >= limit);
        if is_full || found.next.is_none() {
            return Ok(Page { rows, next: found.next });
        }
        after = found.next;
    }
}

/// Opens the clients of the running exit. If no exit runs, opens those in the registry file.
///
/// # Errors
/// When the exit runs but does not answer, or the exit that runs has another configuration.
pub(crate) fn open(directories: &Directories, config: &ExitSettings) -> anyhow::Result<Box<dyn ClientStore>> {
    if block_on(running_exit::is_running(directories, config))? {
        return Ok(Box::new(RunningExit {
            socket: DaemonDirectory::new(&directories.runtime, EXIT).socket(),
        }));
    }
    Ok(Box::new(StoppedExit::new(config, &directories.state)))
}

struct RunningExit {
    socket: PathBuf,
}

impl RunningExit {
    fn ask<T: DeserializeOwned>(&self, request: &Request) -> anyhow::Result<T> {
        block_on(async { Ok(ask_as(&self.socket, request).await?) })
    }
}

impl ClientStore for RunningExit {
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()> {
        self.ask(&Request::ClientAdd { client: client.clone() }).map(|_: Value| ())
    }

    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()> {
        self.ask(&Request::ClientAddAll { clients: clients.to_vec() }).map(|_: Value| ())
    }

    fn clients(&mut self, page: &PageQuery) -> anyhow::Result<Page<ClientView>> {
        self.ask(&Request::ClientList { page: page.clone() })
    }

    fn show(&mut self, name: &str) -> anyhow::Result<ClientView> {
        self.ask(&Request::ClientShow { name: name.to_owned() })
    }

    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()> {
        self.ask(&Request::ClientInvite { invitation: invitation.clone() }).map(|_: Value| ())
    }

    fn invitations(&mut self, page: &PageQuery) -> anyhow::Result<Page<InvitationView>> {
        self.ask(&Request::InvitationList { page: page.clone() })
    }

    fn is_invited(&mut self, name: &str) -> anyhow::Result<bool> {
        self.ask(&Request::IsInvited { name: name.to_owned() })
    }

    fn removed(&mut self, page: &PageQuery) -> anyhow::Result<Page<RemovedView>> {
        self.ask(&Request::RemovedList { page: page.clone() })
    }

    fn remove(&mut self, name: &str) -> anyhow::Result<Option<CutOff>> {
        Ok(CutOff::of(&self.ask(&Request::ClientRemove { name: name.to_owned() })?))
    }

    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<Option<CutOff>> {
        Ok(CutOff::of(&self.ask(&Request::ClientChange { name: name.to_owned(), change: change.clone() })?))
    }

    fn serves_wireguard(&mut self, key: PublicKey) -> anyhow::Result<bool> {
        let status: Status = self.ask(&Request::Status)?;
        let served = status.exit.and_then(|exit| exit.wireguard);
        Ok(served.is_some_and(|served| served.public_key == key.to_string()))
    }

    fn import(&mut self, dry_run: bool) -> anyhow::Result<ImportSummary> {
        self.ask(&Request::ClientImport { dry_run })
    }
}

/// The clients of an exit that does not run, on disk.
#[derive(Debug)]
pub(crate) struct StoppedExit {
    /// The file that `[clients] file` names.
    path: PathBuf,
    clients: StoppedClients,
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
    /// The audit log, in which changes are recorded.
    audit: AuditFile,
    /// The registry, kept after the first page of a list was read, so that all pages show the same state.
    read: Option<ClientRegistry>,
    /// Whether the exit belongs to a fleet. In that case, the clients are in the fleet's store.
    is_of_fleet: bool,
}

impl StoppedExit {
    /// How long a command waits for another one to finish.
    const PATIENCE: Duration = Duration::from_secs(2);

    pub(crate) fn new(config: &ExitSettings, state_directory: &Path) -> Self {
        let path = config.clients_path(state_directory);
        let clients = StoppedClients::new(config, path.clone());
        let audit = AuditFile::of(path.parent().unwrap_or(state_directory));
        let is_of_fleet = config.fleet.is_some();
        Self { path, clients, ipv4: config.ipv4, ipv6: config.ipv6, audit, read: None, is_of_fleet }
    }

    fn registry(&mut self) -> anyhow::Result<&ClientRegistry> {
        if self.read.is_none() {
            self.read = Some(load_clients(&self.path)?);
        }
        Ok(self.read.get_or_insert_default())
    }

    /// Changes the registry under its lock, and records the change in the audit log. Refuses a change with which the exit could
    /// not start.
    fn edit(
        &mut self,
        audited: Change,
        change: impl FnOnce(&mut ClientRegistry) -> Result<(), RegistryError>,
    ) -> anyhow::Result<()> {
        self.refuse_in_fleet()?;
        let _lock = lock_clients(&self.path, Self::PATIENCE)?;
        let (mut store, before) = self.clients.open()?;
        let check = |registry: &ClientRegistry| check_clients(self.ipv4, self.ipv6, registry);
        let mut registry = before.clone();
        change(&mut registry)?;
        // If the registry is already invalid, the result is not checked, so that the user can repair it.
        if check(&before).is_ok() {
            check(&registry)?;
        }
        self.read = None;
        store.save_difference(&before, &registry)?;
        self.clients.forget_flows(&before, &registry);
        self.note(audited);
        Ok(())
    }

    /// Refuses the change if the exit belongs to a fleet, because the registry is then only a copy, which the exit replaces when
    /// it starts.
    fn refuse_in_fleet(&self) -> anyhow::Result<()> {
        if self.is_of_fleet {
            bail!(
                "this exit belongs to a fleet and is not running, so the fleet's store cannot be changed; start it (`systemctl start warren-exit`), or run this at another exit of the fleet"
            );
        }
        Ok(())
    }

    /// Records a change in the audit log. The caller holds the clients' lock, so no other process writes to the log at the same
    /// time.
    fn note(&self, change: Change) {
        if let Err(error) = self.audit.add(&Entry::now(Who::this_command(), change)) {
            output::warn(format!("the change is made, but the audit log cannot be written: {error}"));
        }
    }
}

impl ClientStore for StoppedExit {
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()> {
        self.edit(Change::enrolled(client), |registry| {
            client.allowed_key().map(|key| registry.allow(key));
            registry.add(client.to_client(SystemTime::now()))
        })
    }

    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()> {
        let now = SystemTime::now();
        self.edit(Change::enrolled_many(clients.len()), |registry| {
            clients.iter().try_for_each(|client| registry.add(client.to_client(now)))
        })
    }

    fn clients(&mut self, page: &PageQuery) -> anyhow::Result<Page<ClientView>> {
        Ok(list::clients(self.registry()?, page, |client| ClientView::of(client, None)))
    }

    fn show(&mut self, name: &str) -> anyhow::Result<ClientView> {
        let found = self.registry()?.by_name(name).map(|client| ClientView::of(client, None));
        Ok(found.ok_or_else(|| RegistryError::NoSuchClient { name: name.to_owned() })?)
    }

    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()> {
        self.edit(Change::invited(&InvitationView::of(invitation)), |registry| {
            registry.invite(invitation.clone(), SystemTime::now())
        })
    }

    fn invitations(&mut self, page: &PageQuery) -> anyhow::Result<Page<InvitationView>> {
        Ok(list::invitations(self.registry()?, page))
    }

    fn is_invited(&mut self, name: &str) -> anyhow::Result<bool> {
        Ok(list::is_invited(self.registry()?, name))
    }

    fn removed(&mut self, page: &PageQuery) -> anyhow::Result<Page<RemovedView>> {
        Ok(list::removed(self.registry()?, page))
    }

    fn remove(&mut self, name: &str) -> anyhow::Result<Option<CutOff>> {
        self.edit(Change::removed(name), |registry| registry.remove(name, SystemTime::now()).map(drop))?;
        Ok(None)
    }

    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<Option<CutOff>> {
        if let ClientChange::AddForward { forward } = change {
            let registry = load_clients(&self.path)?;
            block_on(self.clients.refuse_taken(*forward, &registry))?;
        }
        self.edit(Change::of_client(name, change), |registry| registry.change(name, change))?;
        Ok(None)
    }

    fn serves_wireguard(&mut self, _: PublicKey) -> anyhow::Result<bool> {
        // A stopped exit will use its key once it starts.
        Ok(true)
    }

    fn import(&mut self, dry_run: bool) -> anyhow::Result<ImportSummary> {
        self.refuse_in_fleet()?;
        let _lock = lock_clients(&self.path, Self::PATIENCE)?;
        self.read = None;
        let summary = self.clients.import(dry_run)?;
        if !dry_run {
            self.note(Change::imported(&summary));
        }
        Ok(summary)
    }
}
