//! The issued invitations, indexed by name, by the key that used them, and by expiry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::Invitation;
use crate::PublicKey;
use crate::compact::compact;
use crate::invite::TokenDigest;

/// Invitations by token. Neither a look-up nor a change visits all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Invitations {
    by_token: BTreeMap<TokenDigest, Invitation>,
    unused: BTreeSet<(String, TokenDigest)>,
    used: BTreeSet<(PublicKey, TokenDigest)>,
    by_expiry: BTreeSet<(SystemTime, TokenDigest)>,
}

impl Invitations {
    pub(super) const fn new() -> Self {
        Self {
            by_token: BTreeMap::new(),
            unused: BTreeSet::new(),
            used: BTreeSet::new(),
            by_expiry: BTreeSet::new(),
        }
    }

    /// Sets or deletes the invitation of a token. Returns the previous one.
    pub(super) fn put(&mut self, token: TokenDigest, invitation: Option<Invitation>) -> Option<Invitation> {
        let before = self.by_token.remove(&token);
        if let Some(before) = &before {
            self.by_expiry.remove(&(before.expires, token));
            match before.used_by {
                Some(key) => self.used.remove(&(key, token)),
                None => self.unused.remove(&(before.name.clone(), token)),
            };
        }
        if let Some(invitation) = invitation {
            self.by_expiry.insert((invitation.expires, token));
            match invitation.used_by {
                Some(key) => self.used.insert((key, token)),
                None => self.unused.insert((invitation.name.clone(), token)),
            };
            self.by_token.insert(token, invitation);
        }
        before
    }

    /// Does the same as [`super::table::ClientTable::compact`].
    pub(super) fn compact(&mut self) {
        compact(&mut self.by_token);
        compact(&mut self.unused);
        compact(&mut self.used);
        compact(&mut self.by_expiry);
    }

    pub(super) fn get(&self, token: &TokenDigest) -> Option<&Invitation> {
        self.by_token.get(token)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&TokenDigest, &Invitation)> {
        self.by_token.iter()
    }

    /// The unused invitations whose names come after `name`, sorted by name.
    pub(super) fn unused_after(&self, name: &str) -> impl Iterator<Item = &Invitation> {
        let from = (name.to_owned(), TokenDigest::LOWEST);
        let after = self.unused.range(from..).skip_while(move |(other, _)| other == name);
        after.filter_map(|(_, token)| self.by_token.get(token))
    }

    /// The tokens of a name's unused invitations.
    pub(super) fn unused_of(&self, name: &str) -> Vec<TokenDigest> {
        // The set is sorted by name, then by token. The range starts at the lowest entry that the name can have.
        let from = (name.to_owned(), TokenDigest::LOWEST);
        self.unused.range(from..).take_while(|(other, _)| other == name).map(|(_, token)| *token).collect()
    }

    /// The tokens that enrolled a key.
    pub(super) fn used_by(&self, key: PublicKey) -> Vec<TokenDigest> {
        let from = (key, TokenDigest::LOWEST);
        self.used.range(from..).take_while(|(by, _)| *by == key).map(|(_, token)| *token).collect()
    }

    /// The tokens that have expired by `now`.
    pub(super) fn expired_by(&self, now: SystemTime) -> Vec<TokenDigest> {
        self.by_expiry.iter().take_while(|(expires, _)| *expires <= now).map(|(_, token)| *token).collect()
    }
}
