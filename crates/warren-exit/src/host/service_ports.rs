//! The ports of this host's other services, which NAT must not give to clients' traffic: who sends from there to a peer of the
//! service would get what the peer sends to it (CVE-2021-3773).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_daemon::helper::Helper;
use warren_host::exit_plan::{self, ExitHost};
use warren_host::facts::{self, ServicePort};

/// How often sockets and the rules of others are looked at, which takes longer than the rest of a look.
const EVERY: Duration = Duration::from_secs(10);

/// The ports that are kept from clients' traffic.
#[derive(Debug)]
pub(super) struct ServicePorts {
    kept: Vec<u16>,
    /// Those that there were when they were looked at last.
    seen: Vec<ServicePort>,
    due: Instant,
    helper: Helper,
    /// What could not be read of the rules that publish ports, as the log says it.
    unread: Vec<String>,
}

impl ServicePorts {
    /// Keeps all that are there now.
    pub(super) fn look(now: Instant) -> Self {
        let seen = ports();
        Self { kept: seen.clone(), seen, due: now + EVERY }
    }

    /// Those that are kept.
    pub(super) fn kept(&self) -> Vec<u16> {
        self.kept.clone()
    }

    /// Keeps others if the rules of this exit give one away that was there twice: a question to a resolver has a socket for less than
    /// that, and each change has the rules' counters begin anew.
    pub(super) fn follow(&mut self, exit: &mut ExitHost, now: Instant) {
        if now < self.due {
            return;
        }
        self.due = now + EVERY;
        let seen = self.ports().await;
        self.take(seen, exit);
        exit.service_ports = self.kept();
    }

    fn take(&mut self, seen: Vec<ServicePort>, exit: &ExitHost) {
        let mut lasting = seen.clone();
        lasting.retain(|port| self.seen.contains(port));
        if exit_plan::gives_away(exit, &lasting) {
            self.kept.clone_from(&lasting);
        }
        self.seen = seen;
    }

    /// The ports of sockets and those that NAT publishes, which only root can do, in order.
    async fn ports(&mut self) -> Vec<ServicePort> {
        let sockets = facts::service_ports().unwrap_or_else(|error| {
            tracing::debug!("cannot look at this host's sockets: {error}");
            Vec::new()
        });
        let mut ports: BTreeMap<u16, bool> =
            sockets.into_iter().map(|socket| (socket.port, socket.is_system)).collect();
        match self.helper.list_published().await {
            Ok(published) => {
                ports.extend(published.ports.into_iter().flatten().map(|port| (port, true)));
                if published.unread != self.unread && !published.unread.is_empty() {
                    tracing::warn!(
                        "cannot tell every port that this host's NAT publishes: {}; see `warren doctor`",
                        published.unread.join(", ")
                    );
                }
                self.unread = published.unread;
            }
            Err(error) => tracing::debug!("cannot look at this host's rules: {error}"),
        }
        ports.into_iter().map(|(port, is_system)| ServicePort { port, is_system }).collect()
    }
}
