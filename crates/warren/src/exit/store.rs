//! The client registry behind a running exit's control socket.

use std::path::PathBuf;

use anyhow::Context as _;
use warren_session::clients::Invitation;

use crate::cli::args::GlobalArgs;
use crate::cli::exit_client::{
    ClientChange, ClientStore, ClientView, InvitationView, NewClient, RemovedView, StoppedExit,
};
use crate::cli::own_exit;
use crate::config::ExitConfig;
use crate::control::{Request, ask};
use crate::daemon_dir::{DaemonDir, EXIT};

/// The clients of the exit that runs, or those in the registry file when none does.
///
/// # Errors
/// When an exit runs but does not answer, or it is another one.
pub(crate) fn client_store(global: &GlobalArgs, config: &ExitConfig) -> anyhow::Result<Box<dyn ClientStore>> {
    if block_on(own_exit::runs(global, config))? {
        return Ok(Box::new(RunningExit { socket: DaemonDir::new(&global.runtime_dir, EXIT).socket() }));
    }
    Ok(Box::new(StoppedExit::new(config, &global.state_dir)))
}

struct RunningExit {
    socket: PathBuf,
}

impl RunningExit {
    fn ask(&self, request: &Request) -> anyhow::Result<serde_json::Value> {
        block_on(async { Ok(ask(&self.socket, request).await?) })
    }
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(future)
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
