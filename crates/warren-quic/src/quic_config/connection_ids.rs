//! Connection IDs whose first byte says which worker's they are, so that packets can be steered to it
//! ([`steer`](crate::socket::steer)) and no other answers them, and whose tag shows that this exit gave them out, in this life or an earlier one.

use std::time::Duration;

use noq_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::{
    planted::{Bug, is_planted},
    settings::WorkerPlace,
    strangers::{IdKey, OWN_ID_LENGTH},
};

/// Gives out IDs of one byte of the worker's, four random ones and three of a tag.
#[derive(Debug)]
pub(super) struct ConnectionIds {
    worker: WorkerPlace,
    key: IdKey,
    resets: bool,
}

impl ConnectionIds {
    /// An endpoint that `resets` says so of connections that it no longer knows; others are silent.
    pub(super) fn new(worker: WorkerPlace, key: IdKey, resets: bool) -> Self {
        Self { worker, key, resets }
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; OWN_ID_LENGTH];
        getrandom::fill(&mut id)
            .expect("the operating system's random source, once initialized, does not fail");
        id[0] = self.worker.first_byte(id[0]);
        self.key.sign(&mut id);
        ConnectionId::new(&id)
    }

    /// Whether a reset is due to a packet with this ID, if no connection has it: only who was given it knows one.
    fn validate(&self, id: ConnectionId) -> Result<(), InvalidCid> {
        let ours = id.first().is_some_and(|first| self.worker.owns(*first)) && self.key.has_signed(&id);
        let ours = (ours || is_planted(Bug::ForeignIdsReset)) && !is_planted(Bug::OwnIdsDisowned);
        if self.resets && ours { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        OWN_ID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IDs of one of eight workers.
    fn ids(worker: usize) -> ConnectionIds {
        ConnectionIds::new(WorkerPlace::all(8).nth(worker).unwrap(), IdKey::new(&[7; 64]), true)
    }

    #[test]
    fn ids_name_their_worker_and_differ() {
        let mut ids_of_7 = ids(7);
        let (one, other) = (ids_of_7.generate_cid(), ids_of_7.generate_cid());
        assert_ne!(one, other);
        assert!(ids_of_7.validate(one).is_ok());
        assert!(ids(6).validate(one).is_err());
    }

    #[test]
    fn only_ids_that_were_given_out_under_the_key_are_valid() {
        let id = ids(7).generate_cid();
        assert!(ids(7).validate(id).is_ok(), "after a restart");
        let only = |key| ConnectionIds::new(WorkerPlace::ONLY, IdKey::new(key), true);
        assert!(only(&[7; 64]).validate(id).is_ok(), "after a restart with another number of workers");
        assert!(only(&[8; 64]).validate(id).is_err());
        let guessed = [7, 1, 2, 3, 4, 5, 6, 7];
        assert!(ids(7).validate(ConnectionId::new(&guessed)).is_err());
    }

    #[test]
    fn a_client_answers_nobody_even_with_an_id_of_its_own() {
        let mut ids = ConnectionIds::new(WorkerPlace::ONLY, IdKey::new(&[7; 64]), false);
        let id = ids.generate_cid();
        assert!(ids.validate(id).is_err());
    }
}
