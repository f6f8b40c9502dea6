//! Puts back open invitations that only links' copies have, once all exits have come back after a recovery.

use std::collections::BTreeSet;

use anyhow::Context as _;
use warren_fleet_link::ExitId;
use warren_session::clients::{RowChange, RowId};

use super::{Transact, carry_out};
use crate::keys::{Key, Keys};
use crate::link::rows_of;
use crate::meta::Position;
use crate::planted::{Bug, is_planted};
use crate::recovery::Basis;
use crate::returned::Returned;
use crate::rows::{Rows, Unseen};
use crate::transaction::{Draft, Expected, Known, MAX_OPERATIONS, draft};

/// Maximum number of attempts to write the value of `rt`, if other links write it meanwhile.
const ROUNDS: usize = 20;

/// The copy of a link that comes back after a recovery.
pub(crate) struct Copy<'a> {
    pub(crate) me: &'a ExitId,
    pub(crate) position: &'a Position,
    pub(crate) rows: &'a Rows,
}

/// How many of the invitations that only copies have were put back, and how many still wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reopened {
    pub(crate) reopened: usize,
    /// Invitations that wait for other exits.
    pub(crate) waiting: usize,
}

/// The value of `rt`, the revision of its latest change, and the exits of the fleet.
struct State {
    returned: Returned,
    modified: i64,
    members: BTreeSet<ExitId>,
}

/// Records that a copy has come back in an epoch. The last copy to come back puts the invitations back. `store`: the store's
/// rows.
///
/// # Errors
/// If the store does not answer, or others change the same values all the time.
pub(crate) async fn reopen(
    client: &mut impl Transact,
    keys: &Keys,
    copy: Copy<'_>,
    epoch: u64,
    (store, basis): (&Rows, Basis),
) -> anyhow::Result<Reopened> {
    let mut rounds = 0..ROUNDS;
    let mut state = loop {
        rounds.next().context("other links write their part of the recovery all the time")?;
        let mut state = read(client, keys).await?;
        state.returned.come_back((copy.me, epoch), (copy.position, copy.rows), store, basis);
        if write(client, keys, &mut state, Draft::default()).await? {
            break state;
        }
    };
    let mut reopened = 0;
    while state.returned.open().next().is_some() {
        let missing = state.returned.missing(state.members.iter());
        if !missing.is_empty() && !is_planted(Bug::ReopenedTooEarly) {
            break;
        }
        rounds.next().context("others change the invitations all the time")?;
        let (_, pairs) = client.all(keys).await?;
        let (draft, done) = next_part(keys, &rows_of(keys, &pairs), &state.returned);
        let count = draft.rows.len();
        state.returned.forget(&done);
        if write(client, keys, &mut state, draft).await? {
            reopened += count;
        } else {
            // The write was refused, because another link has come back or the store already has one of the invitations.
            state = read(client, keys).await?;
        }
    }
    Ok(Reopened { reopened, waiting: state.returned.open().count() })
}

async fn read(client: &mut impl Transact, keys: &Keys) -> anyhow::Result<State> {
    let mut state = State { returned: Returned::default(), modified: 0, members: BTreeSet::new() };
    for pair in client.some(&keys.returned(), &keys.members()).await? {
        if let Some(Key::Member(exit)) = keys.parse(&pair.key) {
            state.members.insert(exit);
        } else {
            // A damaged value is replaced.
            let value = pair.value.as_deref().unwrap_or_default();
            state.returned = serde_json::from_slice(value).unwrap_or_default();
            state.modified = pair.modified;
        }
    }
    Ok(state)
}

/// Writes the value together with a draft. Returns false if somebody else has written meanwhile.
async fn write(
    client: &mut impl Transact,
    keys: &Keys,
    state: &mut State,
    mut draft: Draft,
) -> anyhow::Result<bool> {
    draft.expected.insert(keys.returned(), Expected::Modified(state.modified));
    draft.operations.insert(keys.returned(), Some(serde_json::to_vec(&state.returned)?));
    let written = carry_out(client, &draft).await?;
    state.modified = written.unwrap_or(state.modified);
    Ok(written.is_some())
}

/// The next invitations that fit into a transaction, and the invitations that need not wait any more.
fn next_part(keys: &Keys, store: &Rows, returned: &Returned) -> (Draft, BTreeSet<RowId>) {
    let unseen = Unseen::default();
    let known = Known { keys, rows: store, unseen: &unseen, basis: i64::MAX };
    let mut joined = Draft::default();
    let mut done = BTreeSet::new();
    for row in returned.open().take(MAX_OPERATIONS / 2) {
        done.insert(row.id());
        // Another recovery may have put the invitation back, and somebody may have used it since.
        if !store.is_there(row.id())
            && let Ok(next) = draft(known, std::slice::from_ref(row), std::slice::from_ref::<RowChange>(row))
        {
            joined.join(next);
        }
    }
    (joined, done)
}
