//! Compacts maps and sets. Inserting entries one by one leaves nodes half empty. Rebuilding the map from its sorted content fills
//! the nodes.

use std::collections::{BTreeMap, BTreeSet};

/// Fills a map's nodes.
pub(crate) fn compact<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

/// Fills a set's nodes.
pub(crate) fn compact_set<T: Ord>(set: &mut BTreeSet<T>) {
    *set = std::mem::take(set).into_iter().collect();
}
