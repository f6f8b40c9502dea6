//! Pages of an exit's clients, invitations and removed keys.

use std::time::SystemTime;

use warren_session::clients::{Client, ClientRegistry};

use warren_control::{ClientView, InvitationView, Page, PageQuery, RemovedView};

/// A page of the clients, ordered by name.
pub fn clients(
    registry: &ClientRegistry,
    query: &PageQuery,
    view: impl FnMut(&Client) -> ClientView,
) -> Page<ClientView> {
    let rows = registry.page(query.after.as_deref(), query.name.as_deref().unwrap_or_default());
    query.page(rows, |client| client.name.clone(), view)
}

/// A page of the invitations that nobody has used yet, ordered by name.
pub fn invitations(registry: &ClientRegistry, query: &PageQuery) -> Page<InvitationView> {
    let after = query.after.as_deref().unwrap_or_default();
    let open = registry.open_invitations(SystemTime::now()).into_iter();
    let rows = open.filter(|open| open.name.as_str() > after && query.has(&open.name));
    query.page(rows, |open| open.name.clone(), InvitationView::of)
}

/// Whether an unused invitation has this name.
pub fn is_invited(registry: &ClientRegistry, name: &str) -> bool {
    registry.open_invitations(SystemTime::now()).into_iter().any(|open| open.name == name)
}

/// A page of removed keys, ordered by key.
pub fn removed(registry: &ClientRegistry, query: &PageQuery) -> Page<RemovedView> {
    let after = query.after.as_deref().unwrap_or_default();
    let keys = registry.removed_keys().into_iter().filter(|removed| query.has(&removed.name));
    let mut rows: Vec<_> = keys.map(|removed| (removed.public_key.to_string(), removed)).collect();
    // In the order of the keys' texts, because a page begins after a text.
    rows.retain(|(key, _)| key.as_str() > after);
    rows.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    query.page(rows.into_iter(), |(key, _)| key.clone(), |(_, removed)| RemovedView::of(removed))
}
