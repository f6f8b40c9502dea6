//! The ports of this host's other services. Forwards must not take them. NAT must not use them for clients' traffic either: a
//! client that sends from such a port to a peer of the service would receive what the peer sends to the service (CVE-2021-3773).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use warren_config::ExitSettings;
use warren_daemon::helper::Helper;
use warren_host::Ports;
use warren_host::exit_plan::{self, ExitHost};
use warren_host::facts::{self, ServicePort};
use warren_host::published::Published;

use super::forwards::{HostPorts, own_ports};

/// How often sockets and other programs' rules are listed. Within twenty seconds, a new service is in two lists in a row, unless
/// listing takes long.
const EVERY: Duration = Duration::from_secs(8);

/// The ports that clients' traffic must not use.
#[derive(Debug)]
pub(super) struct ServicePorts {
    kept: Vec<ServicePort>,
    /// The ports that the last check found in use.
    seen: Vec<ServicePort>,
    due: Instant,
    helper: Helper,
    /// A check that is under way.
    listing: Option<JoinHandle<Listed>>,
    /// The sockets' ports, from the last listing that succeeded.
    sockets: Vec<ServicePort>,
    /// The ports that no forward may take, from the last listing that succeeded. `lasting` contains the ports that two checks in a
    /// row have found.
    own: Vec<Ports>,
    lasting: Vec<Ports>,
    /// The ports that rules publish, from the last listing that succeeded.
    published: BTreeSet<u16>,
    /// The rules that publish ports and could not be read, as logged last.
    unread: Vec<String>,
}

impl ServicePorts {
    /// Lists the ports in use now, and keeps NAT from using any of them.
    pub(super) async fn look(helper: Helper, now: Instant) -> Self {
        // The ports are listed on the current thread. The daemon has not entered its sandbox yet, and a thread that starts now
        // would stay outside.
        let (sockets, own) = (facts::service_ports(), facts::own_ports());
        let listed = Listed { sockets, own, published: helper.list_published().await };
        let mut this = Self {
            kept: Vec::new(),
            seen: Vec::new(),
            due: now + EVERY,
            helper,
            listing: None,
            sockets: Vec::new(),
            own: Vec::new(),
            lasting: Vec::new(),
            published: BTreeSet::new(),
            unread: Vec::new(),
        };
        this.note(listed);
        this.lasting.clone_from(&this.own);
        this.seen = this.ports();
        this.kept.clone_from(&this.seen);
        this
    }

    /// The helper that lists the published ports.
    pub(super) fn helper(&self) -> &Helper {
        &self.helper
    }

    /// The ports that clients' traffic must not use.
    pub(super) fn kept(&self) -> Vec<ServicePort> {
        self.kept.clone()
    }

    /// The ports that forwards must not take. A socket that exists only briefly does not count.
    pub(super) fn host_ports(&self, config: &ExitSettings) -> HostPorts {
        let published = self.published.iter().map(|port| *port..=*port).collect();
        HostPorts::new(own_ports(config), self.lasting.clone(), published)
    }

    /// Like [`Self::host_ports`], but lists the host's ports now.
    ///
    /// # Errors
    /// If the state of the host cannot be read.
    pub(super) async fn host_ports_now(&self, config: &ExitSettings) -> anyhow::Result<HostPorts> {
        let Listed { own, published, .. } = list(self.helper.clone()).await;
        Ok(HostPorts::new(own_ports(config), own?, published?.ports))
    }

    /// Starts or finishes a check. The kept ports change only if two checks in a row have found a port in use that clients' traffic
    /// could still get. One check is not enough: a query to a resolver has its socket only briefly, and each change of the rules
    /// resets the counters of dropped packets.
    pub(super) async fn follow(&mut self, exit: &mut ExitHost, now: Instant) {
        if self.listing.is_none() && now >= self.due {
            self.due = now + EVERY;
            self.listing = Some(tokio::spawn(list(self.helper.clone())));
        }
        // With thousands of rules or sockets, a check takes seconds. The reports of the workers must not wait for that.
        let Some(listing) = self.listing.take_if(|listing| listing.is_finished()) else { return };
        let Ok(listed) = listing.await else { return };
        self.note(listed);
        let seen = self.ports();
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

    /// Records the result of a check. While some rules cannot be read, ports that were found before stay. Otherwise anybody who can
    /// make the listing fail could get these ports.
    fn note(&mut self, Listed { sockets, own, published }: Listed) {
        match own {
            Ok(own) => {
                self.lasting = own.iter().copied().filter(|ports| self.own.contains(ports)).collect();
                self.own = own;
            }
            // The sockets are listed in the same way, so the warning about them below is enough.
            Err(error) => tracing::debug!("cannot list this host's ports: {error}"),
        }
        match sockets {
            Ok(sockets) => self.sockets = sockets,
            Err(error) => tracing::warn!("cannot list this host's sockets: {error}"),
        }
        let Published { ports, unread } = match published {
            Ok(published) => published,
            Err(error) => return tracing::warn!("cannot list this host's rules: {error}"),
        };
        if unread.is_empty() {
            self.published.clear();
        } else if unread != self.unread {
            tracing::warn!(
                "cannot determine every port that this host's NAT publishes: {}; see `warren doctor`",
                unread.join(", ")
            );
        }
        self.published.extend(ports.into_iter().flatten());
        self.unread = unread;
    }

    /// Returns the ports of sockets and those that the host's NAT publishes, in order. Only root can publish a port.
    fn ports(&self) -> Vec<ServicePort> {
        let sockets = self.sockets.iter().map(|socket| (socket.port, socket.is_system));
        let mut ports: BTreeMap<u16, bool> = sockets.collect();
        ports.extend(self.published.iter().map(|port| (*port, true)));
        ports.into_iter().map(|(port, is_system)| ServicePort { port, is_system }).collect()
    }
}

/// The result of a check.
#[derive(Debug)]
struct Listed {
    sockets: io::Result<Vec<ServicePort>>,
    own: io::Result<Vec<Ports>>,
    published: anyhow::Result<Published>,
}

/// Lists the ports in use on another thread, so that the daemon does not wait. Call it only inside the sandbox: a thread
/// started before would stay outside.
async fn list(helper: Helper) -> Listed {
    let listed = tokio::task::spawn_blocking(|| (facts::service_ports(), facts::own_ports())).await;
    let failed = |error| {
        (Err(io::Error::other(error)), Err(io::Error::other("the thread that lists them has failed")))
    };
    let (sockets, own) = listed.unwrap_or_else(failed);
    Listed { sockets, own, published: helper.list_published().await }
}
