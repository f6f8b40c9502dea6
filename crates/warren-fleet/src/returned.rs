//! The copies that have come back since a recovery, and the open invitations that only they have (`rt` in the store).
//!
//! A copy cannot tell whether an invitation was used or withdrawn later. A newer copy can. So these invitations wait until every
//! exit has come back, because then the newest copy was compared as well.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use warren_fleet_link::{ExitId, MAX_EXITS};
use warren_session::clients::{RowChange, RowId, is_valid_name};

use crate::meta::Position;
use crate::recovery::{Basis, is_open_invitation};
use crate::rows::Rows;

/// Maximum number of invitations that wait. The value must fit into one transaction. It does, because names have at most 63
/// characters.
const MOST_OPEN: usize = 1_000;

/// The value of `rt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Returned {
    /// The store's epoch.
    epoch: u64,
    /// The exits whose copies have come back in this epoch.
    back: BTreeSet<ExitId>,
    /// For each epoch, the highest revision of the copies that have come back.
    newest: BTreeMap<u64, i64>,
    open: Vec<Open>,
}

/// An open invitation that waits until every exit has come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    /// The epoch and the revision of the invitation's latest change, in the copy.
    epoch: u64,
    modified: i64,
    row: RowChange,
}

impl Open {
    /// Whether an exit can have made this invitation. Any exit of the fleet can write other ones, which may have any size.
    fn is_possible(&self) -> bool {
        let RowChange::Invitation { invitation: Some(invitation), .. } = &self.row else { return false };
        is_valid_name(&invitation.name)
    }
}

impl Returned {
    /// Records that an exit has come back with its copy, in an epoch of the store.
    pub(crate) fn come_back(
        &mut self,
        (me, epoch): (&ExitId, u64),
        (position, copy): (&Position, &Rows),
        store: &Rows,
        basis: Basis,
    ) {
        if self.epoch != epoch {
            (self.epoch, self.back) = (epoch, BTreeSet::new());
        }
        self.shorten();
        self.back.insert(me.clone());
        // An invitation that this newer copy lacks, or has in another state, was used or withdrawn.
        self.open.retain(|open| {
            let is_newer = position.epoch == open.epoch && position.revision >= open.modified;
            !is_newer || copy.content(open.row.id()) == open.row
        });
        let newest = self.newest.entry(position.epoch).or_insert(i64::MIN);
        let news = copy.iter().filter(|(id, row)| {
            row.modified > *newest
                && basis.may_be_lost(row.modified)
                && is_open_invitation(&row.content)
                && !store.is_there(*id)
        });
        let news = news.map(|(_, row)| Open {
            epoch: position.epoch,
            modified: row.modified,
            row: row.content.clone(),
        });
        let room = MOST_OPEN.saturating_sub(self.open.len());
        self.open.extend(news.filter(Open::is_possible).take(room));
        *newest = position.revision.max(*newest);
    }

    /// Leaves out what no link has written. Otherwise an exit could make the value so long that no link can write it, and no exit
    /// would come back.
    fn shorten(&mut self) {
        self.open.retain(Open::is_possible);
        self.open.truncate(MOST_OPEN);
        let epoch = self.epoch;
        self.newest.retain(|earlier, _| *earlier <= epoch);
        if self.back.len() > MAX_EXITS {
            self.back.clear();
        }
    }

    /// The exits that have not come back yet.
    pub(crate) fn missing<'a>(&self, members: impl Iterator<Item = &'a ExitId>) -> Vec<&'a ExitId> {
        members.filter(|exit| !self.back.contains(*exit)).collect()
    }

    /// The invitations that wait.
    pub(crate) fn open(&self) -> impl Iterator<Item = &RowChange> {
        self.open.iter().map(|open| &open.row)
    }

    /// Records that invitations need not wait any more.
    pub(crate) fn forget(&mut self, invitations: &BTreeSet<RowId>) {
        self.open.retain(|open| !invitations.contains(&open.row.id()));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, SystemTime};

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use warren_session::clients::{Invitation, MAX_NAME_LENGTH};

    use super::*;
    use crate::link::tests::meta;
    use crate::meta::{Found, Meta, Recovery};
    use crate::recovery::tests::{invitation, rows};

    fn exit(name: &str) -> ExitId {
        ExitId::try_from(name.to_owned()).unwrap()
    }

    pub(crate) fn found() -> Found {
        Found {
            meta: None,
            cluster: 1,
            revision: 1_000,
            own: 0,
            is_member: true,
            membership: None,
            joined: 0,
            removed: None,
            began: 0,
        }
    }

    fn basis(position: &Position, recovery: Recovery) -> Basis {
        let meta = Meta { epoch: recovery.epoch + 1, recoveries: vec![recovery], ..meta() };
        let found = Found { began: recovery.store + 10, ..found() };
        Basis::of_link(position, &meta, &found)
    }

    /// A recovery with a copy of revision 100, from a backup of revision 50. Afterwards these copies of exits come back.
    fn after(copies: &[(&str, i64, &Rows)]) -> Returned {
        let mut returned = Returned::default();
        for (name, revision, copy) in copies {
            let position = Position { epoch: 1, revision: *revision, ..Position::default() };
            let recovery = Recovery { epoch: 1, revision: 100, store: 50 };
            let basis = basis(&position, recovery);
            returned.come_back((&exit(name), 2), (&position, copy), &Rows::default(), basis);
        }
        returned
    }

    #[test]
    fn the_newest_copy_decides_which_invitations_are_open_in_any_order() {
        let (older, newer) = (
            rows(&[(90, invitation(1, None)), (110, invitation(2, None)), (111, invitation(3, None))]),
            rows(&[(110, invitation(2, None)), (120, invitation(4, None))]),
        );
        let copies = [("a", 115, &older), ("b", 130, &newer)];
        for copies in [copies, [copies[1], copies[0]]] {
            let returned = after(&copies);
            let open: BTreeSet<_> = returned.open().map(RowChange::id).collect();
            // The recovery knew the first invitation, and the third one was withdrawn.
            assert_eq!(open, [2, 4].map(|number| invitation(number, None).id()).into());
            assert!(returned.missing([exit("a"), exit("b")].iter()).is_empty());
            assert_eq!(returned.missing([exit("a"), exit("c")].iter()), [&exit("c")]);
        }
        // The control: without the newer copy, the third one waits, too.
        assert_eq!(after(&copies[..1]).open().count(), 2);
    }

    #[test]
    fn an_invitation_that_a_newer_copy_calls_used_does_not_wait() {
        let used = invitation(2, Some(crate::link::tests::key(7)));
        let (older, newer) = (rows(&[(110, invitation(2, None))]), rows(&[(120, used)]));
        assert_eq!(after(&[("a", 115, &older)]).open().count(), 1);
        assert_eq!(after(&[("a", 115, &older), ("b", 130, &newer)]).open().count(), 0);
    }

    /// A transaction of etcd has at most 1.5 MiB, and also contains some of the invitations themselves.
    fn fits(returned: &Returned) -> bool {
        serde_json::to_vec(returned).unwrap().len() < 512 << 10
    }

    #[test]
    fn an_exit_cannot_make_the_value_too_long_for_a_transaction() {
        let named = |number: u16, name: String| {
            let mut bytes = [0; 32];
            bytes[..2].copy_from_slice(&number.to_be_bytes());
            let token_sha256 = serde_json::from_value(STANDARD.encode(bytes).into()).unwrap();
            let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
            let upgrades = Some(crate::link::tests::key(7));
            RowChange::from(Invitation { name, token_sha256, expires, used_by: None, upgrades })
        };
        let hostile: Vec<_> = (0..600).map(|number| (110, named(number, "x".repeat(16_000)))).collect();
        let longest: Vec<_> =
            (600..1_700).map(|number| (110, named(number, "x".repeat(MAX_NAME_LENGTH)))).collect();
        let copy = rows(&[hostile.as_slice(), &longest].concat());
        let returned = after(&[("a", 115, &copy)]);
        assert_eq!(returned.open().count(), MOST_OPEN, "the control: invitations of other exits wait");
        assert!(fits(&returned));

        // The exit writes the value itself.
        let open = |row: &RowChange| Open { epoch: 1, modified: 110, row: row.clone() };
        let mut forged = Returned {
            epoch: 2,
            back: (0..20_000).map(|number| exit(&format!("exit{number}"))).collect(),
            newest: (0..100_000).map(|epoch| (epoch, 1)).collect(),
            open: hostile.iter().chain(&longest).chain(&longest).map(|(_, row)| open(row)).collect(),
        };
        assert!(!fits(&forged));
        let position = Position { epoch: 1, revision: 115, ..Position::default() };
        let basis = basis(&position, Recovery { epoch: 1, revision: 100, store: 50 });
        forged.come_back((&exit("c"), 2), (&position, &Rows::default()), &Rows::default(), basis);
        assert!(fits(&forged));
    }

    #[test]
    fn in_a_later_epoch_every_exit_has_to_come_back_again() {
        let copy = rows(&[(110, invitation(2, None))]);
        let mut returned = after(&[("a", 115, &copy)]);
        let position = Position { epoch: 2, revision: 300, ..Position::default() };
        let basis = basis(&position, Recovery { epoch: 2, revision: 300, store: 200 });
        returned.come_back((&exit("b"), 3), (&position, &Rows::default()), &Rows::default(), basis);
        assert_eq!(returned.missing([exit("a"), exit("b")].iter()), [&exit("a")]);
        assert_eq!(returned.open().count(), 1, "revisions of different epochs say nothing about each other");
        returned.forget(&[invitation(2, None).id()].into());
        assert_eq!(returned.open().count(), 0);
    }
}
