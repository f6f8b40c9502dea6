//! Pages of an exit's clients, invitations and removed keys.

use std::time::SystemTime;

use warren_session::PublicKey;
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
    let rows = registry.open_after(after, SystemTime::now()).filter(|open| query.has(&open.name));
    query.page(rows, |open| open.name.clone(), InvitationView::of)
}

/// Whether an unused invitation has this name.
pub fn is_invited(registry: &ClientRegistry, name: &str) -> bool {
    registry.is_invited(name, SystemTime::now())
}

/// A page of the removed keys, ordered by key. `after` is a key as text. With any other text, the first page is returned.
pub fn removed(registry: &ClientRegistry, query: &PageQuery) -> Page<RemovedView> {
    // `unchecked`, because a registry may contain keys that are not points of the curve.
    let after = query.after.as_deref().and_then(|text| PublicKey::unchecked(text).ok());
    let rows = registry.removed_after(after).filter(|removed| query.has(&removed.name));
    query.page(rows, |removed| removed.public_key.to_string(), RemovedView::of)
}
