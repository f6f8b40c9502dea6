//! Connection IDs. In an exit's IDs, the first byte names the worker, so that packets are steered to that worker
//! ([`steer`](crate::socket::steer)). The mark names the process and listener that issued the ID. The tag proves that this
//! exit issued it.

use std::time::{Duration, Instant};

use noq_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use super::resets::Resets;
use crate::{
    planted::{Bug, is_planted},
    settings::{TransportSettings, WorkerPlace},
    strangers::{IdKey, OWN_ID_LENGTH, ProcessKey},
};

/// Length in bytes of a client's IDs. They carry no information, because a client has one socket per connection.
const CLIENT_ID_LENGTH: usize = 8;

/// One of a worker's listening sockets, each of which has an endpoint. All workers listen on the same addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerPlace {
    index: u16,
    count: u16,
}

impl ListenerPlace {
    /// Makes the places of `count` sockets, in order.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Self> {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        (0..count).map(move |index| Self { index, count })
    }

    /// Returns the number of sockets.
    pub(crate) fn count(self) -> u64 {
        self.count.into()
    }
}

/// Issues the IDs of one of an exit's endpoints, and decides which unknown IDs it may reset.
#[derive(Clone, Debug)]
pub(super) struct ExitIds {
    worker: WorkerPlace,
    listener: ListenerPlace,
    process: ProcessKey,
    key: IdKey,
    resets: Resets,
}

impl ExitIds {
    pub(super) fn new(settings: &TransportSettings, key: IdKey, listener: ListenerPlace) -> Self {
        let process = settings.strangers.process().clone();
        Self { worker: settings.worker, listener, process, key, resets: Resets::default() }
    }

    /// Whether to send a stateless reset for a packet whose ID belongs to no connection of the endpoint (RFC 9000 section 10.3).
    ///
    /// The reset ends the connection, and an endpoint knows only its own connections (section 21.11). So it resets only two kinds
    /// of IDs: its own, whose connections have ended, and those of an earlier process, whose connections are all gone.
    fn is_reset_due(&self, id: &[u8; OWN_ID_LENGTH]) -> bool {
        let [first, ..] = id;
        if !self.worker.owns(*first) || !self.key.has_signed(id) {
            return false;
        }
        let ListenerPlace { index, count } = self.listener;
        // An earlier process's ID gives a random number here, which is hardly ever the index of a listener.
        let named = self.process.listener(id);
        named == index || named >= count
    }
}

impl ConnectionIdGenerator for ExitIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; OWN_ID_LENGTH];
        fill(&mut id);
        id[0] = self.worker.first_byte(id[0]);
        self.process.mark(&mut id, self.listener.index);
        // Last, because the tag covers the mark.
        self.key.sign(&mut id);
        ConnectionId::new(&id)
    }

    fn validate(&self, id: ConnectionId) -> Result<(), InvalidCid> {
        let is_due = <&[u8; OWN_ID_LENGTH]>::try_from(&*id).is_ok_and(|id| self.is_reset_due(id));
        let is_due = (is_due || is_planted(Bug::ForeignIdsReset)) && !is_planted(Bug::OwnIdsDisowned);
        if is_due { Ok(()) } else { Err(InvalidCid) }
    }

    fn admit_reset(&mut self, id: ConnectionId, now: Instant) -> bool {
        <&[u8; OWN_ID_LENGTH]>::try_from(&*id).is_ok_and(|id| self.resets.admit(id, now))
    }

    fn cid_len(&self) -> usize {
        OWN_ID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Issues a client's IDs. Never resets anything.
#[derive(Debug)]
pub(super) struct ClientIds;

impl ConnectionIdGenerator for ClientIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; CLIENT_ID_LENGTH];
        fill(&mut id);
        ConnectionId::new(&id)
    }

    fn validate(&self, _id: ConnectionId) -> Result<(), InvalidCid> {
        // The library resets no ID that is invalid.
        Err(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        CLIENT_ID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn fill(id: &mut [u8]) {
    getrandom::fill(id).expect("the operating system's random source, once initialized, does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strangers::Strangers;

    const KEY: [u8; 64] = [7; 64];
    const LISTENERS: usize = 3;

    /// One process of an exit with a number of workers.
    struct Process {
        workers: u8,
        strangers: Strangers,
    }

    impl Process {
        fn with(workers: u8) -> Self {
            Self { workers, strangers: Strangers::default() }
        }

        fn ids(&self, worker: u8, listener: usize) -> ExitIds {
            self.ids_under(&KEY, worker, listener)
        }

        fn ids_under(&self, key: &[u8], worker: u8, listener: usize) -> ExitIds {
            let settings = TransportSettings {
                worker: WorkerPlace::all(self.workers).nth(worker.into()).unwrap(),
                strangers: self.strangers.clone(),
                ..TransportSettings::default()
            };
            ExitIds::new(&settings, IdKey::new(key), ListenerPlace::all(LISTENERS).nth(listener).unwrap())
        }

        /// The endpoints that would reset this ID as an unknown one.
        fn resetting(&self, id: ConnectionId) -> Vec<(u8, usize)> {
            let all = (0..self.workers).flat_map(|worker| (0..LISTENERS).map(move |at| (worker, at)));
            all.filter(|(worker, at)| self.ids(*worker, *at).validate(id).is_ok()).collect()
        }
    }

    #[test]
    fn an_id_is_reset_by_the_endpoint_that_gave_it_out_and_no_other_of_its_process() {
        let process = Process::with(8);
        for worker in 0..8 {
            for listener in 0..LISTENERS {
                let mut ids = process.ids(worker, listener);
                let (one, other) = (ids.generate_cid(), ids.generate_cid());
                assert_ne!(one, other);
                assert_eq!(process.resetting(one), [(worker, listener)]);
            }
        }
    }

    #[test]
    fn an_id_of_an_earlier_process_is_reset_by_its_worker_at_every_listener() {
        let (earlier, process) = (Process::with(8), Process::with(8));
        // A few IDs are not reset, because their mark is valid in the later process by chance.
        let ids: Vec<_> = (0..100).map(|_| earlier.ids(7, 1).generate_cid()).collect();
        let reset = ids.iter().filter(|id| process.resetting(**id) == [(7, 0), (7, 1), (7, 2)]);
        assert!(reset.count() >= 98);
        let with_fewer_workers = Process::with(1);
        let reset = ids.iter().filter(|id| with_fewer_workers.resetting(**id).len() == LISTENERS);
        assert!(reset.count() >= 98, "the worker that has its byte now resets it");
    }

    #[test]
    fn an_id_that_was_never_given_out_is_reset_by_nobody() {
        let process = Process::with(1);
        let id = process.ids_under(&[8; 64], 0, 0).generate_cid();
        assert!(process.ids_under(&[8; 64], 0, 0).validate(id).is_ok());
        assert_eq!(process.resetting(id), []);
        let own = process.ids(0, 0).generate_cid();
        for index in 0..own.len() {
            let mut changed = own.to_vec();
            changed[index] ^= 1;
            assert_eq!(process.resetting(ConnectionId::new(&changed)), [], "byte {index}");
        }
        assert_eq!(process.resetting(ConnectionId::new(&own[..8])), []);
    }

    #[test]
    fn a_client_answers_nobody_even_with_an_id_of_its_own() {
        let id = ClientIds.generate_cid();
        assert_ne!(id, ClientIds.generate_cid());
        assert!(ClientIds.validate(id).is_err());
    }
}
