//! Connection IDs whose first byte names the worker, so that packets can be steered to it and no other answers them.

use std::time::Duration;

use noq_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

const LENGTH: usize = 8;

/// Gives out IDs of one worker byte and seven random ones.
#[derive(Debug)]
pub(super) struct ConnectionIds {
    worker: u8,
}

impl ConnectionIds {
    pub(super) fn new(worker: u8) -> Self {
        Self { worker }
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LENGTH];
        getrandom::fill(&mut id)
            .expect("the operating system's random source, once initialized, does not fail");
        id[0] = self.worker;
        ConnectionId::new(&id)
    }

    /// Any ID of this worker may have been given out before a restart, so that a reset is due.
    fn validate(&self, id: ConnectionId) -> Result<(), InvalidCid> {
        if id.first() == Some(&self.worker) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_worker_and_differ() {
        let mut ids = ConnectionIds::new(7);
        let (one, other) = (ids.generate_cid(), ids.generate_cid());
        assert_ne!(one, other);
        assert!(ids.validate(one).is_ok());
        assert!(ConnectionIds::new(8).validate(one).is_err());
    }
}
