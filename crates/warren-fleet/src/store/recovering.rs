//! The store as one recovery sees it. As soon as another recovery begins or ends, this one writes nothing more.

use warren_fleet_link::ExitId;

use super::{ReadExits, Transact};
use crate::keys::{Key, Keys};
use crate::link::{Pair, Transaction};
use crate::meta::{Found, Meta};
use crate::recovery::ExitsInStore;
use crate::transaction::Expected;

/// A recovery that is under way.
pub(crate) struct Recovering<'a, S> {
    store: &'a mut S,
    /// The fleet's agreement when the recovery began, and its key.
    agreement: (String, Vec<u8>),
    /// The key that the latest recovery writes when it begins, and the revision at which this one has written it.
    mark: (String, i64),
}

/// Another recovery has begun or ended.
#[derive(Debug, thiserror::Error)]
#[error(
    "somebody else is recovering the store, or has just done so; `warren fleet status` shows whether the exits use it"
)]
pub(crate) struct Overtaken;

impl<'a, S: Transact> Recovering<'a, S> {
    /// Begins a recovery at an exit. `meta` is the store's agreement. An earlier recovery that is still under way fails.
    ///
    /// # Errors
    /// If the store does not answer, or has another agreement by now.
    pub(crate) async fn begin(
        store: &'a mut S,
        keys: &Keys,
        me: &ExitId,
        meta: &Meta,
    ) -> anyhow::Result<Self> {
        let (agreement, mark) = ((keys.name(&Key::Meta), serde_json::to_vec(meta)?), keys.recovering());
        let transaction = Transaction {
            expected: [(agreement.0.clone(), Expected::Value(agreement.1.clone()))].into(),
            then: [(mark.clone(), Some(me.as_str().into()))].into(),
            ..Transaction::default()
        };
        let began = store.transact(&transaction).await?.ok_or(Overtaken)?;
        Ok(Self { store, agreement, mark: (mark, began) })
    }

    /// Checks that no other recovery has begun or ended since this one began. Changes that do not go through [`Transact::transact`] need
    /// this check.
    ///
    /// # Errors
    /// If one has, or the store does not answer.
    pub(crate) async fn check(&mut self) -> anyhow::Result<()> {
        let transaction = self.guarded(Transaction::default());
        self.store.transact(&transaction).await?.ok_or(Overtaken)?;
        Ok(())
    }

    /// Adds the condition that no other recovery has begun or ended.
    fn guarded(&self, mut transaction: Transaction) -> Transaction {
        let ((agreement, before), (mark, began)) = (&self.agreement, &self.mark);
        transaction.expected.insert(agreement.clone(), Expected::Value(before.clone()));
        transaction.expected.insert(mark.clone(), Expected::Modified(*began));
        transaction
    }

    /// Ends the recovery: begins a new epoch, so that all links learn that the store was recovered. In the same transaction, deletes what
    /// the backup may contain although it was over before the store was lost: tickets, and the records of sessions. Links write the
    /// records of their own sessions again.
    ///
    /// # Errors
    /// If the store does not answer, or another recovery has begun.
    pub(crate) async fn end(&mut self, keys: &Keys, after: &Meta) -> anyhow::Result<()> {
        let agreement = (self.agreement.0.clone(), Some(serde_json::to_vec(after)?));
        let transaction = Transaction {
            then: [agreement, (self.mark.0.clone(), None)].into(),
            cleared: vec![keys.tickets(), keys.sessions()],
            ..Transaction::default()
        };
        self.transact(&transaction).await?.ok_or(Overtaken)?;
        Ok(())
    }
}

impl<S: Transact> Transact for Recovering<'_, S> {
    async fn all(&mut self, keys: &Keys) -> anyhow::Result<(i64, Vec<Pair>)> {
        self.store.all(keys).await
    }

    async fn some(&mut self, key: &str, prefix: &str) -> anyhow::Result<Vec<Pair>> {
        self.store.some(key, prefix).await
    }

    async fn transact(&mut self, transaction: &Transaction) -> anyhow::Result<Option<i64>> {
        let transaction = self.guarded(transaction.clone());
        let done = self.store.transact(&transaction).await?;
        if done.is_none() {
            self.check().await?;
        }
        Ok(done)
    }
}

impl<S: ReadExits> ReadExits for Recovering<'_, S> {
    async fn exits(&mut self, keys: &Keys) -> anyhow::Result<ExitsInStore> {
        self.store.exits(keys).await
    }

    async fn found(&mut self, keys: &Keys, me: &ExitId) -> anyhow::Result<Found> {
        self.store.found(keys, me).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exits::{Member, Removed};
    use crate::link::Contents;
    use crate::link::tests::meta;
    use crate::recovery::{Age, Basis};
    use crate::simulation::store::{MapStore, at_once};
    use crate::store::restored::recover_with;

    fn exit(name: &str) -> ExitId {
        ExitId::try_from(name.to_owned()).unwrap()
    }

    /// A store with its agreement, a ticket, a session, and exit c with its second membership.
    fn store(keys: &Keys) -> MapStore {
        let mut store = MapStore::new(0, 1);
        let member = Member { membership: Some(2), ..Member::default() };
        let values = [
            (keys.name(&Key::Meta), serde_json::to_vec(&meta()).unwrap()),
            (keys.name(&Key::Member(exit("c"))), serde_json::to_vec(&member).unwrap()),
            (keys.ticket("digest"), b"b".to_vec()),
            (keys.name(&Key::Session(crate::link::tests::key(1))), b"{}".to_vec()),
            (keys.client_name("anna"), b"x".to_vec()),
        ];
        let then = values.map(|(key, value)| (key, Some(value))).into();
        store.apply(&Transaction { then, ..Transaction::default() });
        store
    }

    fn names(store: &MapStore) -> Vec<String> {
        store.pairs.keys().filter_map(|key| key.strip_prefix("/warren/home/").map(str::to_owned)).collect()
    }

    #[test]
    fn the_end_of_a_recovery_ends_tickets_and_sessions_of_the_backup() {
        let keys = Keys::new("home");
        let mut store = store(&keys);
        let after = Meta { epoch: 2, ..meta() };
        let mut recovering = at_once(Recovering::begin(&mut store, &keys, &exit("a"), &meta())).unwrap();
        at_once(recovering.end(&keys, &after)).unwrap();
        assert_eq!(names(&store), ["mb/c", "meta", "na/anna"]);
        assert_eq!(store.find(&keys, &exit("a")).meta, Some(after));
    }

    #[test]
    fn a_recovery_that_another_one_overtakes_changes_nothing_more() {
        let keys = Keys::new("home");
        let copy = || {
            // This copy is older than the second membership of c, and knows the end of the first one.
            let ended = Removed { at: 80, membership: Some(1), ..Removed::default() };
            Contents { removed: [(exit("c"), ended)].into(), ..Contents::default() }
        };
        let basis = Basis::of_command(Age::Same, 90, Some(50), true);
        let recover = |store: &mut Recovering<'_, MapStore>| {
            at_once(recover_with(store, &keys, (&exit("a"), Some(7)), &copy(), basis)).map(drop)
        };
        // Whether the other recovery has also ended.
        for is_ended in [false, true] {
            let mut store = store(&keys);
            let mut first = at_once(Recovering::begin(&mut store, &keys, &exit("a"), &meta())).unwrap();
            let mut second =
                at_once(Recovering::begin(&mut *first.store, &keys, &exit("b"), &meta())).unwrap();
            if is_ended {
                at_once(second.end(&keys, &Meta { epoch: 2, ..meta() })).unwrap();
            }
            let error = recover(&mut first).unwrap_err();
            assert!(error.is::<Overtaken>(), "{error:#}");
            assert!(at_once(first.end(&keys, &meta())).unwrap_err().is::<Overtaken>());
            assert!(names(&store).contains(&"mb/c".to_owned()), "{is_ended}");
            let begun = at_once(Recovering::begin(&mut store, &keys, &exit("a"), &meta())).is_ok();
            assert_eq!(begun, !is_ended, "a recovery that has not begun finds out as well");
        }
        // An earlier release of this command has ended a recovery, so only the agreement differs.
        let mut other = store(&keys);
        let mut first = at_once(Recovering::begin(&mut other, &keys, &exit("a"), &meta())).unwrap();
        at_once(first.check()).unwrap();
        let after = serde_json::to_vec(&Meta { epoch: 2, ..meta() }).unwrap();
        let then = [(keys.name(&Key::Meta), Some(after))].into();
        first.store.apply(&Transaction { then, ..Transaction::default() });
        assert!(recover(&mut first).unwrap_err().is::<Overtaken>());
        assert!(at_once(first.check()).unwrap_err().is::<Overtaken>());
        // The control: without another recovery.
        let mut store = store(&keys);
        let mut alone = at_once(Recovering::begin(&mut store, &keys, &exit("a"), &meta())).unwrap();
        recover(&mut alone).unwrap();
        assert!(!names(&store).contains(&"mb/c".to_owned()));
    }
}
