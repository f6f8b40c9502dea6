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
        let (fleet, membership) = (meta.id.clone(), link.membership(saved));
        Some(Position { fleet, epoch: meta.epoch, cluster: *cluster, revision, own, membership })
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
    }

    /// Records that the link has read everything.
    pub(crate) fn has_read_all(&mut self) {
        self.is_live = true;
    }

    /// Records that the store says that this exit was removed. Returns the position to save, if the link has not read the store yet.
    /// Otherwise the link's next copy has the removal.
    pub(crate) fn was_removed(&mut self, removed: Removed) -> Option<Position> {
        let position =
            self.position.as_mut().filter(|position| !self.is_live && position.own < removed.at)?;
        position.own = removed.at;
        Some(position.clone())
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
