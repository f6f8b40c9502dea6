//! Which store a link knows, and how far it has followed the store's history.

use crate::exits::Removed;
use crate::link::Link;
use crate::meta::{Meta, Position};
use crate::snapshot::Snapshot;

#[derive(Debug, Default)]
pub(crate) struct StoreHistory {
    /// The meta and cluster of the store that the link knows.
    known: Option<(Meta, u64)>,
    /// The link's position before this process connected to the store.
    position: Option<Position>,
    /// Whether this process has read the copy from the store, so that a watch can continue from there.
    is_live: bool,
}

impl StoreHistory {
    /// The history of a link that starts with a copy from disk, if there is one.
    pub(crate) fn resumed(snapshot: Option<&Snapshot>) -> Self {
        Self {
            known: snapshot.map(|snapshot| (snapshot.meta.clone(), snapshot.position.cluster)),
            position: snapshot.map(|snapshot| snapshot.position.clone()),
            is_live: false,
        }
    }

    /// Returns the link's position in the store's history.
    pub(crate) fn position(&self, link: &Link) -> Option<Position> {
        let (meta, cluster) = self.known.as_ref()?;
        if !self.is_live {
            return self.position.clone();
        }
        let (revision, own) = link.revisions();
        let saved = self.position.as_ref().and_then(|position| position.membership);
        let (fleet, membership, is_removed) = (meta.id.clone(), link.membership(saved), link.is_removed());
        Some(Position { fleet, epoch: meta.epoch, cluster: *cluster, revision, own, membership, is_removed })
    }

    /// Returns the position and the meta to keep on disk. `None` until everything is read.
    pub(crate) fn to_save(&self, link: &Link) -> Option<(Position, &Meta)> {
        let (meta, _) = self.known.as_ref().filter(|_| self.is_live)?;
        Some((self.position(link)?, meta))
    }

    /// Returns the revision from which a watch can continue.
    pub(crate) fn live_from(&self, link: &Link) -> Option<i64> {
        self.is_live.then(|| link.revisions().0)
    }

    /// Records the store that was found. If it has another history than the known one, everything is read again.
    pub(crate) fn found(&mut self, link: &Link, meta: Meta, cluster: u64) {
        let is_other = |(known, of): &(Meta, u64)| known.epoch != meta.epoch || *of != cluster;
        if self.known.as_ref().is_some_and(is_other) {
            self.must_read_all(link);
        }
        self.known = Some((meta, cluster));
        // The store may be used, so the exit is in the fleet.
        if let Some(position) = &mut self.position {
            position.is_removed = false;
        }
    }

    /// Records that the link has read everything.
    pub(crate) fn has_read_all(&mut self) {
        self.is_live = true;
    }

    /// Records that the store says that this exit must stop, with its removal if that is known. If the link has read the store, its next
    /// copy says so. Otherwise [`Self::removal`] must be saved.
    pub(crate) fn must_stop(&mut self, removed: Option<Removed>) {
        if let Some(position) = self.position.as_mut().filter(|_| !self.is_live) {
            position.is_removed = true;
            position.own = removed.map_or(position.own, |removed| removed.at.max(position.own));
        }
    }

    /// The position that says that this exit must stop, if the link has not read the store.
    pub(crate) fn removal(&self) -> Option<&Position> {
        self.position.as_ref().filter(|position| !self.is_live && position.is_removed)
    }

    /// Makes the next connection read everything again, because the changes since the latest event are no longer
    /// available, or belong to a new history. Until everything is read, the link's position does not change.
    pub(crate) fn must_read_all(&mut self, link: &Link) {
        self.position = self.position(link);
        self.is_live = false;
    }

    /// The epoch of the store that the link uses.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.known.as_ref().map(|(meta, _)| meta.epoch)
    }
}
