//! A race under way: addresses are tried one after the other, and the first that answers wins.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use warren_quic::driver::ConnectionId;
use warren_session::client::{ConnectionEnd, Race};

use crate::exits::Way;

/// The purpose of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Purpose {
    /// The session has no connection 0.
    Attempt,
    /// The session's connections are silent, and another way may work.
    Scout,
    /// An earlier exit of the profile may be back.
    Failback,
    /// Another exit of the roster is much nearer.
    Nearer,
    /// The exit in use sends its clients to other exits of the fleet.
    Leave,
}

/// A race under way.
pub(super) struct RunningRace {
    pub(super) number: u64,
    pub(super) purpose: Purpose,
    pub(super) race: Race<Way>,
    pub(super) begun: Instant,
    /// The list positions of the exits that take part, in order. Each is paired with the number of exits before it.
    pub(super) places: Vec<(usize, usize)>,
    /// The places of the exits whose names are being looked up.
    pub(super) awaited: BTreeSet<usize>,
    /// The exit and address in use, which this race does not try.
    pub(super) excluded: Option<Way>,
    /// The connections whose handshakes are under way.
    pub(super) runners: HashMap<ConnectionId, Way>,
    /// Why the latest way failed.
    pub(super) failure: Option<ConnectionEnd>,
}

impl RunningRace {
    /// Records that the connection to an address has failed, and why.
    pub(super) fn failed(&mut self, way: &Way, end: ConnectionEnd) {
        self.race.failed(way);
        self.failure = Some(end);
    }

    /// Returns why the last address has failed, or that there was no address to try.
    pub(super) fn into_failure(self) -> ConnectionEnd {
        self.failure.unwrap_or_else(|| {
            ConnectionEnd::Lost(
                "there is no address to connect to; check endpoint in [[exit]] of the profile".to_owned(),
            )
        })
    }
}
