//! Owns the connections that were ordered from the worker and have no identifier yet.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use warren_quic::key::PublicKey;

use crate::exits::Way;

/// A number that no session has.
const NO_SESSION: u64 = u64::MAX;

/// A connection that was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::daemon) struct Ordered {
    pub(in crate::daemon) remote: SocketAddr,
    /// The number of the session for which the connection was ordered. [`NO_SESSION`] if the connection has another purpose.
    pub(super) session: u64,
    /// Its role in a race, if the connection was ordered for a race.
    pub(super) racer: Option<Racer>,
    /// The exit's key, if the connection was ordered only to check that the exit has this key.
    pub(super) check: Option<PublicKey>,
    /// The way to measure, if the connection was ordered only for a measurement.
    pub(super) measured: Option<Way>,
    /// Whether the session has given the connection up since it was ordered.
    pub(super) is_cancelled: bool,
}

/// The role of a connection in a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Racer {
    /// The race's number. It shows whether that race is still under way when the worker answers.
    pub(super) race: u64,
    pub(super) way: Way,
}

impl Ordered {
    /// A connection for the session.
    pub(super) fn for_session(remote: SocketAddr, session: u64) -> Self {
        Self { remote, session, racer: None, check: None, measured: None, is_cancelled: false }
    }

    /// A connection for a race.
    pub(super) fn for_race(race: u64, way: Way) -> Self {
        Self { racer: Some(Racer { race, way }), ..Self::for_session(way.remote, NO_SESSION) }
    }

    /// A connection that measures the round-trip time to an exit.
    pub(super) fn for_measurement(way: Way) -> Self {
        Self { measured: Some(way), ..Self::for_session(way.remote, NO_SESSION) }
    }

    /// A connection that checks whether the exit has a key.
    pub(super) fn for_check(remote: SocketAddr, key: PublicKey) -> Self {
        Self { check: Some(key), ..Self::for_session(remote, NO_SESSION) }
    }
}

/// Ordered connections by index. The worker answers the orders for one index in the order in which they were given.
#[derive(Debug, Default)]
pub(super) struct OrderedConnections(HashMap<u32, VecDeque<Ordered>>);

impl OrderedConnections {
    pub(super) fn push(&mut self, index: u32, ordered: Ordered) {
        self.0.entry(index).or_default().push_back(ordered);
    }

    /// Takes the oldest order of an index, because the worker has just answered it.
    pub(super) fn pop(&mut self, index: u32) -> Option<Ordered> {
        self.0.get_mut(&index)?.pop_front()
    }

    /// Marks the orders of a session's index as no longer wanted. The worker still answers them.
    pub(super) fn cancel(&mut self, index: u32, session: u64) {
        for ordered in self.0.entry(index).or_default() {
            ordered.is_cancelled |= ordered.session == session;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_belong_to_orders_in_turn_and_a_cancelled_order_is_answered_too() {
        let remotes: [SocketAddr; 2] = ["192.0.2.1:443".parse().unwrap(), "192.0.2.2:443".parse().unwrap()];
        let [first, second] = remotes.map(|remote| Ordered::for_session(remote, 1));
        let mut ordered = OrderedConnections::default();
        ordered.push(1, first);
        ordered.cancel(1, 1);
        ordered.push(1, second);
        ordered.push(2, first);
        ordered.cancel(2, 2);

        assert_eq!(ordered.pop(1), Some(Ordered { is_cancelled: true, ..first }));
        assert_eq!(ordered.pop(1), Some(second));
        assert_eq!(ordered.pop(1), None);
        assert_eq!(ordered.pop(2), Some(first), "another session was cancelled");
    }
}
