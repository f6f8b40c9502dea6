//! The daemon's side of the helper: starts the helper and sends it requests.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;
use std::{io, os::unix::net::UnixStream as StdUnixStream};

use anyhow::Context as _;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use warren_host::dns::SplitDns;
use warren_host::exec_groups::Side;
use warren_host::published::Published;
use warren_host::{DeviceName, NftCall, NftError, NftRunner};
use warren_session::client::{ExitKeys, KeptFleet};

use super::protocol::{Answer, HelperError, HelperRequest, NumberedAnswer, NumberedRequest, read, write};
use super::relay;
use crate::daemon_directory::DaemonLock;
use crate::directories::Directories;
use crate::logging::{self, LogSettings};
use crate::notify;
use crate::own_program;

/// A daemon's connection to its helper, which does what the daemon may not do itself.
#[derive(Clone, Debug)]
pub struct Helper {
    orders: mpsc::Sender<Order>,
}

/// The helper's process. The code that started it must end it.
#[derive(Debug)]
pub struct HelperProcess {
    child: Child,
    orders: mpsc::Sender<Order>,
}

type Reply = Result<Answer, HelperError>;

#[derive(Debug)]
enum Order {
    Ask { request: HelperRequest, reply: oneshot::Sender<Reply> },
    End,
}

impl Helper {
    /// Starts the helper of the daemon `name`, which holds `lock`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(
        directories: &Directories,
        log: &LogSettings,
        name: &str,
        lock: &DaemonLock,
    ) -> anyhow::Result<(Self, HelperProcess)> {
        let cannot = "cannot start this daemon's helper process; check the limits on processes";
        let (ours, theirs) = StdUnixStream::pair().context(cannot)?;
        let theirs = OwnedFd::from(theirs);
        let channel = share_channel(&ours).context(cannot)?;
        ours.set_nonblocking(true).context(cannot)?;
        let ours = UnixStream::from_std(ours).context(cannot)?;
        let mut command = own_program::command_like_this(directories, log);
        command.args(["helper", "--", name]);
        // systemd expects signs of life only from the daemon.
        command.env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
        // The helper holds the daemon's lock too. So cleaning up after a killed daemon waits until the helper has
        // ended.
        command.stdin(theirs).stdout(lock.share().context(cannot)?).stderr(Stdio::inherit());
        // A Ctrl-C in the terminal must reach only the daemon, which still needs its helper while it stops.
        let child = command.process_group(0).spawn().context(cannot)?;
        let (orders, ordered) = mpsc::channel(16);
        tokio::spawn(carry(ours, ordered));
        notify::send_through(channel.try_clone().context(cannot)?);
        tokio::spawn(take_logs(channel));
        let helper = Self { orders: orders.clone() };
        Ok((helper, HelperProcess { child, orders }))
    }

    /// Makes this process run nft through the helper.
    pub fn install_as_nft_runner(&self) {
        warren_host::set_nft_runner(Box::new(self.clone()));
    }

    /// Sets the host's resolvers, limited to the domains of `split`, and keeps them set until [`Self::restore_resolvers`]. Returns a short description of
    /// each change.
    ///
    /// # Errors
    /// When they cannot be set.
    pub async fn set_resolvers(
        &self,
        device: DeviceName,
        servers: Vec<IpAddr>,
        split: Option<SplitDns>,
        anew: bool,
    ) -> anyhow::Result<Vec<String>> {
        match self.ask(HelperRequest::SetResolvers { device, servers, split, anew }).await {
            Ok(Answer::Text(changes)) => Ok(changes.lines().map(str::to_owned).collect()),
            other => Err(failure(other)),
        }
    }

    /// Puts the host's resolvers back.
    ///
    /// # Errors
    /// When something could not be put back.
    pub async fn restore_resolvers(&self) -> anyhow::Result<()> {
        match self.ask(HelperRequest::RestoreResolvers).await {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        }
    }

    /// Lists the resolvers that this host's files name now. Resolvers on this host are left out. The list is empty if the files
    /// cannot be read.
    pub async fn list_resolvers(&self) -> Vec<IpAddr> {
        self.try_list_resolvers().await.unwrap_or_default()
    }

    /// Like [`Self::list_resolvers`], for a caller that must distinguish a missing answer from an empty list.
    ///
    /// # Errors
    /// When the helper does not answer.
    pub async fn try_list_resolvers(&self) -> anyhow::Result<Vec<IpAddr>> {
        match self.ask(HelperRequest::ListResolvers).await {
            Ok(Answer::Addresses(servers)) => Ok(servers),
            other => Err(failure(other)),
        }
    }

    /// Lists the resolvers that programs would ask if Warren had set none. The list is empty if that cannot be found out.
    pub async fn list_resolvers_below(&self) -> Vec<SocketAddr> {
        match self.ask(HelperRequest::ListResolversBelow).await {
            Ok(Answer::Servers(servers)) => servers,
            _ => Vec::new(),
        }
    }

    /// Saves what was learnt about the exits' keys, so that it survives this process and a loss of power.
    ///
    /// # Errors
    /// When it could not be written.
    pub async fn keep_exit_keys(&self, exits: BTreeMap<String, ExitKeys>) -> anyhow::Result<()> {
        match self.ask(HelperRequest::KeepExitKeys { exits }).await {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        }
    }

    /// Saves the state of the profile's fleet, so that it survives this process and a loss of power.
    ///
    /// # Errors
    /// When it could not be written.
    pub async fn keep_fleet(&self, fleet: KeptFleet) -> anyhow::Result<()> {
        match self.ask(HelperRequest::KeepFleet { fleet: Box::new(fleet) }).await {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        }
    }

    /// The ports that the host's NAT publishes now.
    ///
    /// # Errors
    /// When the helper has ended.
    pub async fn list_published(&self) -> anyhow::Result<Published> {
        match self.ask(HelperRequest::ListPublished).await {
            Ok(Answer::Published(published)) => Ok(published),
            other => Err(failure(other)),
        }
    }

    /// A name's addresses according to the system's resolver.
    ///
    /// # Errors
    /// The resolver's reason.
    pub async fn look_up(&self, host: &str) -> anyhow::Result<Vec<IpAddr>> {
        match self.ask(HelperRequest::LookUp { host: host.to_owned() }).await {
            Ok(Answer::Addresses(found)) => Ok(found),
            other => Err(failure(other)),
        }
    }

    /// Makes the cgroups of both sides of this daemon's tunnel.
    ///
    /// # Errors
    /// If this host has no cgroup v2, or the kernel refuses.
    pub async fn make_exec_groups(&self) -> anyhow::Result<()> {
        match self.ask(HelperRequest::MakeExecGroups).await {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        }
    }

    /// Makes the cgroup of a browser that opens a login page.
    ///
    /// # Errors
    /// If this host has no cgroup v2, or the kernel refuses.
    pub async fn make_portal_group(&self) -> anyhow::Result<()> {
        self.ask_to(HelperRequest::MakePortalGroup).await
    }

    /// Moves a process of `user` into the cgroup of the browser.
    ///
    /// # Errors
    /// If it is not that user's process, or the kernel refuses.
    pub async fn take_into_portal(&self, process: u32, user: u32) -> anyhow::Result<()> {
        self.ask_to(HelperRequest::TakeIntoPortal { process, user }).await
    }

    /// Ends the processes of the browser's cgroup, and removes the cgroup.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn end_portal_group(&self) -> anyhow::Result<()> {
        self.ask_to(HelperRequest::EndPortalGroup).await
    }

    async fn ask_to(&self, request: HelperRequest) -> anyhow::Result<()> {
        match self.ask(request).await {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        }
    }

    /// Moves a process of `user` into the cgroup of a side of this daemon's tunnel.
    ///
    /// # Errors
    /// If it is not that user's process, or the kernel refuses.
    pub async fn take_in(&self, process: u32, user: u32, side: Side) -> anyhow::Result<()> {
        match self.ask(HelperRequest::TakeIn { process, user, side }).await {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        }
    }

    /// Starts a process that soon removes what an exit left for its successor.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn release_hold(&self) -> anyhow::Result<()> {
        match self.ask(HelperRequest::ReleaseHold).await {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        }
    }

    /// Waits until the helper has ended. It ends before this process only if somebody ends it.
    pub async fn ended(&self) {
        self.orders.closed().await;
    }

    async fn ask(&self, request: HelperRequest) -> Reply {
        let (reply, answer) = oneshot::channel();
        let gone =
            || HelperError::Other("the daemon's helper process has ended; run `warren up` again".into());
        self.orders.send(Order::Ask { request, reply }).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl HelperProcess {
    /// Makes the helper end, and waits a moment for its end. Later requests fail, as for a helper that has ended. Returns whether
    /// it has ended.
    pub async fn end(mut self) -> bool {
        // The helper may have ended already.
        drop(self.orders.send(Order::End).await);
        // A helper that is still busy with a request ends after it.
        timeout(PATIENCE, self.child.wait()).await.is_ok()
    }
}

impl NftRunner for Helper {
    fn run(&self, call: NftCall) -> Pin<Box<dyn Future<Output = Result<String, NftError>> + Send + '_>> {
        Box::pin(async move {
            match self.ask(HelperRequest::Nft(call)).await {
                Ok(Answer::Text(printed)) => Ok(printed),
                Ok(_) => Err(NftError::Gone),
                Err(failed) => Err(failed.into()),
            }
        })
    }
}

/// Carries requests and answers until either side ends.
async fn carry(stream: UnixStream, mut ordered: mpsc::Receiver<Order>) {
    let (mut reader, mut writer) = stream.into_split();
    let mut waiting: HashMap<u64, oneshot::Sender<Reply>> = HashMap::new();
    let (answers, mut answered) = mpsc::channel(16);
    // Reading runs in a separate task, because `select!` would lose a message if it cancelled a read halfway.
    let reading = tokio::spawn(async move {
        while let Ok(Some(answer)) = read::<NumberedAnswer>(&mut reader).await {
            if answers.send(answer).await.is_err() {
                return;
            }
        }
    });
    let mut number = 0;
    loop {
        tokio::select! {
            order = ordered.recv() => {
                let Some(Order::Ask { request, reply }) = order else { break };
                number += 1;
                match write(&mut writer, &NumberedRequest { number, request }).await {
                    Ok(()) => drop(waiting.insert(number, reply)),
                    // The request is too long, and no part of it was written.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        drop(reply.send(Err(HelperError::Other(error.to_string()))));
                    }
                    Err(_) => break,
                }
            }
            answer = answered.recv() => {
                let Some(NumberedAnswer { number, answer }) = answer else { break };
                if let Some(reply) = waiting.remove(&number) {
                    // The caller may have given up.
                    drop(reply.send(answer));
                }
            }
        }
    }
    reading.abort();
}

/// Gives the helper one end of the channel for [`relay`], and returns the other.
fn share_channel(helper: &StdUnixStream) -> io::Result<OwnedFd> {
    let (ours, theirs) = relay::channel()?;
    relay::send_descriptor(helper.as_fd(), theirs.as_fd())?;
    Ok(ours)
}

/// Receives the log sockets that the helper has reconnected, until the helper ends.
#[allow(deprecated, reason = "an `OwnedFd` keeps its descriptor open for as long as it is registered")]
async fn take_logs(channel: OwnedFd) {
    let Ok(channel) = AsyncFd::with_interest(channel, Interest::READABLE) else { return };
    while let Ok(mut ready) = channel.readable().await {
        let taken = ready.try_io(|channel| relay::receive_descriptor(channel.as_fd()));
        match taken {
            // A log that cannot be written to is reconnected later.
            Ok(Ok(Some(log))) => drop(logging::write_to(log)),
            Ok(Ok(None) | Err(_)) => return,
            // Nothing has arrived after all. `try_io` has cleared the readiness.
            Err(_) => {}
        }
    }
}

fn failure(reply: Reply) -> anyhow::Error {
    match reply {
        Ok(_) => anyhow::anyhow!(
            "the daemon's helper process answered a different request; this is a defect, please report it"
        ),
        Err(failed) => anyhow::anyhow!("{failed}"),
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_is_too_long_is_answered_and_the_next_one_carried() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (orders, ordered) = mpsc::channel(16);
        tokio::spawn(carry(ours, ordered));
        let (mut reader, mut writer) = theirs.into_split();
        tokio::spawn(async move {
            while let Ok(Some(NumberedRequest { number, .. })) = read(&mut reader).await {
                write(&mut writer, &NumberedAnswer { number, answer: Ok(Answer::Done) }).await.unwrap();
            }
        });
        let helper = Helper { orders };

        let ruleset = "a".repeat(5 * 1024 * 1024);
        let refused = helper.ask(HelperRequest::Nft(NftCall::Load { ruleset })).await;
        assert!(refused.is_err_and(|failed| failed.to_string().contains("4 MiB")));

        assert!(matches!(helper.ask(HelperRequest::RestoreResolvers).await, Ok(Answer::Done)));
    }
}
