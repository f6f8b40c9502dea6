//! A link that comes back after a recovery adds what only its copy has.

use warren_fleet_link::ExitId;

use super::reopen::{Copy, Reopened, reopen};
use super::restored::{Brought, bring_back, bring_back_roster, remove_exits};
use super::{ReadExits, Transact};
use crate::keys::Keys;
use crate::membership::put_back;
use crate::meta::{Found, Meta, Mismatch, Position};
use crate::recovery::{Basis, BesideRows, ExitChanges, ExitsInStore, removed_exits};
use crate::rows::Rows;

/// A link that comes back, with its copy.
#[derive(Clone, Copy)]
pub(crate) struct Returning<'a> {
    pub(crate) me: &'a ExitId,
    pub(crate) position: &'a Position,
    pub(crate) rows: &'a Rows,
    pub(crate) beside: &'a BesideRows,
}

/// What a link has added to the store.
pub(crate) struct Replayed {
    pub(crate) brought: Brought,
    removed: usize,
    roster: Option<u64>,
    reopened: Reopened,
}

/// Replays the changes that the recovered store lacks, before the link reads the store's content. If only this copy says that the exit has
/// joined, adds the exit to the fleet again.
///
/// # Errors
/// If the store does not answer. The inner error says why this exit must not use the store.
pub(crate) async fn replay(
    store: &mut (impl Transact + ReadExits),
    keys: &Keys,
    copy: Returning<'_>,
    (meta, found): (&Meta, &Found),
) -> anyhow::Result<Result<Replayed, Mismatch>> {
    let Returning { me, position, rows, beside } = copy;
    let basis = Basis::of_link(position, meta, found);
    // If this copy has no news, the recovery knew everything that the copy knows, and did not put the exit back. But the store does not say
    // that an operator has removed the exit, so the exit need not stop at once.
    let member = beside.member.as_ref().filter(|_| basis.has_news());
    if !found.is_member && member.is_none() {
        return Ok(Err(beside.absence(me, position.membership)));
    }
    if found.membership.is_some()
        && found.membership != position.membership
        && let Some(replaced) = beside.replacement(me, position.membership, found, basis)
    {
        return Ok(Err(replaced));
    }
    let (brought, stored) = bring_back(store, keys, rows, basis).await?;
    // The copy may contain the end of an earlier membership of this exit.
    let is_back = beside.removed.get(me).is_some_and(|removed| removed.is_of_another(position.membership));
    let decide = |found: &ExitsInStore| {
        let mut removed = removed_exits(&beside.removed, found, basis);
        removed.retain(|exit| !is_back || exit != me);
        ExitChanges { removed, ..ExitChanges::default() }
    };
    let removed = remove_exits(store, keys, decide).await?.removed;
    let rosters: Vec<_> = beside.roster.iter().cloned().collect();
    let roster = bring_back_roster(store, keys, &rosters).await?;
    if removed.contains(me) {
        return Ok(Err(beside.absence(me, position.membership)));
    }
    if let Some(member) = member {
        // Another host may have joined under the exit's name in the meantime.
        let found = store.found(keys, me).await?;
        if found.is_taken(position.membership, found.began) {
            return Ok(Err(Mismatch::Replaced { must_stop: true }));
        }
        put_back(store, keys, me, member).await?;
    }
    let copy = Copy { me, position, rows };
    let reopened = reopen(store, keys, copy, meta.epoch, (&stored, basis)).await?;
    Ok(Ok(Replayed { brought, removed: removed.len(), roster, reopened }))
}

impl Replayed {
    pub(crate) fn log(&self) {
        let Self { brought, removed, roster, reopened: Reopened { reopened, waiting } } = self;
        tracing::warn!(
            "the store was recovered with a copy; this exit adds what only it knows: {} removed keys, {} used or withdrawn invitations, {} clients, \
             {} changes of clients, {removed} removed exits, {}",
            brought.removed_keys,
            brought.used_invitations + brought.withdrawn_invitations,
            brought.new_clients,
            brought.changed_clients,
            roster.map_or_else(|| "no roster".to_owned(), |serial| format!("roster {serial}"))
        );
        if *reopened > 0 {
            tracing::warn!(
                "every exit has come back, so {reopened} open invitations that the store lacked are put back"
            );
        }
        if *waiting > 0 {
            tracing::warn!(
                "{waiting} open invitations that the store lacks are put back once every exit has come back"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exits::Member;
    use crate::keys::Key;
    use crate::link::Transaction;
    use crate::link::tests::meta;
    use crate::meta::Recovery;
    use crate::simulation::store::{MapStore, at_once};

    fn member(number: u64) -> Member {
        Member { membership: Some(number), ..Member::default() }
    }

    #[test]
    fn a_host_with_news_leaves_the_name_to_a_host_that_has_joined_since_the_recovery() {
        let keys = Keys::new("home");
        let me = ExitId::try_from("b".to_owned()).unwrap();
        let name = keys.name(&Key::Member(me.clone()));
        // The numbers of the host that comes back and of the store's membership, how the store got the latter, and the result. The last
        // value says whether the store got the latter only after the link had looked.
        let stops = Err(Mismatch::Replaced { must_stop: true });
        for (own, stored, has_ticket, is_refused, is_late) in [
            (1, 2, true, true, false),
            (1, 2, true, true, true),
            (2, 1, false, false, false),
            (2, 2, true, false, false),
        ] {
            // The recovery did not know exit b.
            let recoveries = vec![Recovery { epoch: 1, revision: 100, store: 50 }];
            let meta = Meta { epoch: 2, recoveries, ..meta() };
            let mut store = MapStore::new(60, 1);
            let agreement = (keys.name(&Key::Meta), Some(serde_json::to_vec(&meta).unwrap()));
            store.apply(&Transaction { then: [agreement].into(), ..Transaction::default() });
            // A host without a ticket has come back with its own copy, as this one does.
            let value = |number| Some(serde_json::to_vec(&member(number)).unwrap());
            let grant = (keys.grant(&me), Some(Vec::new()));
            let joined = [(name.clone(), value(stored))].into_iter().chain(has_ticket.then_some(grant));
            let before = store.find(&keys, &me);
            store.apply(&Transaction { then: joined.collect(), ..Transaction::default() });
            let position = Position { epoch: 1, revision: 130, membership: Some(own), ..Position::default() };
            let (rows, beside) =
                (Rows::default(), BesideRows { member: Some(member(own)), ..BesideRows::default() });
            let copy = Returning { me: &me, position: &position, rows: &rows, beside: &beside };

            let found = if is_late { before } else { store.find(&keys, &me) };
            let replayed = at_once(replay(&mut store, &keys, copy, (&meta, &found))).unwrap();

            let expected = if is_refused { stops.clone() } else { Ok(()) };
            assert_eq!(replayed.map(drop), expected, "{own} {stored} {is_late}");
            assert_eq!(store.find(&keys, &me).membership, Some(2), "{own} {stored} {is_late}");
        }
    }
}
