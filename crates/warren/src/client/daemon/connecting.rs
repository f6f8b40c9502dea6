//! Connecting: the exit's address, a marked socket, and what a connection's end means for the session.

use std::net::SocketAddr;
use std::time::Instant;

use warren_quic::driver::CloseReason;
use warren_session::client::ConnectionEnd;
use warren_session::goodbye::Goodbye;

use super::{Daemon, LookupAnswer};
use crate::client::connect;
use crate::status::State;
use crate::worker::Command;

impl Daemon {
    pub(super) async fn connect(&mut self, index: u32) -> anyhow::Result<()> {
        match self.resolver.current() {
            Some(remote) => self.open(index, remote).await?,
            None => self.waiting.push(index),
        }
        self.look_up();
        Ok(())
    }

    /// Asks for the exit's addresses in the background; connections go on with the last good ones meanwhile.
    fn look_up(&mut self) {
        if self.lookup_running || (self.state == State::Up && self.resolver.current().is_some()) {
            return;
        }
        self.lookup_running = true;
        let endpoint = self.start.profile.exit.endpoint.clone();
        let answers = self.lookups.clone();
        tokio::spawn(async move {
            // The daemon may have ended meanwhile.
            drop(answers.send(connect::lookup(endpoint).await).await);
        });
    }

    pub(super) async fn take_lookup(&mut self, answer: LookupAnswer) -> anyhow::Result<()> {
        self.lookup_running = false;
        let learnt = self.resolver.learn(answer);
        for index in std::mem::take(&mut self.waiting) {
            match (&learnt, self.resolver.current()) {
                (Ok(()), Some(remote)) => self.open(index, remote).await?,
                (Err(error), _) => self.lost(index, error.clone()),
                (Ok(()), None) => self.lost(index, "the exit has no address".to_owned()),
            }
        }
        Ok(())
    }

    async fn open(&mut self, index: u32, remote: SocketAddr) -> anyhow::Result<()> {
        self.remotes.insert(index, remote);
        if let Err(error) = self.lockdown.allow_exit(remote).await {
            self.lost(index, format!("{error:#}"));
            return Ok(());
        }
        match connect::bind(remote) {
            Ok(socket) => {
                let exit_keys = self.start.profile.exit.public_keys.clone();
                self.worker.send(Command::Connect { index, socket, remote, exit_keys }).await;
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                anyhow::bail!(
                    "cannot mark the carrier's UDP socket: not permitted; run it as root or with CAP_NET_ADMIN"
                )
            }
            Err(error) => self.lost(index, format!("cannot open a UDP socket: {error}")),
        }
        Ok(())
    }

    pub(super) fn lost(&mut self, index: u32, error: String) {
        self.session.closed(Instant::now(), index, ConnectionEnd::Lost(error));
    }

    /// What a closed connection means for the session. A wrong key ends a client that never had a session; one that
    /// had keeps trying, so that nobody on the path can end it with a forged answer.
    pub(super) fn end_of(&self, reason: CloseReason) -> ConnectionEnd {
        let endpoint = &self.start.profile.exit.endpoint;
        match reason {
            CloseReason::Peer { code, reason } => {
                match u32::try_from(code).ok().and_then(Goodbye::from_code) {
                    Some(goodbye) => ConnectionEnd::Goodbye(goodbye),
                    None => ConnectionEnd::Lost(format!("the exit closed the connection: {reason}")),
                }
            }
            CloseReason::WrongPeerKey { presented } if self.welcome.is_none() => {
                ConnectionEnd::Refused(format!(
                    "{endpoint} showed another key than the profile's: {presented}; compare it with what \
                 `warren status exit` shows there, and correct public_key in the profile if it is the exit's"
                ))
            }
            CloseReason::NoCommonProtocol if self.welcome.is_none() => ConnectionEnd::Refused(format!(
                "{endpoint} does not speak warren/1; check the endpoint in the profile"
            )),
            other @ (CloseReason::Local
            | CloseReason::TimedOut
            | CloseReason::Reset
            | CloseReason::WrongPeerKey { .. }
            | CloseReason::NoCommonProtocol
            | CloseReason::Transport(_)) => ConnectionEnd::Lost(other.to_string()),
        }
    }
}
