//! Puts missing data back into a restored store.

use std::collections::BTreeSet;

use anyhow::bail;
use warren_config::counted;
use warren_fleet_link::ExitId;
use warren_session::clients::{RowChange, RowId};
use warren_session::roster::{FollowedFleet, RosterNews, SignedRoster};

use super::{ReadExits, Transact, apply};
use crate::exits::Member;
use crate::keys::{Key, Keys};
use crate::link::{Contents, Transaction, rows_of};
use crate::membership::{leaving, put_back};
use crate::recovery::{
    Basis, ExitChanges, ExitsInStore, Removals, clients, exits, revocations, without_lease,
};
use crate::rows::{Rows, named};
use crate::store::get;
use crate::transaction::Expected;

/// How many times the store is compared with the copy, if others change the same rows in the meantime.
const ROUNDS: usize = 3;

/// If at most this many groups of rows conflict, the last attempt first tries them together, because their clients may have
/// exchanged names.
const MOST_TOGETHER: usize = 20;

/// What was put back, for the report.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) removed_keys: usize,
    /// The names of clients that the store had and that are removed again.
    pub(crate) cut_off: Vec<String>,
    pub(crate) used_invitations: usize,
    pub(crate) withdrawn_invitations: usize,
    pub(crate) new_clients: usize,
    pub(crate) changed_clients: usize,
    pub(crate) invitations: usize,
    /// The names of clients and invitations that could not be put back, because other clients have their names or addresses now.
    pub(crate) left_out: Vec<String>,
}

/// The effect of one group of rows.
enum Kind {
    RemovedKey(Option<String>),
    UsedInvitation,
    WithdrawnInvitation,
    NewClient,
    ChangedClient,
    Invitation,
}

impl Brought {
    fn add(&mut self, kind: Kind) {
        match kind {
            Kind::RemovedKey(name) => {
                self.removed_keys += 1;
                self.cut_off.extend(name);
            }
            Kind::UsedInvitation => self.used_invitations += 1,
            Kind::WithdrawnInvitation => self.withdrawn_invitations += 1,
            Kind::NewClient => self.new_clients += 1,
            Kind::ChangedClient => self.changed_clients += 1,
            Kind::Invitation => self.invitations += 1,
        }
    }
}

fn kind_of(group: &[RowChange], store: &Rows) -> Option<(RowId, Kind)> {
    let first = group.first()?;
    let id = first.id();
    let kind = match first {
        RowChange::Removed { key, .. } => {
            Kind::RemovedKey(store.client(*key).map(|client| client.name.clone()))
        }
        RowChange::Invitation { invitation: None, .. } => Kind::WithdrawnInvitation,
        RowChange::Invitation { invitation: Some(invitation), .. } if invitation.used_by.is_some() => {
            Kind::UsedInvitation
        }
        RowChange::Invitation { .. } => Kind::Invitation,
        RowChange::Client { .. } if store.has(id) => Kind::ChangedClient,
        RowChange::Client { .. } => Kind::NewClient,
    };
    Some((id, kind))
}

/// Puts back the rows that the store lacks: first removed keys and used invitations, then clients and open invitations.
///
/// Returns what was put back, and the rows of the store afterwards.
///
/// # Errors
/// If the store does not answer, or others change the same rows all the time.
pub(crate) async fn bring_back(
    client: &mut impl Transact,
    keys: &Keys,
    copy: &Rows,
    basis: Basis,
) -> anyhow::Result<(Brought, Rows)> {
    let mut brought = Brought::default();
    let mut store = Rows::default();
    for round in 1..=ROUNDS {
        let (_, pairs) = client.all(keys).await?;
        store = rows_of(keys, &pairs);
        // Removed keys come first. Otherwise a client that was removed could be put back.
        let revoked = revocations(copy, &store, basis);
        let unrevoked = apply_and_count(client, keys, &mut store, revoked, &mut brought).await?;
        let wanted = clients(copy, &store, basis);
        let refused = apply_and_count(client, keys, &mut store, wanted, &mut brought).await?;
        if unrevoked.is_empty() && refused.is_empty() {
            break;
        }
        // Another link may be putting back the same rows.
        if round < ROUNDS {
            continue;
        }
        if let Some(first) = unrevoked.first() {
            bail!(
                "{} cannot be stored; the first is {}; run this again",
                counted(unrevoked.len(), "removed key"),
                first.first().map(named).unwrap_or_default()
            );
        }
        last_attempt(client, keys, &mut store, refused, &mut brought).await?;
    }
    Ok((brought, store))
}

async fn apply_and_count(
    client: &mut impl Transact,
    keys: &Keys,
    store: &mut Rows,
    groups: Vec<Vec<RowChange>>,
    brought: &mut Brought,
) -> anyhow::Result<Vec<Vec<RowChange>>> {
    // The kinds are determined first, because `apply` changes `store`.
    let kinds: Vec<_> = groups.iter().filter_map(|group| kind_of(group, store)).collect();
    let refused = apply(client, keys, store, groups).await?;
    let failed: BTreeSet<RowId> = refused.iter().flatten().map(RowChange::id).collect();
    kinds.into_iter().filter(|(id, _)| !failed.contains(id)).for_each(|(_, kind)| brought.add(kind));
    Ok(refused)
}

/// Tries rows that conflict with others: first together, because their clients may have exchanged names, and then each without its
/// sticky addresses.
async fn last_attempt(
    client: &mut impl Transact,
    keys: &Keys,
    store: &mut Rows,
    refused: Vec<Vec<RowChange>>,
    brought: &mut Brought,
) -> anyhow::Result<()> {
    let mut left = refused;
    if (2..=MOST_TOGETHER).contains(&left.len()) {
        let kinds: Vec<_> = left.iter().filter_map(|group| kind_of(group, store)).collect();
        if apply(client, keys, store, vec![left.concat()]).await?.is_empty() {
            kinds.into_iter().for_each(|(_, kind)| brought.add(kind));
            return Ok(());
        }
    }
    let bare = |group: Vec<RowChange>| -> Vec<RowChange> {
        group.into_iter().map(|row| without_lease(&row).unwrap_or(row)).collect()
    };
    // A client without its sticky addresses gets new ones when it connects. So it is stored without them rather than left out.
    left = left.into_iter().map(bare).collect();
    let out = apply_and_count(client, keys, store, left, brought).await?;
    for row in out.iter().flatten() {
        let name = match row {
            RowChange::Client { client: Some(client), .. } => client.name.clone(),
            RowChange::Invitation { invitation: Some(invitation), .. } => invitation.name.clone(),
            RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => continue,
        };
        tracing::warn!(
            "{name} is not put back, because another client has its name or address now; if it is still wanted, enrol it again"
        );
        brought.left_out.push(name);
    }
    Ok(())
}

/// Recovers everything but the roster with a copy: exits, removed keys, clients and invitations. `me` is the exit that recovers, with
/// the number of its membership.
///
/// # Errors
/// As [`bring_back`].
pub(crate) async fn recover_with(
    store: &mut (impl Transact + ReadExits),
    keys: &Keys,
    (me, membership): (&ExitId, Option<u64>),
    copy: &Contents,
    basis: Basis,
) -> anyhow::Result<(Brought, ExitChanges)> {
    // Exits are removed first, so that no removed exit gets the clients that are put back.
    // The copy may contain the end of an earlier membership of this exit, which has joined again since.
    let is_back = copy.removed.get(me).is_some_and(|removed| removed.is_of_another(membership));
    let decide = |found: &ExitsInStore| {
        let mut changes = exits(&copy.members, &copy.removed, found, basis);
        changes.removed.retain(|exit| !is_back || exit != me);
        changes
    };
    let changes = remove_exits(store, keys, decide).await?;
    let (brought, _) = bring_back(store, keys, &copy.rows, basis).await?;
    let is_out = |exit: &ExitId| changes.removed.contains(exit) || changes.left_out.contains(exit);
    let found = store.exits(keys).await?;
    let may_change =
        |exit: &ExitId| found.members.get(exit).map_or(basis.is_newer, |joined| basis.knew(*joined));
    for (exit, member) in copy.members.iter().filter(|(exit, _)| may_change(exit) && !is_out(exit)) {
        // The exit itself adds its key and its endpoints when it is linked.
        put_back(store, keys, exit, &member.clone().unwrap_or_default()).await?;
    }
    let own = copy.members.get(me).cloned().flatten().unwrap_or_default();
    put_back(store, keys, me, &Member { membership, ..own }).await?;
    Ok((brought, changes))
}

/// Takes exits that were removed since the backup out of the fleet again. The new removals say the same as the old ones: an exit that had
/// to stop serving must still do so. `decide` compares the exits with the store's. If an exit changes in the meantime, `decide` is called
/// again. Returns its last result.
///
/// # Errors
/// If the store does not answer, or an exit's entry keeps changing.
pub(crate) async fn remove_exits(
    store: &mut (impl Transact + ReadExits),
    keys: &Keys,
    decide: impl Fn(&ExitsInStore) -> ExitChanges,
) -> anyhow::Result<ExitChanges> {
    let mut done = Removals::default();
    for _ in 0..ROUNDS {
        let found = store.exits(keys).await?;
        let changes = decide(&found);
        let mut has_changed = false;
        for (exit, removed) in changes.removed.each() {
            let mut transaction = leaving(keys, exit, removed)?;
            // In the meantime, the exit may have come back or joined again, or its removal may have been confirmed.
            transaction.expected.extend(found.expected(keys, exit));
            match store.transact(&transaction).await? {
                Some(_) => done.extend([(exit.clone(), removed)]),
                None => has_changed = true,
            }
        }
        if !has_changed {
            return Ok(ExitChanges { removed: done, ..changes });
        }
    }
    bail!(
        "the removed exits were not taken out, because their entries in the store keep changing; try this again"
    )
}

/// Puts the newest of these rosters into the store, if it is newer than the store's. Returns its serial if it was stored.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn bring_back_roster(
    store: &mut impl Transact,
    keys: &Keys,
    rosters: &[Vec<u8>],
) -> anyhow::Result<Option<u64>> {
    let key = keys.name(&Key::Roster);
    for _ in 0..ROUNDS {
        let pair = get(store, &key).await?;
        let modified = pair.as_ref().map_or(0, |pair| pair.modified);
        let stored = pair.and_then(|pair| SignedRoster::decode(&pair.roster()?).ok());
        let Some(newest) = newer_roster(keys, stored, rosters) else { return Ok(None) };
        let transaction = Transaction {
            expected: [(key.clone(), Expected::Modified(modified))].into(),
            then: [(key.clone(), Some(newest.as_bytes().to_vec()))].into(),
            ..Transaction::default()
        };
        if store.transact(&transaction).await?.is_some() {
            return Ok(Some(newest.content().serial));
        }
    }
    bail!("the roster is not put back, because others change it; run this again")
}

/// Returns the newest of these rosters, if clients that follow the stored one would accept it.
pub(crate) fn newer_roster(
    keys: &Keys,
    stored: Option<SignedRoster>,
    rosters: &[Vec<u8>],
) -> Option<SignedRoster> {
    let mut known = stored.map(FollowedFleet::begin);
    let mut newest = None;
    for bytes in rosters {
        let is_news = match &mut known {
            Some(known) => matches!(known.take(bytes), Ok(RosterNews::Newer | RosterNews::NewKey)),
            None => {
                let ours = SignedRoster::decode(bytes)
                    .ok()
                    .filter(|roster| roster.content().fleet.as_str() == keys.name_of_fleet());
                known = ours.map(FollowedFleet::begin);
                known.is_some()
            }
        };
        if is_news {
            newest = known.as_ref().map(|known| known.signed().clone());
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exits::Removed;
    use crate::link::Pair;
    use crate::meta::Found;
    use crate::recovery::Age;
    use crate::simulation::store::{MapStore, at_once};

    /// A store in which an exit joins again right after the exits were read, these many times.
    struct Joining {
        store: MapStore,
        times: u64,
    }

    impl Transact for Joining {
        async fn all(&mut self, keys: &Keys) -> anyhow::Result<(i64, Vec<Pair>)> {
            self.store.all(keys).await
        }

        async fn some(&mut self, key: &str, prefix: &str) -> anyhow::Result<Vec<Pair>> {
            self.store.some(key, prefix).await
        }

        async fn transact(&mut self, transaction: &Transaction) -> anyhow::Result<Option<i64>> {
            self.store.transact(transaction).await
        }
    }

    impl ReadExits for Joining {
        async fn exits(&mut self, keys: &Keys) -> anyhow::Result<ExitsInStore> {
            let found = self.store.exits(keys).await;
            if self.times > 0 {
                self.times -= 1;
                join(&mut self.store, keys, self.times + 2);
            }
            found
        }

        async fn found(&mut self, keys: &Keys, me: &ExitId) -> anyhow::Result<Found> {
            self.store.found(keys, me).await
        }
    }

    fn b() -> ExitId {
        ExitId::try_from("b".to_owned()).unwrap()
    }

    fn join(store: &mut MapStore, keys: &Keys, membership: u64) {
        let member = Member { membership: Some(membership), ..Member::default() };
        let [name, ended] = [Key::Member(b()), Key::RemovedExit(b())].map(|key| keys.name(&key));
        let then = [(name, Some(serde_json::to_vec(&member).unwrap())), (ended, None)].into();
        store.apply(&Transaction { then, ..Transaction::default() });
    }

    #[test]
    fn a_recovery_keeps_its_own_exit_if_the_copy_has_the_end_of_its_earlier_membership() {
        let keys = Keys::new("home");
        let ended = Removed { at: 80, membership: Some(1), ..Removed::default() };
        let copy = Contents { removed: [(b(), ended)].into(), ..Contents::default() };
        let basis = Basis::of_command(Age::Same, 90, Some(50), true);
        for (own, stays) in [(Some(2), true), (Some(1), false), (None, false)] {
            let mut store = MapStore::new(0, 1);
            join(&mut store, &keys, 1);
            let (_, changes) = at_once(recover_with(&mut store, &keys, (&b(), own), &copy, basis)).unwrap();
            assert_eq!(changes.removed.is_empty(), stays, "{own:?}");
            let found = at_once(store.exits(&keys)).unwrap();
            assert_eq!(found.memberships.get(&b()).copied(), own.filter(|_| stays), "{own:?}");
            assert_eq!(found.removed.is_empty(), stays, "{own:?}");
        }
    }

    #[test]
    fn an_exit_that_joins_again_while_its_removal_is_repeated_stays() {
        let keys = Keys::new("home");
        let ended = Removed { at: 80, membership: Some(1), ..Removed::default() };
        let removed = [(b(), ended)].into();
        let basis = Basis { recovered: 1, ..Basis::of_command(Age::Same, 90, Some(50), true) };
        // How often the exit joins again, and whether it is then left in the fleet.
        for (times, stays) in [(0, false), (1, true), (100, true)] {
            let mut joining = Joining { store: MapStore::new(0, 1), times };
            join(&mut joining.store, &keys, 1);
            let decide = |found: &ExitsInStore| exits(&[].into(), &removed, found, basis);
            let changes = at_once(remove_exits(&mut joining, &keys, decide)).unwrap();
            assert_eq!(changes.removed.contains(&b()), !stays, "{times}");
            let found = at_once(joining.store.exits(&keys)).unwrap();
            assert_eq!(
                (found.members.contains_key(&b()), found.removed.is_empty()),
                (stays, stays),
                "{times}"
            );
        }
        // The control: the removal is always repeated, and the exit's entry keeps changing.
        let mut joining = Joining { store: MapStore::new(0, 1), times: 100 };
        let decide = |_: &ExitsInStore| ExitChanges {
            removed: [(b(), ended)].into_iter().collect(),
            ..ExitChanges::default()
        };
        assert!(at_once(remove_exits(&mut joining, &keys, decide)).is_err());
        assert!(at_once(joining.store.exits(&keys)).unwrap().members.contains_key(&b()));
    }
}
