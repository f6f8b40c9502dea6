//! The keys that a client accepts for one exit: those that its profile pins, and those that the exit has announced since.
//!
//! An exit names its keys in a session, so a key that the client already accepts vouches for each new one. The client accepts the
//! new key **beside** the old ones. Only a session that the new key has opened can retire an older one. A retired key is never
//! accepted again.

use serde::{Deserialize, Serialize};

use crate::PublicKey;

/// Maximum number of keys that were learnt and are not retired yet.
// Two, because a session may stay open during a whole rotation and then announce the key of the next rotation.
const MOST_LEARNT: usize = 2;

/// Maximum number of retired keys that are remembered, besides those that the profile pins.
const MOST_RETIRED: usize = 16;

/// The keys that a client accepts for one exit.
///
/// ```
/// use warren_session::PublicKey;
/// use warren_session::client::{ExitKeys, KeyNews};
///
/// let [old, new] = [PublicKey([1; 32]), PublicKey([2; 32])];
/// let mut keys = ExitKeys::new(vec![old]);
/// // The exit's operator begins to rotate the key.
/// assert_eq!(keys.told(&[new, old], old), [KeyNews::Learnt(new)]);
/// assert_eq!(keys.accepted(), [new, old]);
/// // The operator retires the old key. The client believes that in a session with the new one.
/// assert_eq!(keys.told(&[new], old), []);
/// assert_eq!(keys.told(&[new], new), [KeyNews::Proven(new), KeyNews::Retired(old)]);
/// assert_eq!(keys.accepted(), [new]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExitKeys {
    /// The keys that the profile pins. Learnt keys count only as long as the pinned keys stay the same.
    pinned: Vec<PublicKey>,
    /// In the order in which they were learnt.
    learnt: Vec<LearntKey>,
    /// In the order in which they were retired.
    retired: Vec<PublicKey>,
}

/// A key that the exit has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LearntKey {
    key: PublicKey,
    /// The key that the exit had proven in the session in which it named this key.
    in_place_of: PublicKey,
    /// Whether the exit has shown that it has the key.
    proven: bool,
}

/// A change of an exit's keys, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyNews {
    /// The exit has named a new key, which is accepted from now on.
    Learnt(PublicKey),
    /// The exit has shown that it has a learnt key.
    Proven(PublicKey),
    /// The exit has retired this key, which is no longer accepted.
    Retired(PublicKey),
    /// The exit no longer names this key, and has never proven it.
    Withdrawn(PublicKey),
    /// The exit has named a key that was retired. The client does not accept the key.
    Refused(PublicKey),
    /// The exit has named a new key before it has proven the previous new key. The client does not accept the new key yet.
    TooMany(PublicKey),
}

impl ExitKeys {
    /// Makes the state of a client that knows only the keys of its profile.
    pub fn new(pinned: Vec<PublicKey>) -> Self {
        Self { pinned, learnt: Vec::new(), retired: Vec::new() }
    }

    /// Whether these keys were learnt with a profile that pins exactly `pinned`.
    pub fn is_of(&self, pinned: &[PublicKey]) -> bool {
        self.pinned == pinned
    }

    /// Whether anything was learnt beyond the profile.
    pub fn has_learnt(&self) -> bool {
        !self.learnt.is_empty() || !self.retired.is_empty()
    }

    /// Returns the keys that are accepted for the exit, the newest first. Never empty unless the profile pins none.
    pub fn accepted(&self) -> Vec<PublicKey> {
        let learnt = self.learnt.iter().rev().map(|learnt| learnt.key);
        learnt.chain(self.pinned.iter().copied().filter(|pinned| !self.is_retired(*pinned))).collect()
    }

    /// The learnt key that the exit has not proven yet.
    pub fn unproven(&self) -> Option<PublicKey> {
        self.learnt.iter().rev().find(|learnt| !learnt.proven).map(|learnt| learnt.key)
    }

    /// Handles the keys that the exit announces in a session whose connection has proven the key `by`. `keys` are all
    /// keys of the exit, the newest first. Returns the changes.
    pub fn told(&mut self, keys: &[PublicKey], by: PublicKey) -> Vec<KeyNews> {
        // A session may stay open after the key that opened it was retired.
        if !self.accepts(by) {
            return Vec::new();
        }
        let mut news = Vec::from_iter(self.shown(by));
        if let Some(withdrawn) = self.unproven().filter(|unproven| !keys.contains(unproven)) {
            self.learnt.retain(|learnt| learnt.key != withdrawn);
            news.push(KeyNews::Withdrawn(withdrawn));
        }
        // Keys are retired before new keys are learnt, because retiring a key may make room for a new one.
        if keys.contains(&by) {
            self.older_than(by).into_iter().filter(|old| !keys.contains(old)).for_each(|old| {
                self.retire(old);
                news.push(KeyNews::Retired(old));
            });
        }
        if let Some(newest) = keys.first().copied().filter(|newest| !self.accepts(*newest)) {
            news.push(self.learn(newest, by));
        }
        news
    }

    /// Records that the exit has opened a connection with a key.
    pub fn shown(&mut self, key: PublicKey) -> Option<KeyNews> {
        let learnt = self.learnt.iter_mut().find(|learnt| learnt.key == key && !learnt.proven)?;
        learnt.proven = true;
        Some(KeyNews::Proven(key))
    }

    fn learn(&mut self, key: PublicKey, by: PublicKey) -> KeyNews {
        if self.is_retired(key) {
            return KeyNews::Refused(key);
        }
        if self.learnt.len() >= MOST_LEARNT {
            return KeyNews::TooMany(key);
        }
        self.learnt.push(LearntKey { key, in_place_of: by, proven: false });
        KeyNews::Learnt(key)
    }

    /// Returns the accepted keys that are older than a learnt one: keys that were learnt earlier, and the keys that vouched for
    /// any of these.
    fn older_than(&self, key: PublicKey) -> Vec<PublicKey> {
        let Some(place) = self.learnt.iter().position(|learnt| learnt.key == key) else { return Vec::new() };
        let mut older: Vec<PublicKey> =
            self.learnt.iter().take(place + 1).flat_map(|learnt| [learnt.in_place_of, learnt.key]).collect();
        older.retain(|old| *old != key && self.accepts(*old));
        older.sort_unstable();
        older.dedup();
        older
    }

    fn retire(&mut self, key: PublicKey) {
        self.learnt.retain(|learnt| learnt.key != key);
        self.retired.push(key);
        // A retired key that the profile pins stays in the list. Without its entry, it would be accepted again.
        let is_forgettable = |retired: &PublicKey| !self.pinned.contains(retired);
        if self.retired.iter().filter(|retired| is_forgettable(retired)).count() > MOST_RETIRED
            && let Some(oldest) = self.retired.iter().position(is_forgettable)
        {
            self.retired.remove(oldest);
        }
    }

    fn accepts(&self, key: PublicKey) -> bool {
        self.learnt.iter().any(|learnt| learnt.key == key)
            || (self.pinned.contains(&key) && !self.is_retired(key))
    }

    fn is_retired(&self, key: PublicKey) -> bool {
        self.retired.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::KeyNews::{Learnt, Proven, Refused, Retired, TooMany, Withdrawn};
    use super::*;

    const fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    const OLD: PublicKey = key(1);
    const NEW: PublicKey = key(2);
    const NEXT: PublicKey = key(3);

    #[test]
    fn a_key_that_an_accepted_one_vouches_for_is_accepted_beside_it() {
        let mut keys = ExitKeys::new(vec![OLD]);
        assert_eq!(keys.told(&[NEW, OLD], OLD), [Learnt(NEW)]);
        assert_eq!((keys.accepted(), keys.unproven()), (vec![NEW, OLD], Some(NEW)));
        assert_eq!(keys.told(&[NEW, OLD], OLD), [], "saying it twice changes nothing");
        assert_eq!(keys.shown(NEW), Some(Proven(NEW)));
        assert_eq!((keys.shown(NEW), keys.unproven()), (None, None));
        assert_eq!(keys.accepted(), [NEW, OLD], "the old key stays until it is retired");
    }

    #[test]
    fn nobody_vouches_with_a_key_that_is_not_accepted() {
        let mut keys = ExitKeys::new(vec![OLD]);
        assert_eq!(keys.told(&[NEXT, NEW], NEW), []);
        assert_eq!(keys.accepted(), [OLD]);
    }

    #[test]
    fn an_old_key_is_retired_only_in_a_session_with_the_new_one() {
        let mut keys = rotated();
        assert_eq!(keys.told(&[NEW], OLD), []);
        assert_eq!(keys.accepted(), [NEW, OLD]);
        assert_eq!(keys.told(&[NEW, OLD], NEW), [], "the exit still has it");
        assert_eq!(keys.told(&[NEW], NEW), [Retired(OLD)]);
        assert_eq!(keys.accepted(), [NEW]);
    }

    #[test]
    fn a_retired_key_never_comes_back() {
        let mut keys = rotated();
        keys.told(&[NEW], NEW);
        assert_eq!(keys.told(&[OLD, NEW], NEW), [Refused(OLD)]);
        assert_eq!(keys.told(&[OLD], OLD), [], "nor does a session with it");
        assert_eq!(keys.accepted(), [NEW]);
    }

    #[test]
    fn a_thief_of_the_old_key_cannot_take_the_new_one_away() {
        let mut keys = rotated();
        assert_eq!(keys.told(&[OLD], OLD), []);
        assert_eq!(keys.accepted(), [NEW, OLD]);
    }

    #[test]
    fn a_key_that_the_exit_never_showed_is_forgotten_when_the_exit_takes_it_back() {
        let mut keys = ExitKeys::new(vec![OLD]);
        keys.told(&[NEW, OLD], OLD);
        assert_eq!(keys.told(&[OLD], OLD), [Withdrawn(NEW)]);
        assert_eq!(keys.accepted(), [OLD]);
        assert_eq!(keys.told(&[NEW, OLD], OLD), [Learnt(NEW)], "it was not retired");
    }

    #[test]
    fn a_client_that_missed_a_retirement_retires_both_keys_at_the_next_one() {
        let mut keys = rotated();
        assert_eq!(keys.told(&[NEXT, NEW], NEW), [Retired(OLD), Learnt(NEXT)]);
        assert_eq!(keys.told(&[NEXT], NEXT), [Proven(NEXT), Retired(NEW)]);
        assert_eq!(keys.accepted(), [NEXT]);
    }

    #[test]
    fn a_session_that_outlives_two_rotations_leaves_no_key_behind() {
        let mut keys = rotated();
        // The session was opened with the first key and is still open.
        assert_eq!(keys.told(&[NEXT, NEW], OLD), [Learnt(NEXT)]);
        assert_eq!(keys.told(&[NEXT], NEXT), [Proven(NEXT), Retired(OLD), Retired(NEW)]);
        assert_eq!(keys.accepted(), [NEXT]);
    }

    #[test]
    fn keys_pinned_for_later_stay() {
        let mut keys = ExitKeys::new(vec![NEXT, OLD]);
        assert_eq!(keys.told(&[OLD], OLD), []);
        keys.told(&[NEW, OLD], OLD);
        assert_eq!(keys.told(&[NEW], NEW), [Proven(NEW), Retired(OLD)]);
        assert_eq!(keys.accepted(), [NEW, NEXT]);
    }

    #[test]
    fn an_exit_that_names_key_after_key_gets_no_more_than_two_accepted() {
        let mut keys = rotated();
        assert_eq!(keys.told(&[NEXT, NEW, OLD], OLD), [Learnt(NEXT)]);
        assert_eq!(keys.told(&[key(4), NEXT], OLD), [TooMany(key(4))]);
        assert_eq!(keys.accepted(), [NEXT, NEW, OLD]);
    }

    #[test]
    fn a_hundred_rotations_leave_one_key_and_few_retired_ones() {
        let mut keys = ExitKeys::new(vec![key(0)]);
        for number in 1..=100 {
            keys.told(&[key(number), key(number - 1)], key(number - 1));
            keys.told(&[key(number)], key(number));
        }
        assert_eq!(keys.accepted(), [key(100)]);
        assert_eq!(keys.retired.len(), 1 + MOST_RETIRED);
        assert_eq!(keys.told(&[key(0), key(100)], key(100)), [Refused(key(0))]);
    }

    proptest! {
        /// Covers every exit that can open a session: each list arrives in a session with an accepted key.
        #[test]
        fn whatever_an_exit_says_somebody_is_accepted_and_no_retired_key(
            steps in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(0..6_u8, 1..3)), 0..60),
        ) {
            let pinned = vec![key(0), key(1)];
            let mut keys = ExitKeys::new(pinned.clone());
            let mut retired: Vec<PublicKey> = Vec::new();
            for (by, named) in steps {
                let accepted = keys.accepted();
                let by = *by.get(&accepted);
                let named: Vec<_> = named.into_iter().map(key).collect();
                for news in keys.told(&named, by) {
                    match news {
                        Retired(key) => {
                            prop_assert!(key != by && !named.contains(&key) && named.contains(&by));
                            prop_assert!(!pinned.contains(&by), "only a learnt key retires others");
                            retired.push(key);
                        }
                        Learnt(key) => prop_assert!(named.first() == Some(&key) && !retired.contains(&key)),
                        Withdrawn(key) => prop_assert!(key != by && !pinned.contains(&key)),
                        Refused(key) => prop_assert!(retired.contains(&key)),
                        Proven(key) => prop_assert!(key == by),
                        TooMany(_) => {}
                    }
                }
                prop_assert!(keys.accepts(by), "a key retires itself");
                let accepted = keys.accepted();
                prop_assert!(accepted.len() <= pinned.len() + MOST_LEARNT);
                prop_assert!(accepted.iter().all(|key| !retired.contains(key)));
            }
        }
    }

    /// A client that has learnt the new key and seen it.
    fn rotated() -> ExitKeys {
        let mut keys = ExitKeys::new(vec![OLD]);
        keys.told(&[NEW, OLD], OLD);
        keys.shown(NEW);
        keys
    }
}
