//! The agreement of a fleet, which is the state that all of its exits share (`meta` in the store). Also how a link notices that
//! the store has lost data.

use serde::{Deserialize, Serialize};
use warren_fleet_link::Pools;

use crate::exits::Removed;
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
    /// The number of this exit's membership.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) membership: Option<u64>,
    /// Whether the store has said that this exit was removed and must stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_removed: bool,
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
        "the store was restored from an old backup: what this exit knew at revision {known} is not there; run `warren fleet recover` so that no removed client comes back"
    )]
    LostWrite { known: i64 },
    #[error(
        "the store was restored from an old backup: it lacks a recovery that this exit knows; run `warren fleet recover` so that no removed client comes back"
    )]
    LostRecovery,
    #[error(
        "this exit was removed from the fleet; run `warren fleet leave` here, and join again with a new ticket if it is to come back"
    )]
    Removed {
        /// Whether the exit must stop serving.
        must_stop: bool,
    },
    #[error(
        "this exit was removed from the fleet, and another host has joined under its name; run `warren fleet leave` here, and join again under another name"
    )]
    Replaced {
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
    /// The number of the exit's membership in the store.
    pub(crate) membership: Option<u64>,
    /// The revision at which a host has joined under the exit's name with a ticket. 0 if there is no membership, or a recovery has put it
    /// back.
    pub(crate) joined: i64,
    /// Given if the exit was removed or has left.
    pub(crate) removed: Option<Removed>,
    /// The revision at which the present epoch began.
    pub(crate) began: i64,
}

/// Compares the store with the history that a link knows. Returns the fleet's agreement. Also returns whether the link must replay
/// the removed keys and other changes of its copy, because the store has been recovered since.
///
/// # Errors
/// If the store must not be used.
pub(crate) fn check(name: &str, known: Option<&Position>, found: &Found) -> Result<(Meta, bool), Mismatch> {
    let Some(known) = known else { return check_as_joined(name, None, found) };
    let meta = found.agreement(name)?;
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
    if meta.epoch < known.epoch {
        return Err(Mismatch::LostRecovery);
    }
    if found.cluster != known.cluster {
        return Err(Mismatch::OtherCluster { known: known.cluster, found: found.cluster });
    }
    if found.revision < known.revision {
        return Err(Mismatch::OldRevision { known: known.revision, found: found.revision });
    }
    // If another host has joined under this exit's name, the removal in between has deleted this exit's writes, and the next check would
    // mistake the store for an old one. So this check comes first. A backup may have an earlier membership, but that one is older than the
    // known revision.
    if found.is_taken(known.membership, known.revision) {
        return Err(Mismatch::Replaced { must_stop: true });
    }
    // New writes may have brought a restored store past the known revision. But this exit's latest write would still be missing. A removal
    // also deletes this exit's writes. In that case the store is not an old one, because the removal is newer than these writes. An old
    // backup may contain an earlier removal.
    let is_removed_since = found.removed.is_some_and(|removed| removed.at >= known.own);
    if found.own < known.own && (found.is_member || found.removed.is_some()) && !is_removed_since {
        return Err(Mismatch::LostWrite { known: known.own });
    }
    // At the copy's revision, the exit had already joined again.
    let is_earlier =
        |removed: Removed| removed.is_of_another(known.membership) && removed.at <= known.revision;
    if !found.is_member && found.removed.is_some_and(is_earlier) {
        return Err(Mismatch::LostWrite { known: known.revision });
    }
    // The store has everything that this link knows, so the store's membership is the later one.
    found.may_use(known.membership).map(|()| (meta, false))
}

/// As [`check`], for a link that has never read the store. `joined_as`: the number of the membership with which this host has joined, if
/// that is known.
///
/// # Errors
/// If the store must not be used.
pub(crate) fn check_as_joined(
    name: &str,
    joined_as: Option<u64>,
    found: &Found,
) -> Result<(Meta, bool), Mismatch> {
    let meta = found.agreement(name)?;
    found.may_use(joined_as).map(|()| (meta, false))
}

impl Mismatch {
    /// Whether the store was restored from an old backup, or replaced.
    pub(crate) fn is_old_store(&self) -> bool {
        matches!(
            self,
            Self::OldRevision { .. }
                | Self::OtherCluster { .. }
                | Self::LostWrite { .. }
                | Self::LostRecovery
        )
    }

    /// Whether the exit must stop serving, because the store itself says that it was removed.
    pub(crate) fn must_stop(&self) -> bool {
        matches!(self, Self::Removed { must_stop: true } | Self::Replaced { must_stop: true })
    }
}

impl Found {
    /// The agreement of the fleet with this name.
    fn agreement(&self, name: &str) -> Result<Meta, Mismatch> {
        let meta = self.meta.clone().ok_or_else(|| Mismatch::NoFleet { name: name.to_owned() })?;
        if meta.format != FORMAT {
            return Err(Mismatch::Format { format: meta.format });
        }
        Ok(meta)
    }

    /// Whether the store has another membership of the exit than the one with this number.
    fn is_of_another(&self, own: Option<u64>) -> bool {
        self.is_member && self.membership.zip(own).is_some_and(|(other, own)| other != own)
    }

    /// Whether the exit belongs to the fleet and may use the store. `own`: the number of its membership.
    fn may_use(&self, own: Option<u64>) -> Result<(), Mismatch> {
        if self.is_of_another(own) {
            return Err(Mismatch::Replaced { must_stop: true });
        }
        match self.removed {
            // A recovery has made the exit a member again, although the backup contains the end of an earlier membership.
            Some(removed) if self.is_member && removed.is_of_another(own) => Ok(()),
            Some(removed) => Err(Mismatch::Removed { must_stop: removed.must_stop() }),
            None if self.is_member => Ok(()),
            None => Err(Mismatch::NotMember),
        }
    }

    /// Whether another host has joined under the exit's name with a ticket since this revision. `own`: the number of the membership that the
    /// link knows.
    pub(crate) fn is_taken(&self, own: Option<u64>, since: i64) -> bool {
        self.is_of_another(own) && self.joined > since
    }

    /// Whether the exit was removed, according to a store that was recovered since the link last read it.
    fn removal_after_recovery(&self, meta: &Meta, known: &Position) -> Result<(), Mismatch> {
        let Some(removed) = self.removed else { return Ok(()) };
        // The backup, or another exit's copy, contains the end of an earlier membership. The link's copy decides.
        if removed.is_of_another(known.membership) {
            return Ok(());
        }
        let is_same = removed.membership.is_some() && removed.membership == known.membership;
        // Without the numbers, revisions decide. Values with later revisions were written by the recovery or afterwards, and their
        // revisions cannot be compared with the link's.
        let before = meta.recovery_since(known.epoch).map_or(0, |recovery| recovery.store);
        let is_earlier = !is_same && removed.at <= before && removed.at < known.own;
        Err(Mismatch::Removed { must_stop: removed.must_stop() && !is_earlier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exits::Removal;

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
            membership: None,
            joined: 0,
            removed: None,
            began: 1,
        }
    }

    fn known() -> Position {
        let fleet = "f".to_owned();
        Position { fleet, epoch: 1, cluster: 7, revision: 100, own: 90, ..Position::default() }
    }

    fn removed(at: i64, must_stop: bool) -> Removed {
        Removed { at, removal: must_stop.then(Removal::default), membership: None }
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
                let refused = checked(|found| {
                    (found.own, found.is_member, found.removed) = (0, false, Some(removed(at, must_stop)));
                });
                assert_eq!(refused, Err(Mismatch::Removed { must_stop }));
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
            (found.is_member, found.removed) = (true, Some(removed(95, true)));
        });
        let refused = Err(Mismatch::Removed { must_stop: true });
        assert_eq!(both, refused);
        assert_eq!(checked(|found| found.removed = Some(removed(95, true))), refused);
        assert_eq!(check("home", None, &Found { removed: Some(removed(95, true)), ..found() }), refused);
        // An exit that was removed at revision 50 has come back and written since. A backup of revision 60 does not know that.
        let of_backup = |own| {
            checked(|found| {
                (found.is_member, found.removed, found.own) = (false, Some(removed(50, true)), own)
            })
        };
        assert_eq!(of_backup(0), Err(Mismatch::LostWrite { known: 90 }));
        assert_eq!(of_backup(91), refused, "the control: the store has this exit's latest write");
    }

    #[test]
    fn an_exit_need_not_stop_for_a_removal_of_the_backup_that_is_older_than_its_own_writes() {
        let removed_at = |at, must_stop| {
            let recoveries = vec![Recovery { epoch: 1, revision: 100, store: 60 }];
            checked(|found| {
                found.meta = Some(Meta { epoch: 2, recoveries, ..meta() });
                (found.is_member, found.removed, found.own) = (false, Some(removed(at, must_stop)), 0);
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
        let found = Found { meta, is_member: false, removed: Some(removed(50, true)), ..found() };
        assert_eq!(check("home", Some(&known), &found), Err(Mismatch::Removed { must_stop: true }));
    }

    #[test]
    fn a_store_that_lacks_a_recovery_is_refused_and_its_removals_stop_nobody() {
        let known = Position { epoch: 3, own: 90, ..known() };
        // Since the recovery, the store counts its revisions from the beginning, so the backup's revisions may be higher.
        let found = |at| Found { own: 8000, revision: 9000, removed: at, ..found() };
        for removed in [None, Some(removed(8500, true))] {
            assert_eq!(check("home", Some(&known), &found(removed)), Err(Mismatch::LostRecovery));
        }
        // The control: the same epoch.
        let known = Position { epoch: 1, ..known };
        assert!(check("home", Some(&known), &found(None)).is_ok());
    }

    #[test]
    fn a_host_whose_name_another_host_has_taken_must_stop() {
        let check = |own, other, change: fn(&mut Found)| {
            let mut found = Found { membership: other, ..found() };
            change(&mut found);
            check("home", Some(&Position { membership: own, ..known() }), &found).map(|_| ())
        };
        let replaced = check(Some(1), Some(2), |_| {});
        assert_eq!(replaced, Err(Mismatch::Replaced { must_stop: true }));
        assert!(replaced.unwrap_err().must_stop());
        for (own, other) in [(Some(2), Some(2)), (None, Some(2)), (Some(2), None)] {
            assert_eq!(check(own, other, |_| {}), Ok(()));
        }
        // The other host's link has not written anything yet.
        let joined = |found: &mut Found| (found.revision, found.own, found.joined) = (200, 0, 150);
        assert_eq!(check(Some(1), Some(2), joined), Err(Mismatch::Replaced { must_stop: true }));
        // A backup may have an earlier membership.
        let lost: fn(&mut Found) = |found| (found.revision, found.own, found.joined) = (200, 0, 50);
        for change in [lost, |found| found.own = 40] {
            assert_eq!(check(Some(2), Some(1), change), Err(Mismatch::LostWrite { known: 90 }));
        }
        assert_eq!(check(Some(2), Some(1), |found| found.meta = Some(Meta { epoch: 2, ..meta() })), Ok(()));
    }

    #[test]
    fn a_host_that_has_never_read_the_store_knows_its_membership_from_its_ticket() {
        let check = |joined_as: Option<u64>, stored: Option<u64>, removed: Option<u64>, is_member: bool| {
            let removed =
                removed.map(|membership| Removed { membership: Some(membership), ..self::removed(60, true) });
            check_as_joined("home", joined_as, &Found { membership: stored, removed, is_member, ..found() })
                .map(|_| ())
        };
        assert_eq!(check(Some(1), Some(2), None, true), Err(Mismatch::Replaced { must_stop: true }));
        for (joined_as, stored) in [(Some(2), Some(2)), (None, Some(2)), (Some(2), None)] {
            assert_eq!(check(joined_as, stored, None, true), Ok(()), "{joined_as:?} {stored:?}");
        }
        // A recovery has put the exit back, and the backup contains the end of an earlier membership.
        assert_eq!(check(Some(2), Some(2), Some(1), true), Ok(()));
        let refused = Err(Mismatch::Removed { must_stop: true });
        assert_eq!(check(Some(2), Some(2), Some(2), true), refused);
        assert_eq!(check(Some(1), None, Some(2), false), refused, "the other host was removed as well");
        assert_eq!(check(None, Some(2), Some(1), true), refused, "unknown");
    }

    #[test]
    fn an_exit_need_not_stop_for_a_removal_of_its_earlier_membership() {
        let check = |epoch, own, ended, is_member| {
            // The copy with which the store was recovered is of a later epoch than the backup.
            let recoveries = vec![Recovery { epoch: 2, revision: 100, store: 0 }];
            let known = Position { epoch: 2, membership: own, ..known() };
            let removed = Some(Removed { membership: ended, ..removed(60, true) });
            let meta = Some(Meta { epoch, recoveries, ..meta() });
            check("home", Some(&known), &Found { meta, is_member, removed, ..found() }).map(|_| ())
        };
        let refused = Err(Mismatch::Removed { must_stop: true });
        for is_member in [true, false] {
            assert_eq!(check(3, Some(2), Some(1), is_member), Ok(()), "the copy decides");
            assert_eq!(check(3, Some(2), Some(2), is_member), refused, "its own");
            assert_eq!(check(3, None, Some(2), is_member), refused, "unknown");
        }
        // Without a recovery, the store's order of changes is enough.
        let later = |own, is_member| {
            let removed = Some(Removed { membership: Some(1), ..removed(101, true) });
            super::check(
                "home",
                Some(&Position { membership: own, ..known() }),
                &Found { is_member, removed, ..found() },
            )
        };
        assert!(later(Some(2), true).is_ok());
        assert_eq!(later(Some(2), false).map(|_| ()), refused);
    }

    #[test]
    fn an_exit_that_has_joined_again_and_written_nothing_yet_notices_a_backup_with_its_earlier_removal() {
        // New writes of other exits have brought the revision past the old one.
        let checked = |at| {
            let known = Position { own: 0, membership: Some(2), ..known() };
            let removed = Some(Removed { membership: Some(1), ..removed(at, true) });
            check("home", Some(&known), &Found { is_member: false, own: 0, removed, ..found() }).map(|_| ())
        };
        assert_eq!(checked(60), Err(Mismatch::LostWrite { known: 100 }));
        assert_eq!(checked(101), Err(Mismatch::Removed { must_stop: true }), "the control");
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
