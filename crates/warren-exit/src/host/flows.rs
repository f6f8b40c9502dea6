//! Ends the flows in connection tracking that are no longer permitted. The exit's rules accept packets of flows that began earlier,
//! and connection tracking keeps its entries while the exit restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use warren_host::ForwardedPorts;
use warren_host::exit_plan::{ExitHost, Reach};
use warren_host::tracking::{self, Flow};
use warren_session::PublicKey;
use warren_session::clients::ClientRegistry;

use super::forwards::leads;

/// The facts that decide which flows are permitted. Networks on the host's links are not among them: a neighbour can advertise
/// networks, and could thereby make the exit list all flows again and again.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    forwards: Vec<ForwardedPorts>,
    allow: Vec<IpNet>,
    resolvers: Vec<IpAddr>,
    /// The networks behind clients in force.
    prefixes: BTreeMap<IpNet, Holder>,
}

/// A client with a network behind it: its key and its name. A client may get another key, and may be renamed.
type Holder = (PublicKey, String);

/// The flows that were permitted when connection tracking was last checked. Unset until the flows of an earlier daemon are checked.
#[derive(Debug, Default)]
pub(super) struct PermittedFlows {
    checked: Option<Facts>,
}

impl PermittedFlows {
    /// Ends the flows that are no longer permitted, if something has changed. Call it after the rules have followed. Otherwise
    /// such flows could begin again.
    pub(super) fn follow(&mut self, host: &ExitHost, registry: &ClientRegistry) {
        let in_force: BTreeSet<&IpNet> = host.prefixes.iter().collect();
        let in_force = registry.prefixes().filter(|(prefix, _)| in_force.contains(prefix));
        let now = Facts {
            forwards: host.forwards.clone(),
            allow: host.allow.clone(),
            resolvers: host.resolvers.clone(),
            prefixes: in_force
                .map(|(prefix, client)| (prefix, (client.public_key, client.name.clone())))
                .collect(),
        };
        if self.checked.as_ref() == Some(&now) {
            return;
        }
        let lost = self.checked.as_ref().map(|before| lost(&before.prefixes, &now.prefixes));
        let refused = Refused::new(host, lost.unwrap_or_default());
        self.checked = Some(now);
        forget("flows that are no longer permitted", move || {
            tracking::forget_those(|flow| refused.has(flow))
        });
    }
}

/// The networks that clients have lost.
fn lost(before: &BTreeMap<IpNet, Holder>, now: &BTreeMap<IpNet, Holder>) -> Vec<IpNet> {
    let is_same = |(key, name): &Holder, (new_key, new_name): &Holder| key == new_key || name == new_name;
    let keeps = |prefix: &IpNet, holder: &Holder| now.get(prefix).is_some_and(|new| is_same(holder, new));
    before.iter().filter(|(prefix, holder)| !keeps(prefix, holder)).map(|(prefix, _)| *prefix).collect()
}

/// Removes flows from connection tracking while the exit goes on. `which` describes the flows in the log. If the kernel fails, it is
/// asked again for a while, because nothing else would end these flows.
pub(crate) fn forget(which: &'static str, forget: impl Fn() -> io::Result<usize> + Send + Sync + 'static) {
    let forget = Arc::new(forget);
    tokio::spawn(async move {
        for attempts_left in (0..ATTEMPTS).rev() {
            let forget = Arc::clone(&forget);
            // The flows are removed on another thread. A busy exit tracks many flows, and the daemon must not wait until the kernel
            // has listed them all.
            match spawn_blocking(move || forget()).await.unwrap_or_else(|error| Err(error.into())) {
                Ok(flows) => {
                    tracing::debug!(flows, "ended {which}");
                    return;
                }
                Err(error) if attempts_left == 0 => tracing::error!("cannot end {which}: {error}"),
                Err(error) => {
                    tracing::warn!("cannot end {which}: {error}; trying again");
                    sleep(PAUSE).await;
                }
            }
        }
    });
}

const ATTEMPTS: u32 = 10;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Recognises flows that are not permitted.
#[derive(Debug)]
struct Refused {
    pools: Vec<IpNet>,
    /// The networks behind clients.
    prefixes: Vec<IpNet>,
    /// Networks that were behind clients until now.
    lost: Vec<IpNet>,
    /// The host's own networks. Hosts there are not behind a client, even if the network is part of one behind a client.
    own: Vec<IpNet>,
    forwards: Vec<ForwardedPorts>,
    reach: Reach,
}

impl Refused {
    fn new(host: &ExitHost, lost: Vec<IpNet>) -> Self {
        let pools = host.ipv4.map(IpNet::V4).into_iter().chain(host.ipv6.map(IpNet::V6));
        Self {
            pools: pools.map(|pool| pool.trunc()).collect(),
            prefixes: host.prefixes.clone(),
            lost,
            own: host.surroundings.permanent.iter().map(|link| link.network).collect(),
            forwards: host.forwards.clone(),
            reach: Reach::of(host),
        }
    }

    fn has(&self, flow: &Flow) -> bool {
        // Forwards lead to clients only. Other redirections are rules of the host's own.
        if let Some(sent_on) = &flow.sent_on
            && is_in(&self.pools, sent_on.to.ip())
            && !self.forwards.iter().any(|forward| leads(forward, sent_on))
        {
            return true;
        }
        if has_end_in([flow.source, flow.answers_from], &self.lost, &self.own) {
            return true;
        }
        let to = flow.answers_from;
        let is_of_client =
            is_in(&self.pools, flow.source) || has_end_in([flow.source], &self.prefixes, &self.own);
        let is_to_client = is_in(&self.pools, to) || is_in(&self.prefixes, to);
        is_of_client && !is_to_client && self.reach.refuses(to, flow.port)
    }
}

/// Whether one of a flow's ends is in these networks and in none of the host's own.
pub(crate) fn has_end_in(ends: impl IntoIterator<Item = IpAddr>, networks: &[IpNet], own: &[IpNet]) -> bool {
    ends.into_iter().any(|end| is_in(networks, end) && !is_in(own, end))
}

fn is_in(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[test]
    fn network_is_lost_only_if_another_client_or_nobody_has_it() {
        let network = |number: u8| format!("192.168.{number}.0/24").parse::<IpNet>().unwrap();
        let of = |key: u8, name: &str| (PublicKey([key; 32]), name.to_owned());
        let before = [1, 2, 3, 4].map(|number| (network(number), of(number, "anna"))).into();
        let now =
            [(network(1), of(9, "anna")), (network(2), of(2, "renamed")), (network(3), of(9, "another"))];
        assert_eq!(lost(&before, &now.into()), [network(3), network(4)]);
        assert!(lost(&before, &before).is_empty());
    }

    #[test]
    fn flow_from_or_to_a_network_has_an_end_in_it_unless_that_end_is_in_the_hosts_own() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (networks, own) = (["10.1.0.0/16".parse().unwrap()], ["10.1.9.0/24".parse().unwrap()]);
        let has = |source, answers_from| has_end_in([ip(source), ip(answers_from)], &networks, &own);
        assert!(has("10.1.2.3", "192.0.2.1") && has("192.0.2.1", "10.1.2.3"));
        assert!(has("10.1.9.2", "10.1.2.3"));
        assert!(!has("10.1.9.2", "192.0.2.1") && !has("192.0.2.1", "10.1.9.2"));
    }

    #[tokio::test]
    async fn flows_that_cannot_be_removed_are_tried_again() {
        let (sender, mut attempts) = unbounded_channel();
        let fails = AtomicBool::new(true);
        forget("flows of this test", move || {
            sender.send(()).unwrap();
            if fails.swap(false, Relaxed) { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(1) }
        });
        let mut count = 0;
        while attempts.recv().await.is_some() {
            count += 1;
        }
        assert_eq!(count, 2);
    }
}
