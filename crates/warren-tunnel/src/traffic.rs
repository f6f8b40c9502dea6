//! Sums an exit's traffic per client, over all of its connections and sessions.

use std::collections::HashMap;

use warren_session::PublicKey;
use warren_session::exit::SessionId;

/// Inner packets and their bytes: those sent to the carrier, and those received from it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    /// Inner packets sent.
    pub packets_out: u64,
    /// Bytes of the packets sent.
    pub bytes_out: u64,
    /// Inner packets received.
    pub packets_in: u64,
    /// Bytes of the packets received.
    pub bytes_in: u64,
}

impl Traffic {
    /// Adds the counts of another.
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
    by_session: HashMap<SessionId, usize>,
    /// The place of each client in `past`.
    places: HashMap<PublicKey, usize>,
    past: Vec<(PublicKey, Traffic)>,
}

impl ClientTraffic {
    /// Records the client to which a session belongs.
    pub(super) fn open(&mut self, session: SessionId, client: PublicKey) {
        let place = *self.places.entry(client).or_insert_with(|| {
            // Never removed, because an unfinished snapshot knows clients by their places.
            self.past.push((client, Traffic::default()));
            self.past.len() - 1
        });
        self.by_session.insert(session, place);
    }

    /// Forgets a session. The traffic of its connections has been kept.
    pub(super) fn end(&mut self, session: SessionId) {
        self.by_session.remove(&session);
    }

    /// Adds a connection's traffic for a session to the client's past traffic. Returns the client's place among [`Self::past`].
    pub(super) fn keep(&mut self, session: SessionId, traffic: &Traffic) -> Option<usize> {
        let place = *self.by_session.get(&session)?;
        self.past.get_mut(place)?.1.add(traffic);
        Some(place)
    }

    /// Returns the client that a session belongs to.
    pub(super) fn of(&self, session: SessionId) -> Option<PublicKey> {
        self.past.get(*self.by_session.get(&session)?).map(|(client, _)| *client)
    }

    /// Returns the traffic of past connections for each client. A client keeps its place.
    pub(super) fn past(&self) -> impl ExactSizeIterator<Item = (PublicKey, Traffic)> {
        self.past.iter().copied()
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

        assert_eq!(clients.keep(SessionId(7), &one), Some(0));
        clients.end(SessionId(7));
        clients.open(SessionId(9), laptop);
        assert_eq!(clients.keep(SessionId(9), &one), Some(0));
        assert_eq!(clients.keep(SessionId(99), &one), None);

        let past: Vec<_> = clients.past().map(|(client, traffic)| (client, traffic.bytes_out)).collect();
        assert_eq!(past, [(laptop, 200), (phone, 0)]);
        assert_eq!((clients.of(SessionId(8)), clients.of(SessionId(7))), (Some(phone), None));
    }
}
