//! How an exit is taken out of its fleet, and how it is added again after a recovery.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::bail;
use warren_fleet_link::ExitId;

use crate::exits::{Member, Removal, Removed, milliseconds};
use crate::keys::{Key, Keys};
use crate::link::Transaction;
use crate::store::{Transact, ended, get};
use crate::transaction::Expected;
use crate::users::Grant;

/// How often a forced removal is tried if the exit's link keeps writing the exit's value. A link writes the value only when it changes.
const ROUNDS: usize = 5;

/// The shortest time in seconds that an exit serves without the store, whatever its `max_staleness` (`SHORTEST` in
/// warren-exit/src/fleet/serving.rs).
const SHORTEST_SERVING: i64 = 3;

/// How many seconds longer an exit's clients may be served after that. They have two seconds to leave (`LEAVING` there); the rest is for
/// clocks that differ a little.
const LEAVING: i64 = 5;

/// Makes an exit a member of its fleet again, after a recovery from a backup that is older than its membership. If the backup has an
/// earlier membership of the exit, the present one replaces it. Does nothing if the present membership was ended.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn put_back(
    store: &mut impl Transact,
    keys: &Keys,
    exit: &ExitId,
    member: &Member,
) -> anyhow::Result<()> {
    let [name, end] = [Key::Member(exit.clone()), Key::RemovedExit(exit.clone())].map(|key| keys.name(&key));
    let removed = ended(store, keys, exit).await?;
    if removed.is_some_and(|removed| !removed.is_of_another(member.membership)) {
        return Ok(());
    }
    let found = get(store, &name).await?;
    let stored = found.as_ref().and_then(|pair| pair.parse::<Member>("exit"));
    let renewed = match stored {
        Some(stored) => Member { membership: member.membership.or(stored.membership), ..stored },
        None => member.clone(),
    };
    if removed.is_none() && found.as_ref().and_then(|pair| pair.parse("exit")) == Some(renewed.clone()) {
        return Ok(());
    }
    // In the meantime, another link may have added the exit, or an operator may have removed it.
    let expected = [
        (end.clone(), Expected::Modified(removed.map_or(0, |removed| removed.at))),
        (name.clone(), Expected::Modified(found.map_or(0, |pair| pair.modified))),
    ];
    let then = [(end, None), (name, Some(serde_json::to_vec(&renewed)?))];
    store
        .transact(&Transaction { expected: expected.into(), then: then.into(), ..Transaction::default() })
        .await?;
    Ok(())
}

/// Confirms in the store that a removed exit stops serving. Returns whether this is news to the store. `own`: the number of the membership
/// that has ended, if it is known. A removal of another membership is left alone.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn confirm_removal(
    store: &mut impl Transact,
    keys: &Keys,
    exit: &ExitId,
    own: Option<u64>,
) -> anyhow::Result<bool> {
    let key = keys.name(&Key::RemovedExit(exit.clone()));
    let Some(pair) = get(store, &key).await? else { return Ok(false) };
    let Some(removed) = pair.removed().filter(|removed| !removed.is_of_another(own)) else {
        return Ok(false);
    };
    let Some(removal) = removed.removal.filter(|removal| !removal.has_stopped) else { return Ok(false) };
    let stopped = Removed { removal: Some(Removal { has_stopped: true, ..removal }), ..removed };
    // The exit may join again in the meantime.
    let expected = BTreeMap::from([(key.clone(), Expected::Modified(pair.modified))]);
    let then = BTreeMap::from([(key, Some(stopped.value()?))]);
    Ok(store.transact(&Transaction { expected, then, ..Transaction::default() }).await?.is_some())
}

/// Takes an exit out of the fleet, and orders it to stop serving. Returns whether it was a member.
///
/// # Errors
/// If the exit is alive and `is_forced` is not set.
pub(crate) async fn take_out(
    store: &mut impl Transact,
    keys: &Keys,
    exit: &ExitId,
    is_forced: bool,
) -> anyhow::Result<bool> {
    let [member, heartbeat] =
        [Key::Member(exit.clone()), Key::Heartbeat(exit.clone())].map(|key| keys.name(&key));
    for _ in 0..if is_forced { ROUNDS } else { 1 } {
        let Some(pair) = get(store, &member).await? else { return Ok(false) };
        let mut transaction = leaving(keys, exit, end_of(pair.parse("exit")))?;
        transaction.expected.insert(member.clone(), Expected::Modified(pair.modified));
        if !is_forced {
            transaction.expected.insert(heartbeat.clone(), Expected::Modified(0));
        }
        if store.transact(&transaction).await?.is_some() {
            return Ok(true);
        }
    }
    if get(store, &member).await?.is_none() {
        return Ok(false);
    }
    match is_forced {
        true => {
            bail!("{exit} was not removed, because its entry in the store keeps changing; run this again")
        }
        false => {
            bail!(
                "{exit} serves clients now, or has just changed; drain it and stop it on its host, then run this again with --stopped; or use --force"
            )
        }
    }
}

/// The end of a membership by an operator. An exit that does not hear of it may serve until its `max_staleness`, counted from now, is over
/// and its clients have left. If the exit's value in the store cannot be read, the exit may serve for good.
fn end_of(member: Option<Member>) -> Removed {
    let Some(member) = member else {
        return Removed { removal: Some(Removal { until: None, has_stopped: false }), ..Removed::default() };
    };
    let seconds = member.max_staleness.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
    let until = seconds.map(|seconds| {
        let serving = seconds.max(SHORTEST_SERVING).saturating_add(LEAVING);
        (milliseconds(SystemTime::now()) / 1_000).saturating_add(serving)
    });
    let removal = Removal { until, has_stopped: member.serves_nobody() };
    Removed { at: 0, removal: Some(removal), membership: member.membership }
}

/// Returns the changes that take an exit out of the fleet. The exit stays out until it joins with a new ticket. Its etcd user
/// stays until a link or command that may remove users removes this user. `removed` says whether the exit must stop serving.
pub(crate) fn leaving(keys: &Keys, exit: &ExitId, removed: Removed) -> anyhow::Result<Transaction> {
    let mut then: BTreeMap<_, _> = keys.of_exit(exit).map(|key| (key, None)).into();
    then.insert(keys.name(&Key::RemovedExit(exit.clone())), Some(removed.value()?));
    // From this grant, a link that may remove users knows that the exit's user must be removed.
    then.insert(keys.grant(exit), Some(serde_json::to_vec(&Grant::default())?));
    // An exit can leave a fleet only after `init` has completed it.
    then.insert(keys.beginning(), None);
    Ok(Transaction { then, ..Transaction::default() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warren_session::PublicKey;

    use super::*;
    use crate::link::Pair;
    use crate::simulation::store::{MapStore, at_once};

    #[test]
    fn only_an_exit_that_was_never_linked_counts_as_stopped_when_it_is_removed() {
        let linked = Member { key: Some(PublicKey([1; 32])), max_staleness: Some(60), ..Member::default() };
        let now = milliseconds(SystemTime::now()) / 1_000;
        let of = |member| end_of(member).removal.unwrap();
        let removal = of(Some(linked.clone()));
        assert!(!removal.has_stopped && (now + 65..now + 70).contains(&removal.until.unwrap()));
        // An exit serves for three seconds even with "0", and its clients have two more to leave.
        let shortest = of(Some(Member { max_staleness: Some(0), ..linked.clone() }));
        assert!(shortest.may_serve(SystemTime::now() + Duration::from_secs(5)));
        assert!(!shortest.may_serve(SystemTime::now() + Duration::from_secs(15)), "the control");
        let never = Member { max_staleness: None, ..linked };
        assert_eq!(of(Some(never)), Removal { until: None, has_stopped: false });
        assert_eq!(of(None), Removal { until: None, has_stopped: false }, "its value cannot be read");
        assert!(of(Some(Member::default())).has_stopped);
        let brings = Member { brings: true, ..Member::joining_as(7) };
        let stored: Member = serde_json::from_slice(&serde_json::to_vec(&brings).unwrap()).unwrap();
        assert_eq!(of(Some(stored)), Removal { until: None, has_stopped: false }, "it serves its clients");
    }

    /// A store in which the exit's link writes its own value before each of the next transactions.
    struct Busy {
        store: MapStore,
        key: String,
        writes: usize,
    }

    impl Transact for Busy {
        async fn all(&mut self, keys: &Keys) -> anyhow::Result<(i64, Vec<Pair>)> {
            self.store.all(keys).await
        }

        async fn some(&mut self, key: &str, prefix: &str) -> anyhow::Result<Vec<Pair>> {
            self.store.some(key, prefix).await
        }

        async fn transact(&mut self, transaction: &Transaction) -> anyhow::Result<Option<i64>> {
            if self.writes > 0 {
                self.writes -= 1;
                // As `Link::heartbeat` does.
                let expected = BTreeMap::from([(self.key.clone(), Expected::Present)]);
                let then = BTreeMap::from([(self.key.clone(), Some(b"{\"key\":null}".to_vec()))]);
                self.store.apply(&Transaction { expected, then, ..Transaction::default() });
            }
            self.store.transact(transaction).await
        }
    }

    #[test]
    fn a_forced_removal_leaves_no_membership_while_the_exits_link_writes_it() {
        let (keys, exit) = (Keys::new("home"), ExitId::try_from("b".to_owned()).unwrap());
        let key = keys.name(&Key::Member(exit.clone()));
        let busy = |writes| {
            let mut store = MapStore::new(0, 1);
            let then = BTreeMap::from([(key.clone(), Some(b"{\"key\":null}".to_vec()))]);
            store.apply(&Transaction { then, ..Transaction::default() });
            Busy { store, key: key.clone(), writes }
        };
        for (writes, is_forced, is_done) in [(2, true, true), (0, false, true), (2, false, false)] {
            let mut busy = busy(writes);
            let taken = at_once(take_out(&mut busy, &keys, &exit, is_forced));
            assert_eq!(taken.as_ref().ok(), is_done.then_some(&true), "{writes} {is_forced}: {taken:?}");
            // The link writes once more.
            busy.writes = 1;
            let _ = at_once(busy.transact(&Transaction::default()));
            assert_eq!(busy.store.pairs.contains_key(&key), !is_done, "{writes} {is_forced}");
        }
    }

    #[test]
    fn an_exit_is_put_back_with_its_present_membership_unless_it_was_removed_from_that_one() {
        let (keys, exit) = (Keys::new("home"), ExitId::try_from("b".to_owned()).unwrap());
        let [name, ended] =
            [Key::Member(exit.clone()), Key::RemovedExit(exit.clone())].map(|key| keys.name(&key));
        let member = |membership| Member { max_staleness: Some(60), membership, ..Member::default() };
        // The membership in the store, the one that has ended, and the result with membership 2.
        for (stored, removed, expected) in [
            (None, None, Some(2)),
            (Some(1), None, Some(2)),
            (Some(2), None, Some(2)),
            (None, Some(1), Some(2)),
            (Some(1), Some(1), Some(2)),
            (None, Some(2), None),
        ] {
            let mut store = MapStore::new(0, 1);
            let values = [
                (name.clone(), stored.map(|number| serde_json::to_vec(&member(Some(number))).unwrap())),
                (
                    ended.clone(),
                    removed.map(|membership| {
                        Removed { membership: Some(membership), ..Removed::default() }.value().unwrap()
                    }),
                ),
            ];
            store.apply(&Transaction { then: values.into(), ..Transaction::default() });
            at_once(put_back(&mut store, &keys, &exit, &member(Some(2)))).unwrap();
            let found =
                at_once(get(&mut store, &name)).unwrap().and_then(|pair| pair.parse::<Member>("exit"));
            assert_eq!(found, expected.map(|number| member(Some(number))), "{stored:?} {removed:?}");
            assert_eq!(store.pairs.contains_key(&ended), expected.is_none(), "{stored:?} {removed:?}");
        }
    }
}
