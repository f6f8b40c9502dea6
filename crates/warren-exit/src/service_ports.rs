//! The ports of this host's other services, which NAT must not give to clients' traffic: who sends from there to a peer of the
//! service would get what the peer sends to it (CVE-2021-3773).

use std::time::{Duration, Instant};

use warren_host::exit_plan::{self, ExitHost};
use warren_host::facts::{self, ServicePort};

/// How often sockets are looked at, which takes the kernel longer than the rest of a look.
const EVERY: Duration = Duration::from_secs(10);

/// The ports that are kept from clients' traffic.
#[derive(Debug)]
pub(super) struct ServicePorts {
    kept: Vec<ServicePort>,
    /// Those that there were when they were looked at last.
    seen: Vec<ServicePort>,
    due: Instant,
}

impl ServicePorts {
    /// Keeps all that are there now.
    pub(super) fn look(now: Instant) -> Self {
        let seen = ports();
        Self { kept: seen.clone(), seen, due: now + EVERY }
    }

    /// Those that are kept.
    pub(super) fn kept(&self) -> Vec<ServicePort> {
        self.kept.clone()
    }

    /// Keeps others if the rules of this exit give one away that was there twice: a question to a resolver has a socket for less than
    /// that, and each change has the counters of dropped packets begin anew.
    pub(super) fn follow(&mut self, exit: &mut ExitHost, now: Instant) {
        if now < self.due {
            return;
        }
        self.due = now + EVERY;
        self.take(ports(), exit);
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
}

fn ports() -> Vec<ServicePort> {
    facts::service_ports().unwrap_or_else(|error| {
        tracing::debug!("cannot look at this host's sockets: {error}");
        Vec::new()
    })
}
