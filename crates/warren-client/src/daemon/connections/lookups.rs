//! Owns the look-ups of exits' names.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tokio::sync::mpsc;

use crate::kill_switch::Lockdown;
use crate::lookup::{NameServers, lookup};
use warren_config::Endpoint;

/// The look-ups under way, at most one for each exit.
pub(in crate::daemon) struct Lookups {
    servers: NameServers,
    /// Whether queries go through the tunnel only.
    stay_inside: bool,
    sender: mpsc::Sender<LookupAnswer>,
    answers: mpsc::Receiver<LookupAnswer>,
    /// The places of the exits whose names are being looked up.
    running: BTreeSet<usize>,
}

/// The outcome of one look-up.
pub(in crate::daemon) struct LookupAnswer {
    /// The exit's place in the list of exits.
    pub(super) place: usize,
    pub(super) addresses: Result<Vec<SocketAddr>, String>,
}

impl Lookups {
    pub(in crate::daemon) fn new(servers: NameServers) -> Self {
        let (sender, answers) = mpsc::channel(4);
        Self { servers, stay_inside: false, sender, answers, running: BTreeSet::new() }
    }

    /// Sends later look-ups to these name servers.
    pub(in crate::daemon) fn ask(&mut self, servers: NameServers) {
        self.servers = servers;
    }

    /// Sends later queries only through the tunnel if `carries_packets` says that the tunnel can take them.
    pub(in crate::daemon) fn follow_tunnel(&mut self, carries_packets: bool) {
        self.stay_inside = carries_packets;
    }

    /// Looks up the name of the exit at the list position `place`, unless a look-up for this exit is under way.
    pub(super) fn start(&mut self, place: usize, endpoint: &Endpoint, lockdown: &Lockdown) {
        if !self.running.insert(place) {
            return;
        }
        let endpoint = endpoint.clone();
        let servers = self.servers.clone().asked_with(lockdown.query_mark());
        let servers = if self.stay_inside { servers.asked_inside() } else { servers };
        let sender = self.sender.clone();
        let is_blocked = lockdown.is_closed() && !self.stay_inside;
        tokio::spawn(async move {
            let mut addresses = lookup(&endpoint, &servers).await;
            // A resolver on this host sends queries to other servers. A closed kill switch blocks these queries, because it
            // allows only the daemon's own queries.
            if let Err(sentence) = &mut addresses
                && is_blocked
                && servers.are_local().await
            {
                sentence.push_str(LOCAL_RESOLVER_BLOCKED);
            }
            // The receiver is gone if the daemon has ended meanwhile.
            drop(sender.send(LookupAnswer { place, addresses }).await);
        });
    }

    /// Waits for the next answer. Cancelling the wait loses nothing.
    pub(in crate::daemon) async fn next(&mut self) -> Option<LookupAnswer> {
        self.answers.recv().await
    }

    /// Records that the look-up for the exit at `place` has ended.
    pub(super) fn ended(&mut self, place: usize) {
        self.running.remove(&place);
    }
}

/// Ends the message for a failed look-up while the kill switch is closed.
const LOCAL_RESOLVER_BLOCKED: &str = ", whose resolver runs on this host itself, where the closed kill switch blocks its \
                                      queries: set the exit's address as endpoint in the profile, or name the network's own \
                                      resolver in /etc/resolv.conf";
