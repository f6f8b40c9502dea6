//! Compacts maps and sets. Inserting entries one by one leaves nodes half empty. Rebuilding a collection from its sorted content
//! fills the nodes.

/// Fills the nodes of a map or set.
pub(crate) fn compact<C: Default + IntoIterator + FromIterator<C::Item>>(collection: &mut C) {
    *collection = std::mem::take(collection).into_iter().collect();
}
