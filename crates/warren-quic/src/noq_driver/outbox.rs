//! The inbox's list of datagrams, lent to the connections' futures during a poll. The futures append to the list directly, so no
//! queue is needed in between.

use std::{
    mem,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;

use crate::boundary::{ConnectionId, MAX_DATAGRAMS_PER_POLL};

/// Maximum number of datagrams taken from a connection at once.
pub(super) const BATCH: usize = 64;

/// Datagrams of the current poll, each with its connection.
#[derive(Debug, Default)]
pub(super) struct Outbox(Mutex<Vec<(ConnectionId, Bytes)>>);

impl Outbox {
    /// Swaps the datagrams with an inbox's, at the start and the end of a poll.
    pub(super) fn swap(&self, datagrams: &mut Vec<(ConnectionId, Bytes)>) {
        mem::swap(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), datagrams);
    }

    /// Whether a whole batch still fits.
    pub(super) fn has_room(&self) -> bool {
        self.len() + BATCH <= MAX_DATAGRAMS_PER_POLL
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Appends datagrams of one connection.
    pub(super) fn extend(&self, from: ConnectionId, datagrams: impl Iterator<Item = Bytes>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(datagrams.map(|datagram| (from, datagram)));
    }
}
