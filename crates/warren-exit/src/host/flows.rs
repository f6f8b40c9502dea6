//! Ends the flows in connection tracking that are no longer permitted. The exit's rules accept packets of flows that began earlier,
//! and connection tracking keeps its entries while the exit restarts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use tokio::task::spawn_blocking;
use warren_host::ForwardedPorts;
use warren_host::exit_plan::{ExitHost, Reach};
use warren_host::tracking::{self, Flow};
use warren_session::PublicKey;
use warren_session::clients::ClientRegistry;

use super::forwards::leads;

/// The facts on which it depends whether flows are permitted. Networks on the host's links are not among them: a neighbour can
/// advertise networks, and could so make the exit list all flows again and again.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    forwards: Vec<ForwardedPorts>,
    allow: Vec<IpNet>,
    resolvers: Vec<IpAddr>,
    /// The networks behind clients in force, each with its client.
    prefixes: BTreeMap<IpNet, PublicKey>,
}

/// The flows that were permitted when connection tracking was last checked. Unset until the flows of an earlier daemon are checked.
#[derive(Debug, Default)]
pub(super) struct PermittedFlows {
    checked: Option<Facts>,
}

impl PermittedFlows {
    /// Ends the flows that are no longer permitted, if something has changed. Call it after the rules have followed. Otherwise
    /// such flows could begin again.
    pub(super) fn follow(&mut self, host: &ExitHost, registry: &ClientRegistry) {
        let in_force = registry.prefixes().filter(|(prefix, _)| host.prefixes.contains(prefix));
        let now = Facts {
            forwards: host.forwards.clone(),
            allow: host.allow.clone(),
            resolvers: host.resolvers.clone(),
            prefixes: in_force.map(|(prefix, client)| (prefix, client.public_key)).collect(),
        };
        if self.checked.as_ref() == Some(&now) {
            return;
        }
        let before = self.checked.iter().flat_map(|before| &before.prefixes);
        let lost = before.filter(|(prefix, key)| now.prefixes.get(*prefix) != Some(*key));
        let refused = Refused::new(host, lost.map(|(prefix, _)| *prefix).collect());
        self.checked = Some(now);
        // The flows are removed on another thread, because a busy exit tracks many.
        spawn_blocking(move || match tracking::forget_those(|flow| refused.has(flow)) {
            Ok(flows) => tracing::debug!(flows, "ended flows that are no longer permitted"),
            Err(error) => tracing::error!("cannot end the flows that are no longer permitted: {error}"),
        });
    }
}

/// Recognises flows that are not permitted.
#[derive(Debug)]
struct Refused {
    pools: Vec<IpNet>,
    /// The networks behind clients.
    prefixes: Vec<IpNet>,
    /// Networks that were behind clients until now.
    lost: Vec<IpNet>,
    /// The host's own networks. Flows from there are not clients', even if the network is part of one behind a client.
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
        let is_behind = |networks: &[IpNet]| is_in(networks, flow.source) && !is_in(&self.own, flow.source);
        if is_behind(&self.lost) {
            return true;
        }
        let to = flow.answers_from;
        let is_of_client = is_in(&self.pools, flow.source) || is_behind(&self.prefixes);
        let is_to_client = is_in(&self.pools, to) || is_in(&self.prefixes, to);
        is_of_client && !is_to_client && self.reach.refuses(to, flow.port)
    }
}

fn is_in(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}
