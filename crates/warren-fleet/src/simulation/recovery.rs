//! `warren fleet recover`.

use std::collections::BTreeMap;

use warren_fleet_link::ExitId;

use super::store::{MapStore, at_once};
use crate::commands::recover::recoveries;
use crate::keys::{Key, Keys};
use crate::link::{Transaction, read};
use crate::meta::{Meta, check};
use crate::recovery::{Age, Basis};
use crate::snapshot::Snapshot;
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
    let (brought, changes) = at_once(recover_with(store, keys, own, &contents, basis)).ok()?;
    let recoveries = recoveries(copy, &meta, age, newest);
    let epoch = meta.epoch.max(copy.position.epoch) + 1;
    let value = serde_json::to_vec(&Meta { epoch, recoveries, ..meta }).ok()?;
    let then = BTreeMap::from([(keys.name(&Key::Meta), Some(value))]);
    store.apply(&Transaction { then, ..Transaction::default() });
    let (left_out, exits_left_out) = (brought.left_out, changes.left_out);
    Some(Recovered { left_out, exits_left_out, is_newer: basis.is_newer })
}
