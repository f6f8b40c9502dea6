//! Connections by slot, which the driver uses internally, and by public id.

use std::{cell::Cell, collections::BTreeMap};

use super::connection::WarrenConnection;
use crate::boundary::ConnectionId;

/// All connections of an endpoint.
pub(super) struct Table {
    slots: Vec<Option<Box<WarrenConnection>>>,
    free: Vec<usize>,
    by_id: BTreeMap<ConnectionId, usize>,
    /// The latest look-up. It is kept because datagrams arrive in runs of one connection.
    last: Cell<Option<(ConnectionId, usize)>>,
    next_id: u64,
}

impl Table {
    /// Makes an empty table with ids above `floor`.
    pub(super) fn new(floor: u64) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_id: BTreeMap::new(),
            last: Cell::new(None),
            next_id: floor,
        }
    }

    /// Adds the connection that `make` makes from its id. Returns its slot.
    pub(super) fn insert(
        &mut self,
        make: impl FnOnce(ConnectionId) -> WarrenConnection,
    ) -> (usize, ConnectionId) {
        self.next_id += 1;
        let id = ConnectionId(self.next_id);
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let connection = Some(Box::new(make(id)));
        match self.slots.get_mut(slot) {
            Some(place) => *place = connection,
            None => self.slots.push(connection),
        }
        self.by_id.insert(id, slot);
        (slot, id)
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<Box<WarrenConnection>> {
        let connection = self.slots.get_mut(slot)?.take()?;
        self.by_id.remove(&connection.place.id);
        // The slot may soon belong to another connection.
        self.last.set(None);
        self.free.push(slot);
        Some(connection)
    }

    pub(super) fn slot_of(&self, id: ConnectionId) -> Option<usize> {
        if let Some((last, slot)) = self.last.get()
            && last == id
        {
            return Some(slot);
        }
        let slot = *self.by_id.get(&id)?;
        self.last.set(Some((id, slot)));
        Some(slot)
    }

    pub(super) fn get(&self, slot: usize) -> Option<&WarrenConnection> {
        self.slots.get(slot)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut WarrenConnection> {
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &WarrenConnection> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        // Does not borrow the table, so that the caller may change connections during the iteration.
        0..self.slots.len()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}
