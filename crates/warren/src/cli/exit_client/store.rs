//! Where an exit's clients are stored: behind a running exit's control socket, or in the registry file of a stopped
//! exit.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ipnet::{Ipv4Net, Ipv6Net};
use warren_session::clients::{ClientRegistry, Invitation, RegistryError};
use warren_session::exit::check_clients;

use crate::cli::running_exit;
use crate::runtime::block_on;
use warren_config::{ExitSettings, load_clients, lock_clients, save_clients};
use warren_control::{ClientChange, ClientView, InvitationView, NewClient, RemovedView, Request, ask};
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;

/// An exit's clients. Every change is durable when its function returns.
pub(crate) trait ClientStore {
    /// Enrols a client.
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()>;
    /// Enrols all of these clients, or none.
    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()>;
    /// Every client, by name.
    fn list(&mut self) -> anyhow::Result<Vec<ClientView>>;
    /// Adds an invitation.
    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()>;
    /// The unused invitations, by name.
    fn invitations(&mut self) -> anyhow::Result<Vec<InvitationView>>;
    /// The keys of removed clients, by name.
    fn removed(&mut self) -> anyhow::Result<Vec<RemovedView>>;
    /// Removes a client and ends its session, or withdraws the invitation of that name.
    fn remove(&mut self, name: &str) -> anyhow::Result<()>;
    /// Changes a client. Its session continues unless the change concerns it.
    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<()>;
}

/// The clients of the running exit. If none runs, those in the registry file.
///
/// # Errors
/// When an exit runs but does not answer, or another exit runs.
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
    fn ask(&self, request: &Request) -> anyhow::Result<serde_json::Value> {
        block_on(async { Ok(ask(&self.socket, request).await?) })
    }
}

impl ClientStore for RunningExit {
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()> {
        self.ask(&Request::ClientAdd { client: client.clone() }).map(drop)
    }

    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()> {
        self.ask(&Request::ClientAddAll { clients: clients.to_vec() }).map(drop)
    }

    fn list(&mut self) -> anyhow::Result<Vec<ClientView>> {
        Ok(serde_json::from_value(self.ask(&Request::ClientList)?)?)
    }

    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()> {
        self.ask(&Request::ClientInvite { invitation: invitation.clone() }).map(drop)
    }

    fn invitations(&mut self) -> anyhow::Result<Vec<InvitationView>> {
        Ok(serde_json::from_value(self.ask(&Request::InvitationList)?)?)
    }

    fn removed(&mut self) -> anyhow::Result<Vec<RemovedView>> {
        Ok(serde_json::from_value(self.ask(&Request::RemovedList)?)?)
    }

    fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        self.ask(&Request::ClientRemove { name: name.to_owned() }).map(drop)
    }

    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<()> {
        self.ask(&Request::ClientChange { name: name.to_owned(), change: change.clone() }).map(drop)
    }
}

/// The registry file of an exit that does not run.
#[derive(Debug)]
pub(crate) struct StoppedExit {
    path: PathBuf,
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
}

impl StoppedExit {
    /// How long a command waits for another one to finish.
    const PATIENCE: Duration = Duration::from_secs(2);

    pub(crate) fn new(config: &ExitSettings, state_directory: &Path) -> Self {
        Self { path: config.clients_path(state_directory), ipv4: config.ipv4, ipv6: config.ipv6 }
    }

    /// Reads, changes and writes the registry under its lock. Refuses a change that would keep the exit from starting.
    fn edit(
        &self,
        change: impl FnOnce(&mut ClientRegistry) -> Result<(), RegistryError>,
    ) -> anyhow::Result<()> {
        let _lock = lock_clients(&self.path, Self::PATIENCE)?;
        let mut registry = load_clients(&self.path)?;
        let check = |registry: &ClientRegistry| check_clients(self.ipv4, self.ipv6, registry);
        // A registry that is already invalid must stay editable, or nobody could repair it.
        let could_start = check(&registry).is_ok();
        change(&mut registry)?;
        if could_start {
            check(&registry)?;
        }
        Ok(save_clients(&self.path, &registry)?)
    }
}

impl ClientStore for StoppedExit {
    fn add(&mut self, client: &NewClient) -> anyhow::Result<()> {
        self.edit(|registry| {
            client.allowed_key().map(|key| registry.allow(key));
            registry.add(client.to_client(SystemTime::now()))
        })
    }

    fn add_all(&mut self, clients: &[NewClient]) -> anyhow::Result<()> {
        let now = SystemTime::now();
        self.edit(|registry| clients.iter().try_for_each(|client| registry.add(client.to_client(now))))
    }

    fn list(&mut self) -> anyhow::Result<Vec<ClientView>> {
        let registry = load_clients(&self.path)?;
        Ok(registry.iter().map(|client| ClientView::of(client, None)).collect())
    }

    fn invite(&mut self, invitation: &Invitation) -> anyhow::Result<()> {
        self.edit(|registry| registry.invite(invitation.clone(), SystemTime::now()))
    }

    fn invitations(&mut self) -> anyhow::Result<Vec<InvitationView>> {
        let registry = load_clients(&self.path)?;
        Ok(registry.open_invitations(SystemTime::now()).into_iter().map(InvitationView::of).collect())
    }

    fn removed(&mut self) -> anyhow::Result<Vec<RemovedView>> {
        let registry = load_clients(&self.path)?;
        Ok(registry.removed_keys().into_iter().map(RemovedView::of).collect())
    }

    fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        self.edit(|registry| registry.remove(name, SystemTime::now()).map(drop))
    }

    fn change(&mut self, name: &str, change: &ClientChange) -> anyhow::Result<()> {
        self.edit(|registry| registry.change(name, change))
    }
}
