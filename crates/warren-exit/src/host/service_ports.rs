//! The ports of this host's other services. NAT must not use them for clients' traffic: a client that sends from such a port to a peer of
//! the service would receive what the peer sends to the service (CVE-2021-3773).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_daemon::helper::Helper;
use warren_host::exit_plan::{self, ExitHost};
use warren_host::facts::{self, ServicePort};

/// How often sockets and others' rules are listed, which takes longer than the rest of a look.
const EVERY: Duration = Duration::from_secs(10);

/// The ports that are kept from clients' traffic.
#[derive(Debug)]
pub(super) struct ServicePorts {
    kept: Vec<ServicePort>,
    /// The ports that were in use at the last look.
    seen: Vec<ServicePort>,
    due: Instant,
    helper: Helper,
    /// The rules that publish ports and could not be read, as logged last.
    unread: Vec<String>,
}

impl ServicePorts {
    /// Keeps every port that is in use now.
    pub(super) async fn look(helper: Helper, now: Instant) -> Self {
        let mut this =
            Self { kept: Vec::new(), seen: Vec::new(), due: now + EVERY, helper, unread: Vec::new() };
        this.seen = this.ports().await;
        this.kept.clone_from(&this.seen);
        this
    }

    /// The ports that are kept.
    pub(super) fn kept(&self) -> Vec<ServicePort> {
        self.kept.clone()
    }

    /// Looks again, and keeps another set of ports if the exit's rules give away one that was in use at two looks in a row. A query to a
    /// resolver holds its socket for less, and each change of the rules resets the counters of dropped packets.
    pub(super) async fn follow(&mut self, exit: &mut ExitHost, now: Instant) {
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

    /// The ports of sockets, and those that the host's NAT publishes, in order. Only root can publish a port.
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
