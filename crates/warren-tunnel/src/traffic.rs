//! Sums an exit's traffic per client, over all of its connections and sessions.

use std::collections::{BTreeMap, HashMap};

use warren_session::PublicKey;
use warren_session::exit::SessionId;

/// Inner packets and their bytes: out of this host to the carrier, and in from it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    /// Inner packets sent.
    pub packets_out: u64,
    /// Bytes of these.
    pub bytes_out: u64,
    /// Inner packets received.
    pub packets_in: u64,
    /// Bytes of these.
    pub bytes_in: u64,
}

impl Traffic {
    /// Adds what another one counted.
    pub fn add(&mut self, other: &Self) {
        self.packets_out += other.packets_out;
        self.bytes_out += other.bytes_out;
        self.packets_in += other.packets_in;
        self.bytes_in += other.bytes_in;
    }
}

/// The client of each session, and the sums of connections that are gone.
#[derive(Debug, Default)]
pub(super) struct ClientTraffic {
    by_session: HashMap<SessionId, PublicKey>,
    past: BTreeMap<PublicKey, Traffic>,
}

impl ClientTraffic {
    /// Notes whose a session is.
    pub(super) fn open(&mut self, session: SessionId, client: PublicKey) {
        self.by_session.insert(session, client);
    }

    /// Forgets a session; what its connections carried has been kept.
    pub(super) fn end(&mut self, session: SessionId) {
        self.by_session.remove(&session);
    }

    /// Keeps what a connection carried for a session that it leaves.
    pub(super) fn keep(&mut self, session: SessionId, traffic: &Traffic) {
        if let Some(client) = self.by_session.get(&session) {
            self.past.entry(*client).or_default().add(traffic);
        }
    }

    /// Everything carried for each client, including what its present connections have carried.
    pub(super) fn totals(
        &self,
        live: impl Iterator<Item = (SessionId, Traffic)>,
    ) -> BTreeMap<PublicKey, Traffic> {
        let mut totals = self.past.clone();
        for (session, traffic) in live {
            if let Some(client) = self.by_session.get(&session) {
                totals.entry(*client).or_default().add(&traffic);
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_sums_survive_its_connections_and_sessions() {
        let one = Traffic { packets_out: 1, bytes_out: 100, packets_in: 2, bytes_in: 200 };
        let (laptop, phone) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let mut clients = ClientTraffic::default();
        clients.open(SessionId(7), laptop);
        clients.open(SessionId(8), phone);
        let live = || [(SessionId(7), one), (SessionId(8), one), (SessionId(99), one)].into_iter();

        let before = clients.totals(live())[&laptop];
        clients.keep(SessionId(7), &one);
        assert_eq!(clients.totals(live().skip(1))[&laptop], before);
        clients.end(SessionId(7));
        clients.open(SessionId(9), laptop);
        let after = clients.totals(std::iter::once((SessionId(9), one)));

        assert_eq!(after[&laptop].bytes_out, 200);
        assert!(!after.contains_key(&phone));
    }
}
