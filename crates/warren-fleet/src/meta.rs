//! The agreement of a fleet, which is the state that all of its exits share (`meta` in the store). Also how a link notices that
//! the store has lost data.

use serde::{Deserialize, Serialize};
use warren_fleet_link::Pools;

use crate::planted::{Bug, is_planted};

/// The format of everything in the store.
pub(crate) const FORMAT: u32 = 1;

/// The agreement of a fleet, which is the value of `meta`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) format: u32,
    /// A random text, which distinguishes a fleet from an earlier fleet of the same name.
    pub(crate) id: String,
    /// How often the store was recovered from a backup.
    pub(crate) epoch: u64,
    pub(crate) pools: Pools,
    /// How each earlier epoch of the store ended, if this is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) recoveries: Vec<Recovery>,
}

/// A recovery, which ends an epoch of the store. The next epoch continues from two sources: a copy of an earlier epoch, and an
/// old backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recovery {
    /// The copy's epoch.
    pub(crate) epoch: u64,
    /// The copy's revision. The recovered store contains all changes up to this revision.
    pub(crate) revision: i64,
    /// The revision of the latest value that the store had when the recovery began. The store's own revision may be higher, because
    /// leases may have ended since the backup was restored.
    pub(crate) store: i64,
}

impl Meta {
    /// Returns the recovery with which to compare a copy of an earlier epoch. The copy may contain changes that this recovery did
    /// not put into the store. `None` if it is not known which changes the store lacks.
    pub(crate) fn recovery_since(&self, epoch: u64) -> Option<Recovery> {
        let ended = self.recoveries.iter().find(|recovery| recovery.epoch == epoch).copied();
        // The store's history skips this epoch, because the store was recovered with a copy of an earlier epoch.
        let aside = self.recoveries.last().filter(|last| last.epoch < epoch);
        ended.or(aside.map(|last| Recovery { revision: i64::MIN, ..*last }))
    }
}

/// The link's position in the store's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    pub(crate) fleet: String,
    pub(crate) epoch: u64,
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
    /// The revision of this exit's own latest write: a heartbeat or sessions' records (`po/EXIT`), or a transaction
    /// (`wr/EXIT`).
    pub(crate) own: i64,
}

/// Why the store must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error(
        "the store has no fleet {name:?}; if it has lost everything, run `warren fleet recover` at the exit whose copy is newest; otherwise correct `endpoints` in fleet.toml"
    )]
    NoFleet { name: String },
    #[error(
        "the store's data has format {format}, and this version of Warren knows format {FORMAT}; upgrade Warren on this exit"
    )]
    Format { format: u32 },
    #[error(
        "the store has another fleet with the name of this exit's; correct `endpoints` in fleet.toml, or run `warren fleet leave` here and join the other fleet with a ticket"
    )]
    OtherFleet,
    #[error(
        "the store was restored from an old backup: it is at revision {found} and was at {known}; run `warren fleet recover` so that no removed client comes back"
    )]
    OldRevision { known: i64, found: i64 },
    #[error(
        "the store was restored from a backup or replaced (its cluster is {found:x} and was {known:x}); run `warren fleet recover` so that no removed client comes back"
    )]
    OtherCluster { known: u64, found: u64 },
    #[error(
        "the store was restored from an old backup: what this exit wrote at revision {known} is not there; run `warren fleet recover` so that no removed client comes back"
    )]
    LostWrite { known: i64 },
    #[error(
        "this exit was removed from the fleet; run `warren fleet leave` here, and join again with a new ticket if it is to come back"
    )]
    Removed {
        /// Whether the exit must stop serving.
        must_stop: bool,
    },
    #[error(
        "the store does not have this exit, and does not say that it was removed; run `warren fleet leave` here, and join again with a new ticket"
    )]
    NotMember,
    #[error(
        "this exit's pools are {own} and the fleet's are {fleet}; write the fleet's into [addresses] of exit.toml"
    )]
    Pools { own: String, fleet: String },
}

/// The state in which a link finds the store.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) meta: Option<Meta>,
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
    /// The revision of `po/EXIT` or `wr/EXIT`, whichever is newer; 0 if both are missing.
    pub(crate) own: i64,
    pub(crate) is_member: bool,
    /// The revision at which the exit was removed or has left, and whether it must stop serving.
    pub(crate) removed: Option<(i64, bool)>,
    /// The revision at which the present epoch began.
    pub(crate) began: i64,
}

/// Compares the store with the history that a link knows. Returns the fleet's agreement. Also returns whether the link must replay
/// the removed keys and other changes of its copy, because the store has been recovered since.
///
/// # Errors
/// If the store must not be used.
pub(crate) fn check(name: &str, known: Option<&Position>, found: &Found) -> Result<(Meta, bool), Mismatch> {
    let meta = found.meta.clone().ok_or_else(|| Mismatch::NoFleet { name: name.to_owned() })?;
    if meta.format != FORMAT {
        return Err(Mismatch::Format { format: meta.format });
    }
    let Some(known) = known else {
        return found.membership().map(|()| (meta, false));
    };
    if meta.id != known.fleet {
        return Err(Mismatch::OtherFleet);
    }
    // The epochs are compared first, because a recovery also changes cluster and revision.
    if meta.epoch > known.epoch {
        let removal = found.removal_after_recovery(&meta, known);
        return removal.map(|()| (meta, true));
    }
    if is_planted(Bug::RestoreUnnoticed) {
        return Ok((meta, false));
    }
    if found.cluster != known.cluster {
        return Err(Mismatch::OtherCluster { known: known.cluster, found: found.cluster });
    }
    if found.revision < known.revision {
        return Err(Mismatch::OldRevision { known: known.revision, found: found.revision });
    }
    // New writes may have brought a restored store past the known revision. But this exit's latest write would still be missing. A
    // removal deletes this exit's writes too, but it is newer than they were, and the deletion itself counts as a write. An old
    // backup may contain an earlier removal.
    let is_removed_since = found.removed.is_some_and(|(at, _)| at >= known.own);
    if found.own < known.own && (found.is_member || found.removed.is_some()) && !is_removed_since {
        return Err(Mismatch::LostWrite { known: known.own });
    }
    found.membership().map(|()| (meta, false))
}

impl Found {
    fn removal(&self) -> Result<(), Mismatch> {
        self.removed.map_or(Ok(()), |(_, must_stop)| Err(Mismatch::Removed { must_stop }))
    }

    /// As [`Self::removal`], in a store that was recovered since the link knew it.
    fn removal_after_recovery(&self, meta: &Meta, known: &Position) -> Result<(), Mismatch> {
        let Some((at, must_stop)) = self.removed else { return Ok(()) };
        // Later values were written by the recovery or since then, and their revisions cannot be compared with the link's.
        let before = meta.recovery_since(known.epoch).map_or(0, |recovery| recovery.store);
        // The backup contains an earlier removal of this exit, which has joined again and written since.
        let is_earlier = at <= before && at < known.own;
        Err(Mismatch::Removed { must_stop: must_stop && !is_earlier })
    }

    fn membership(&self) -> Result<(), Mismatch> {
        self.removal()?;
        if self.is_member { Ok(()) } else { Err(Mismatch::NotMember) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        Meta {
            format: FORMAT,
            id: "f".to_owned(),
            epoch: 1,
            pools: Pools { ipv4: None, ipv6: None },
            recoveries: Vec::new(),
        }
    }

    fn found() -> Found {
        Found {
            meta: Some(meta()),
            cluster: 7,
            revision: 100,
            own: 90,
            is_member: true,
            removed: None,
            began: 1,
        }
    }

    fn known() -> Position {
        Position { fleet: "f".to_owned(), epoch: 1, cluster: 7, revision: 100, own: 90 }
    }

    fn checked(change: impl FnOnce(&mut Found)) -> Result<(Meta, bool), Mismatch> {
        let mut found = found();
        change(&mut found);
        check("home", Some(&known()), &found)
    }

    #[test]
    fn a_store_that_goes_on_is_taken() {
        assert_eq!(checked(|_| {}), Ok((meta(), false)));
        assert_eq!(checked(|found| (found.revision, found.own) = (200, 150)), Ok((meta(), false)));
        assert_eq!(check("home", None, &found()), Ok((meta(), false)));
    }

    #[test]
    fn an_old_backup_is_noticed() {
        assert!(matches!(checked(|found| found.revision = 99), Err(Mismatch::OldRevision { .. })));
        assert!(matches!(checked(|found| found.cluster = 8), Err(Mismatch::OtherCluster { .. })));
        // New writes have brought the revision past the old one.
        let lost = checked(|found| (found.revision, found.own) = (500, 40));
        assert_eq!(lost, Err(Mismatch::LostWrite { known: 90 }));
    }

    #[test]
    fn a_recovered_store_is_taken_with_the_tombstones_replayed() {
        let recovered = checked(|found| {
            found.meta = Some(Meta { epoch: 2, ..meta() });
            (found.cluster, found.revision, found.own) = (8, 40, 0);
        });
        assert_eq!(recovered, Ok((Meta { epoch: 2, ..meta() }, true)));
    }

    #[test]
    fn another_fleet_and_a_removed_exit_are_refused() {
        assert_eq!(
            checked(|found| found.meta = Some(Meta { id: "g".to_owned(), ..meta() })),
            Err(Mismatch::OtherFleet)
        );
        assert_eq!(checked(|found| (found.own, found.is_member) = (0, false)), Err(Mismatch::NotMember));
        for must_stop in [true, false] {
            for at in [101, known().own] {
                let removed = checked(|found| {
                    (found.own, found.is_member, found.removed) = (0, false, Some((at, must_stop)));
                });
                assert_eq!(removed, Err(Mismatch::Removed { must_stop }));
            }
        }
        assert!(matches!(checked(|found| found.meta = None), Err(Mismatch::NoFleet { .. })));
        assert!(matches!(
            checked(|found| found.meta = Some(Meta { format: 2, ..meta() })),
            Err(Mismatch::Format { .. })
        ));
    }

    #[test]
    fn an_exit_that_was_removed_does_not_come_back_with_a_recovery() {
        let recovered = |found: &mut Found| found.meta = Some(Meta { epoch: 2, ..meta() });
        assert!(checked(recovered).is_ok());
        let both = checked(|found| {
            recovered(found);
            // An earlier release has made the exit a member again.
            (found.is_member, found.removed) = (true, Some((95, true)));
        });
        let removed = Err(Mismatch::Removed { must_stop: true });
        assert_eq!(both, removed);
        assert_eq!(checked(|found| found.removed = Some((95, true))), removed);
        assert_eq!(check("home", None, &Found { removed: Some((95, true)), ..found() }), removed);
        // An exit that was removed at revision 50 has come back and written since. A backup of revision 60 does not know that.
        let of_backup = |own| {
            checked(|found| (found.is_member, found.removed, found.own) = (false, Some((50, true)), own))
        };
        assert_eq!(of_backup(0), Err(Mismatch::LostWrite { known: 90 }));
        assert_eq!(of_backup(91), removed, "the control: the store has this exit's latest write");
    }

    #[test]
    fn an_exit_need_not_stop_for_a_removal_of_the_backup_that_is_older_than_its_own_writes() {
        let removed_at = |at, must_stop| {
            let recoveries = vec![Recovery { epoch: 1, revision: 100, store: 60 }];
            checked(|found| {
                found.meta = Some(Meta { epoch: 2, recoveries, ..meta() });
                (found.is_member, found.removed, found.own) = (false, Some((at, must_stop)), 0);
            })
        };
        assert_eq!(removed_at(50, true), Err(Mismatch::Removed { must_stop: false }));
        // The control: the recovery has written this removal, so its revision says nothing about the exit's own writes.
        assert_eq!(removed_at(61, true), Err(Mismatch::Removed { must_stop: true }));
        assert_eq!(removed_at(61, false), Err(Mismatch::Removed { must_stop: false }));
        // The backup is newer than the exit's latest write.
        let known = Position { own: 40, ..known() };
        let recoveries = vec![Recovery { epoch: 1, revision: 100, store: 60 }];
        let meta = Some(Meta { epoch: 2, recoveries, ..meta() });
        let found = Found { meta, is_member: false, removed: Some((50, true)), ..found() };
        assert_eq!(check("home", Some(&known), &found), Err(Mismatch::Removed { must_stop: true }));
    }

    #[test]
    fn a_link_knows_since_when_its_copy_has_news() {
        let recoveries = vec![
            Recovery { epoch: 1, revision: 100, store: 60 },
            Recovery { epoch: 3, revision: 200, store: 150 },
        ];
        let meta = Meta { epoch: 5, recoveries: recoveries.clone(), ..meta() };
        assert_eq!(meta.recovery_since(1), Some(recoveries[0]));
        assert_eq!(meta.recovery_since(3), Some(recoveries[1]));
        // Epoch 2 was recovered by an earlier release, or given up. Epoch 4 was recovered with a copy of epoch 3.
        assert_eq!(meta.recovery_since(2), None);
        assert_eq!(meta.recovery_since(4), Some(Recovery { revision: i64::MIN, ..recoveries[1] }));
        assert_eq!(Meta { recoveries: Vec::new(), ..meta }.recovery_since(1), None);
        // An agreement of an earlier release.
        let old = r#"{"format":1,"id":"f","epoch":1,"pools":{"ipv4":null,"ipv6":null}}"#;
        let read: Meta = serde_json::from_str(old).unwrap();
        assert_eq!((serde_json::to_string(&read).unwrap().as_str(), read.recoveries.len()), (old, 0));
    }
}
