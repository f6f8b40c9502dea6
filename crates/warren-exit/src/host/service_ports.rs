//! The ports of this host's other services. NAT must not use them for clients' traffic: a client that sends from such a port to a peer of
//! the service would receive what the peer sends to the service (CVE-2021-3773).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_daemon::helper::Helper;
use warren_host::exit_plan::{self, ExitHost};
use warren_host::facts::{self, ServicePort};

/// How often sockets are listed, which takes the kernel longer than the rest of a look.
const EVERY: Duration = Duration::from_secs(10);

/// The ports that are kept from clients' traffic.
#[derive(Debug)]
pub(super) struct ServicePorts {
    kept: Vec<u16>,
    /// The ports that were in use at the last look.
    seen: Vec<u16>,
    due: Instant,
    helper: Helper,
    /// What could not be read of the rules that publish ports, as the log says it.
    unread: Vec<String>,
}

impl ServicePorts {
    /// Keeps all ports that are in use now.
    pub(super) fn look(now: Instant) -> Self {
        let seen = ports();
        Self { kept: seen.clone(), seen, due: now + EVERY }
    }

    /// The ports that are kept.
    pub(super) fn kept(&self) -> Vec<u16> {
        self.kept.clone()
    }

    /// Looks again, and keeps another set of ports if the exit's rules give away one that was in use at two looks in a row. A query to a
    /// resolver holds its socket for less, and each change of the rules resets their counters.
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
