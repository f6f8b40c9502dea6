//! Connection IDs whose first byte names the worker, so that packets can be steered to it and no other answers them, and
//! whose tag shows that this exit gave them out, in this life or an earlier one.

use std::time::Duration;

use noq_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::{
    planted::{Bug, is_planted},
    strangers::{IdKey, OWN_ID_LENGTH},
};

/// Gives out IDs of one worker byte, four random ones and three of a tag.
#[derive(Debug)]
pub(super) struct ConnectionIds {
    worker: u8,
    key: IdKey,
}

impl ConnectionIds {
    pub(super) fn new(worker: u8, key: IdKey) -> Self {
        Self { worker, key }
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; OWN_ID_LENGTH];
        getrandom::fill(&mut id)
            .expect("the operating system's random source, once initialized, does not fail");
        id[0] = self.worker;
        self.key.sign(&mut id);
        ConnectionId::new(&id)
    }

    /// Whether a reset is due to a packet with this ID, if no connection has it: only who was given it knows one.
    fn validate(&self, id: ConnectionId) -> Result<(), InvalidCid> {
        let ours = id.first() == Some(&self.worker) && self.key.has_signed(&id);
        let ours = (ours || is_planted(Bug::ForeignIdsReset)) && !is_planted(Bug::OwnIdsDisowned);
        if ours { Ok(()) } else { Err(InvalidCid) }
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

    fn ids(worker: u8) -> ConnectionIds {
        ConnectionIds::new(worker, IdKey::new(&[7; 64]))
    }

    #[test]
    fn ids_name_their_worker_and_differ() {
        let mut ids_of_7 = ids(7);
        let (one, other) = (ids_of_7.generate_cid(), ids_of_7.generate_cid());
        assert_ne!(one, other);
        assert!(ids_of_7.validate(one).is_ok());
        assert!(ids(8).validate(one).is_err());
    }

    #[test]
    fn only_ids_that_were_given_out_under_the_key_are_valid() {
        let id = ids(7).generate_cid();
        assert!(ids(7).validate(id).is_ok(), "after a restart");
        assert!(ConnectionIds::new(7, IdKey::new(&[8; 64])).validate(id).is_err());
        let guessed = [7, 1, 2, 3, 4, 5, 6, 7];
        assert!(ids(7).validate(ConnectionId::new(&guessed)).is_err());
    }
}
