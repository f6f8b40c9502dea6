//! The helper's side: carries out the daemon's requests.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use warren_config::storage::{make_directory, remove_abandoned, write_atomic};
use warren_host::dns::{self, Dns, DnsError, DnsPlan, SplitDns};
use warren_host::exec_groups::ExecGroup;
use warren_host::{DeviceName, NftCall, NftService, OwnTables, published};

use super::look_up;
use super::protocol::{Answer, HelperError, HelperRequest, NumberedAnswer, NumberedRequest, read, write};
use super::relay::{self, Relay};
use super::take_in::{make_groups, take_in};
use crate::daemon_directory::EXIT;
use crate::directories::{Directories, followed_fleet, learnt_exit_keys};
use crate::notify::SOCKET;
use crate::own_program;
use crate::resolvers;
use crate::sandbox;

/// Serves the requests of the daemon `name` on standard input until the daemon ends.
///
/// # Errors
/// When standard input is not a daemon's socket, or a message cannot be parsed.
pub async fn serve(directories: &Directories, name: &str) -> anyhow::Result<()> {
    sandbox::hide()?;
    let by_daemons = "only daemons start the helper";
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stream = StdUnixStream::from(input);
    // The daemon sent the descriptor before it started this process, so it has arrived.
    let channel = relay::receive_descriptor(stream.as_fd()).context(by_daemons)?.context(by_daemons)?;
    let relay = Relay::open(channel)?;
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream).context(by_daemons)?;
    let (mut reader, writer) = stream.into_split();
    let duties = Arc::new(Duties {
        directories: directories.clone(),
        name: name.to_owned(),
        nft: NftService::of(match name {
            EXIT => OwnTables::of_exit(),
            profile => OwnTables::of_profile(profile),
        }),
        dns: Mutex::new(None),
    });
    // A client needs nft as soon as an exit has answered, so nft is started early. An exit has its own nft, which
    // owns the exit's table.
    if name != EXIT {
        tokio::spawn({
            let duties = duties.clone();
            async move { drop(duties.carry_out(HelperRequest::Nft(NftCall::GetReady)).await) }
        });
    }
    let (answers, answered) = mpsc::channel(MOST_AT_ONCE);
    let writing = tokio::spawn(write_answers(writer, answered));
    let mut tasks = Tasks::default();
    let ended = loop {
        let NumberedRequest { number, request } = match read(&mut reader).await {
            Ok(Some(asked)) => asked,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        let tasks = tasks.with_room_for(&request).await;
        let (duties, answers) = (duties.clone(), answers.clone());
        tasks.spawn(async move {
            let answer = duties.carry_out(request).await;
            // The daemon may have ended.
            drop(answers.send(NumberedAnswer { number, answer }).await);
        });
    };
    tasks.end().await;
    writing.abort();
    relay.close();
    Ok(ended?)
}

/// Writes answers until the daemon has ended.
async fn write_answers(mut writer: OwnedWriteHalf, mut answered: mpsc::Receiver<NumberedAnswer>) {
    while let Some(answer) = answered.recv().await {
        let number = answer.number;
        let mut written = write(&mut writer, &answer).await;
        if let Some(error) = written.as_ref().err().filter(|error| error.kind() == ErrorKind::InvalidData) {
            // The answer is too long, and no part of it was written.
            let answer = Err(HelperError::Other(error.to_string()));
            written = write(&mut writer, &NumberedAnswer { number, answer }).await;
        }
        if written.is_err() {
            return;
        }
    }
}

/// The requests in progress. Requests that wait for something else do not delay the others.
#[derive(Default)]
struct Tasks {
    running: JoinSet<()>,
    looking_up: JoinSet<()>,
    awaiting_ends: JoinSet<()>,
}

impl Tasks {
    /// Waits until fewer than [`MOST_AT_ONCE`] requests of this kind are in progress. Returns the tasks of
    /// that kind.
    async fn with_room_for(&mut self, request: &HelperRequest) -> &mut JoinSet<()> {
        let tasks = match request {
            HelperRequest::LookUp { .. } => &mut self.looking_up,
            HelperRequest::Nft(NftCall::AwaitOwner { .. } | NftCall::EndOwner { .. }) => {
                &mut self.awaiting_ends
            }
            HelperRequest::Nft(_)
            | HelperRequest::SetResolvers { .. }
            | HelperRequest::RestoreResolvers
            | HelperRequest::ListResolvers
            | HelperRequest::ListResolversBelow
            | HelperRequest::ListPublished
            | HelperRequest::MakeExecGroups
            | HelperRequest::TakeIn { .. }
            | HelperRequest::KeepExitKeys { .. }
            | HelperRequest::KeepFleet { .. }
            | HelperRequest::MakePortalGroup
            | HelperRequest::TakeIntoPortal { .. }
            | HelperRequest::EndPortalGroup
            | HelperRequest::ReleaseHold => &mut self.running,
        };
        while tasks.len() >= MOST_AT_ONCE {
            drop(tasks.join_next().await);
        }
        // The set keeps finished tasks until they are taken out.
        while tasks.try_join_next().is_some() {}
        tasks
    }

    /// Cancels the look-ups and the waits for an owner's end, because their results are no longer needed. Lets everything else
    /// finish, because a half-done change could not be undone.
    async fn end(mut self) {
        self.looking_up.shutdown().await;
        self.awaiting_ends.shutdown().await;
        while self.running.join_next().await.is_some() {}
    }
}

/// The helper's own data. After the start, nothing in it comes from the daemon.
struct Duties {
    directories: Directories,
    /// The daemon's name: a profile's, or the exit's.
    name: String,
    nft: NftService,
    dns: Mutex<Option<Dns>>,
}

impl Duties {
    async fn carry_out(&self, request: HelperRequest) -> Result<Answer, HelperError> {
        let other = |error: &dyn std::fmt::Display| HelperError::Other(error.to_string());
        match request {
            HelperRequest::Nft(call) => {
                // Standard output is the daemon's lock, which nft holds while it loads a ruleset.
                let lock = std::io::stdout().as_fd().try_clone_to_owned().map_err(|error| other(&error))?;
                Ok(Answer::Text(self.nft.run(call, Some(lock.into())).await?))
            }
            HelperRequest::SetResolvers { device, servers, split, anew } => {
                self.set_resolvers(&device, servers, split, anew).await.map_err(|error| other(&error))
            }
            HelperRequest::RestoreResolvers => {
                self.restore_resolvers().await.map(|()| Answer::Done).map_err(|error| other(&error))
            }
            HelperRequest::ListResolvers => Ok(Answer::Addresses(self.list_resolvers().await)),
            HelperRequest::ListResolversBelow => {
                Ok(Answer::Servers(self.dns.lock().await.as_ref().map(Dns::below).unwrap_or_default()))
            }
            HelperRequest::ListPublished => Ok(Answer::Published(published::look().await)),
            HelperRequest::LookUp { host } => {
                look_up::ask(&host).await.map(Answer::Addresses).map_err(|error| other(&error))
            }
            HelperRequest::MakeExecGroups => {
                make_groups(&self.name).map(|()| Answer::Done).map_err(|error| other(&error))
            }
            HelperRequest::TakeIn { process, user, side } => ExecGroup::of(&self.name, side)
                .and_then(|group| take_in(&group, process, user))
                .map(|()| Answer::Done)
                .map_err(|error| other(&error)),
            HelperRequest::MakePortalGroup => ExecGroup::of_portal(&self.name)
                .and_then(|group| group.make())
                .map(|()| Answer::Done)
                .map_err(|error| other(&error)),
            HelperRequest::TakeIntoPortal { process, user } => ExecGroup::of_portal(&self.name)
                .and_then(|group| take_in(&group, process, user))
                .map(|()| Answer::Done)
                .map_err(|error| other(&error)),
            HelperRequest::EndPortalGroup => {
                let group = ExecGroup::of_portal(&self.name).map_err(|error| other(&error))?;
                // Waits for processes that take a moment to end.
                tokio::task::spawn_blocking(move || group.end()).await.map_err(|error| other(&error))?;
                Ok(Answer::Done)
            }
            HelperRequest::KeepExitKeys { exits } => {
                let file = learnt_exit_keys(&self.directories.state, &self.name);
                keep(&file, &exits).map(|()| Answer::Done).map_err(|error| other(&error))
            }
            HelperRequest::KeepFleet { fleet } => {
                let file = followed_fleet(&self.directories.state, &self.name);
                keep(&file, &*fleet).map(|()| Answer::Done).map_err(|error| other(&error))
            }
            HelperRequest::ReleaseHold => {
                release_hold(&self.directories).map(|()| Answer::Done).map_err(|error| other(&error))
            }
        }
    }

    /// Lists the host's resolvers without those of the tunnel, which are set now and must not be asked outside the tunnel.
    async fn list_resolvers(&self) -> Vec<IpAddr> {
        let held = self.dns.lock().await;
        let own = held.as_ref().map(|dns| dns.plan().servers()).unwrap_or_default();
        let mut listed = resolvers::listed();
        // While a stub resolver is set, the host's files name it instead of these.
        let below = held.as_ref().map(Dns::below).unwrap_or_default();
        listed.extend(below.iter().map(|server| server.ip()).filter(|server| !server.is_loopback()));
        listed.retain(|server| !own.contains(server));
        listed.dedup();
        listed
    }

    async fn restore_resolvers(&self) -> Result<(), DnsError> {
        match self.dns.lock().await.take() {
            Some(dns) => dns.undo().await,
            // An earlier change or restoring may have failed half-way. The record on disk then still lists what is changed.
            None => dns::recover(&self.directories.state, &self.name).await.map(drop),
        }
    }

    async fn set_resolvers(
        &self,
        device: &DeviceName,
        servers: Vec<IpAddr>,
        split: Option<SplitDns>,
        anew: bool,
    ) -> Result<Answer, DnsError> {
        let plan = DnsPlan::of_host(&self.directories.state, &self.name, device, servers, split).await;
        let mut held = self.dns.lock().await;
        let dns = match held.take() {
            Some(dns) if anew => dns.renew(plan).await?,
            Some(dns) => dns.change(plan).await?,
            None => Dns::apply(plan).await?,
        };
        Ok(Answer::Text(held.insert(dns).plan().changes().join("\n")))
    }
}

/// Writes a file so that it is complete at every moment, even after a loss of power.
fn keep(file: &Path, content: &impl Serialize) -> std::io::Result<()> {
    if let Some(directory) = file.parent() {
        make_directory(directory)?;
        remove_abandoned(directory);
    }
    write_atomic(file, serde_json::to_string_pretty(content)?.as_bytes(), 0o600)
}

/// Starts `warren exit release`.
fn release_hold(directories: &Directories) -> std::io::Result<()> {
    own_program::command()
        .arg("--runtime-dir")
        .arg(&directories.runtime)
        .args(["exit", "release"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A Ctrl-C that stops the exit must not end this process too early.
        .process_group(0)
        .env_remove(SOCKET)
        .spawn()
        .map(drop)
}

/// Requests of one kind that are served at once.
const MOST_AT_ONCE: usize = 16;
