//! `warren fleet recover`, and the replay by a link that comes back to a recovered store.

use std::collections::BTreeMap;

use warren_fleet_link::ExitId;

use super::store::{MapStore, at_once};
use crate::commands::recover::recoveries;
use crate::keys::{Key, Keys};
use crate::link::{Transaction, read};
use crate::meta::{Found, Meta, Position, check};
use crate::recovery::{Age, Basis};
use crate::rows::Rows;
use crate::snapshot::Snapshot;
use crate::store::reopen::{Copy, reopen};
use crate::store::restored::bring_back;

/// Recovers the store from an exit's copy. Returns the names that could not be put back, or `None` if this exit finds nothing wrong with
/// the store.
pub(super) fn recover(
    store: &mut MapStore,
    keys: &Keys,
    me: &ExitId,
    copy: &Snapshot,
) -> Option<Vec<String>> {
    let found = store.find(keys, me);
    if check(keys.name_of_fleet(), Some(&copy.position), &found).is_ok() {
        return None;
    }
    let meta = found.meta?;
    let age = Age::of(copy.meta.epoch, meta.epoch);
    let newest = store.pairs.values().map(|(_, modified)| *modified).max().unwrap_or(0);
    let basis = Basis::of_command(age, copy.revision, Some(newest), true);
    let rows = read(keys, None, &copy.pairs).rows;
    let (brought, _) = at_once(bring_back(store, keys, &rows, basis)).ok()?;
    let recoveries = recoveries(copy, &meta, age, newest);
    let epoch = meta.epoch.max(copy.position.epoch) + 1;
    let value = serde_json::to_vec(&Meta { epoch, recoveries, ..meta }).ok()?;
    let then = BTreeMap::from([(keys.name(&Key::Meta), Some(value))]);
    store.apply(&Transaction { then, ..Transaction::default() });
    Some(brought.left_out)
}

/// Lets a link add the changes that only its copy has. Returns the names that could not be put back.
pub(super) fn replay(
    store: &mut MapStore,
    keys: &Keys,
    me: &ExitId,
    (position, rows): (&Position, &Rows),
    (meta, found): (&Meta, &Found),
) -> Vec<String> {
    let basis = Basis::of_link(position, meta, found);
    let (brought, stored) = at_once(bring_back(store, keys, rows, basis)).unwrap();
    let copy = Copy { me, position, rows };
    at_once(reopen(store, keys, copy, meta.epoch, (&stored, basis))).unwrap();
    brought.left_out
}
