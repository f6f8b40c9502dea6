//! `warren fleet recover`.

use warren_fleet_link::ExitId;

use super::store::{MapStore, at_once};
use crate::commands::recover::recoveries;
use crate::keys::Keys;
use crate::link::read;
use crate::meta::{Meta, check};
use crate::recovery::{Age, Basis};
use crate::snapshot::Snapshot;
use crate::store::recovering::Recovering;
use crate::store::restored::recover_with;

/// What a recovery has reported.
pub(super) struct Recovered {
    /// The names of clients that could not be put back.
    pub(super) left_out: Vec<String>,
    /// The exits that were not put back.
    pub(super) exits_left_out: Vec<ExitId>,
    /// Whether the copy was newer than everything in the store.
    pub(super) is_newer: bool,
}

/// Recovers the store from an exit's copy. Returns `None` if this exit finds nothing wrong with the store, or may not recover it.
pub(super) fn recover(store: &mut MapStore, keys: &Keys, me: &ExitId, copy: &Snapshot) -> Option<Recovered> {
    let found = store.find(keys, me);
    if check(keys.name_of_fleet(), Some(&copy.position), &found).is_ok() {
        return None;
    }
    let contents = read(keys, None, &copy.pairs);
    if contents.removed.get(me).is_some_and(|it| !it.is_of_another(copy.position.membership)) {
        return None;
    }
    let meta = found.meta?;
    let age = Age::of(copy.meta.epoch, meta.epoch);
    let newest = store.pairs.values().map(|(_, modified)| *modified).max().unwrap_or(0);
    let basis = Basis::of_command(age, copy.revision, Some(newest), true);
    let own = (me, copy.position.membership);
    let mut store = at_once(Recovering::begin(store, keys, me, &meta)).ok()?;
    let (brought, changes) = at_once(recover_with(&mut store, keys, own, &contents, basis)).ok()?;
    let recoveries = recoveries(copy, &meta, age, newest);
    let epoch = meta.epoch.max(copy.position.epoch) + 1;
    at_once(store.end(keys, &Meta { epoch, recoveries, ..meta })).ok()?;
    let (left_out, exits_left_out) = (brought.left_out, changes.left_out);
    Some(Recovered { left_out, exits_left_out, is_newer: basis.is_newer })
}
