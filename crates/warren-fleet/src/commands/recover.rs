//! `warren fleet recover`: puts missing data back into a store that was restored from an old backup, or that has lost everything.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use etcd_client::Client;
use warren_config::counted;
use warren_fleet_link::ExitId;
use warren_host::read_plain;
use warren_session::clients::RowChange;

use super::{Connected, connect_or_fill, print, roster};
use crate::config::FleetConfig;
use crate::link::{Contents, read};
use crate::meta::{Meta, Mismatch, Position, Recovery, check};
use crate::recovery::{Age, Basis, ExitChanges};
use crate::rows::Rows;
use crate::run::Directories;
use crate::snapshot::{OtherFormat, Owner, Snapshot, StateDirectory, decode};
use crate::store::recovering::Recovering;
use crate::store::restored::{Brought, bring_back_roster, recover_with};
use crate::store::{find, read_all};
use crate::users;

/// Maximum size of a backup, which contains the store's values in base64.
const MOST_BYTES: u64 = 2 << 30;

/// Maximum number of names in a line of the report.
const MOST_NAMES: usize = 20;

/// `warren fleet recover`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecoverArguments {
    /// Recover from this file of `warren fleet backup`, instead of this exit's own copy.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Also change a store that does not seem to be restored: put back the clients and removed keys that it lacks. Data that is
    /// newer than the copy stays as it is.
    #[arg(long)]
    force: bool,
}

/// What has happened to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lost,
    Restored,
    Intact,
}

/// What was done, for the report.
struct Done {
    state: State,
    age: Age,
    copy: i64,
    /// The revision of the store's latest change when the recovery began.
    newest: i64,
    rows: Brought,
    disabled: Vec<String>,
    exits: ExitChanges,
    /// Commands for the operator that grant exits their rights, because this command's etcd user may not do so.
    to_grant: Vec<String>,
    roster: Option<u64>,
}

/// Brings back the data that a store restored from an old backup lacks, and lets the exits use the store again.
///
/// # Errors
/// If there is no copy to recover from, the copy belongs to another fleet, or the store is intact.
pub(crate) async fn recover(
    directories: Directories<'_>,
    arguments: &RecoverArguments,
) -> anyhow::Result<()> {
    let owner = Owner::of(&FleetConfig::read(directories.config)?);
    let own = StateDirectory::new(directories.state).load(&owner)?;
    let copy = chosen(&owner, own.as_ref(), arguments)?;
    let mut fleet = connect_or_fill(directories.config, |name| {
        tracing::warn!(
            "the store no longer has the fleet {name:?}; it begins again with what the copy contains"
        );
        // A fleet has epoch 0 only until its recovery has ended. So an interrupted recovery can continue.
        Ok(Meta { epoch: 0, ..copy.meta.clone() })
    })
    .await?;
    if copy.meta.id != fleet.meta.id {
        bail!("the copy belongs to another fleet than the store's; run this at an exit of the store's fleet");
    }
    let contents = read(&fleet.keys, None, &copy.pairs);
    let position = match &own {
        Some(own) => own.position.clone(),
        // The backup may come from another exit.
        None => Position { own: 0, membership: None, ..copy.position.clone() },
    };
    // A backup may contain the end of an earlier membership of this exit.
    if contents.removed.get(&fleet.config.exit).is_some_and(|it| !it.is_of_another(position.membership)) {
        return Err(Mismatch::Removed { must_stop: false }.into());
    }
    let age = Age::of(copy.meta.epoch, fleet.meta.epoch);
    let found = state_of(&mut fleet, &position, arguments.force).await?;
    // Epochs only grow, so a store whose epoch is lower than the copy's was set back.
    let was_set_back = found == State::Intact && age == Age::Later;
    let state = if was_set_back { State::Restored } else { found };
    let mut rosters: Vec<_> = contents.others.roster().into_iter().collect();
    rosters.extend(own.as_ref().and_then(|own| read(&fleet.keys, None, &own.pairs).others.roster()));
    rosters.extend(roster::of_exit(directories.state));
    let latest = own.as_ref().map_or(0, |own| own.position.epoch).max(copy.position.epoch);
    let mut client = fleet.client.clone();
    let mut store = Recovering::begin(&mut client, &fleet.keys, &fleet.config.exit, &fleet.meta).await?;
    let own = position.membership;
    let done = put_back((&mut fleet, &mut store), (&copy, &contents), own, (state, age), &rosters).await?;
    let before = if state == State::Lost { 0 } else { done.newest };
    let recoveries = recoveries(&copy, &fleet.meta, age, before);
    // The backup may be older than the latest recovery.
    let epoch = fleet.meta.epoch.max(latest) + 1;
    // The new epoch begins last, because the links use the store again once it has the new epoch.
    store.end(&fleet.keys, &Meta { epoch, recoveries, ..fleet.meta.clone() }).await?;
    print(&report(&done))
}

/// The copy to recover from.
fn chosen(owner: &Owner, own: Option<&Snapshot>, arguments: &RecoverArguments) -> anyhow::Result<Snapshot> {
    let copy = match &arguments.from {
        Some(path) => {
            let bytes = read_plain(path, MOST_BYTES)
                .with_context(|| format!("{} cannot be read", path.display()))?;
            decode(&bytes).map_err(|error| {
                let what = match error.is::<OtherFormat>() {
                    true => "cannot be used; recover with that version of Warren, or without --from at an exit that has a copy",
                    false => "is not a backup",
                };
                error.context(format!("{} {what}", path.display()))
            })?
        }
        None => own.cloned().context("this exit has no copy of the fleet; run this at an exit that has one, or name a backup with --from")?,
    };
    // The fleet is checked before anything is written, because an empty store would accept any fleet.
    if copy.owner.fleet != owner.fleet || own.is_some_and(|own| own.meta.id != copy.meta.id) {
        bail!("the backup is of a fleet other than this exit's; nothing was changed");
    }
    Ok(copy)
}

/// Finds out whether the store was restored.
///
/// # Errors
/// If the store must not be changed.
async fn state_of(fleet: &mut Connected, position: &Position, is_forced: bool) -> anyhow::Result<State> {
    if fleet.meta.epoch == 0 {
        return Ok(State::Lost);
    }
    let found = find(&mut fleet.client, &fleet.keys, &fleet.config.exit).await?;
    let why = match check(fleet.keys.name_of_fleet(), Some(position), &found) {
        Err(
            Mismatch::OldRevision { .. }
            | Mismatch::OtherCluster { .. }
            | Mismatch::LostWrite { .. }
            | Mismatch::LostRecovery,
        ) => {
            return Ok(State::Restored);
        }
        Err(Mismatch::Removed { .. } | Mismatch::NotMember) if is_forced => {
            return Ok(State::Intact);
        }
        Err(mismatch) => return Err(mismatch.into()),
        // This host's copy is that of the earlier exit.
        Ok((_, true)) if found.is_taken(position.membership, found.began) => {
            return Err(Mismatch::Replaced { must_stop: true }.into());
        }
        Ok((_, true)) => "was recovered already, and this exit's link will use it again by itself",
        Ok((_, false)) => "was not restored from an old backup: it has everything that this exit knows",
    };
    if !is_forced {
        bail!(
            "the store {why}; nothing was changed. If another exit refuses the store, run this there. If clients are missing \
             nevertheless, `--force` puts back those that the copy has, unless they were removed"
        );
    }
    Ok(State::Intact)
}

/// Puts back rows, exits and the roster. `membership`: the number of this exit's membership.
async fn put_back(
    (fleet, store): (&mut Connected, &mut Recovering<'_, Client>),
    (copy, contents): (&Snapshot, &Contents),
    membership: Option<u64>,
    (state, age): (State, Age),
    rosters: &[Vec<u8>],
) -> anyhow::Result<Done> {
    let (_, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    let newest = pairs.iter().map(|pair| pair.modified).max().unwrap_or(0);
    let before = read(&fleet.keys, None, &pairs).rows;
    let known = (state != State::Lost).then_some(newest);
    let basis = Basis::of_command(age, copy.revision, known, state != State::Intact);
    let disabled = if state == State::Intact { Vec::new() } else { disagreements(&contents.rows, &before) };
    let me = fleet.config.exit.clone();
    let (rows, changes) = recover_with(store, &fleet.keys, (&me, membership), contents, basis).await?;
    let roster = bring_back_roster(store, &fleet.keys, rosters).await?;
    let is_out = |exit: &ExitId| changes.removed.contains(exit) || changes.left_out.contains(exit);
    // If the copy says that this exit was removed or has left, it means an earlier membership.
    let own = contents.removed.contains_key(&me).then_some(&me);
    for exit in contents.members.keys().filter(|exit| !is_out(exit)).chain(own) {
        // A recovery that another one has overtaken must not change users either.
        store.check().await?;
        users::keep(&mut fleet.client, &fleet.keys, exit).await?;
    }
    let mut to_grant = Vec::new();
    for exit in changes.put_back.iter().filter(|exit| **exit != me) {
        store.check().await?;
        if let Err(error) = users::unconfine(&fleet.client, &fleet.keys, exit).await {
            tracing::debug!("the rights of {exit} are not granted: {error:#}");
            to_grant.push(users::unconfine_command(&fleet.keys, exit));
        }
    }
    let exits = changes;
    Ok(Done { state, age, copy: copy.revision, newest, rows, disabled, exits, to_grant, roster })
}

/// Returns how each epoch of the store has ended, including the epoch that this recovery ends. `store`: the revision of the
/// store's latest change when the recovery began.
pub(crate) fn recoveries(copy: &Snapshot, meta: &Meta, age: Age, store: i64) -> Vec<Recovery> {
    let Snapshot { meta: copied, revision, .. } = copy;
    let (earlier, last) = match age {
        Age::Same => (copied, Recovery { epoch: copied.epoch, revision: *revision, store }),
        // The store's own history continues. It is not known which changes of its epoch the store has lost.
        Age::Earlier => (meta, Recovery { epoch: meta.epoch, revision: i64::MIN, store }),
        // No revision of the store can be compared with a revision of the copy's epoch.
        Age::Later => (copied, Recovery { epoch: copied.epoch, revision: *revision, store: 0 }),
    };
    earlier.recoveries.iter().copied().chain([last]).collect()
}

/// The names of clients that are disabled in only one of the copy and the store.
fn disagreements(copy: &Rows, store: &Rows) -> Vec<String> {
    let clients = copy.iter().filter_map(|(_, row)| match &row.content {
        RowChange::Client { client, .. } => client.as_ref(),
        RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
    });
    clients
        .filter(|client| {
            store.client(client.public_key).is_some_and(|stored| stored.disabled != client.disabled)
        })
        .map(|client| client.name.clone())
        .collect()
}

fn report(done: &Done) -> String {
    let Done { rows, exits, .. } = done;
    let store = match done.state {
        State::Lost => "The store had lost everything".to_owned(),
        State::Restored => {
            format!("The store was restored from a backup; its latest change has revision {}", done.newest)
        }
        State::Intact => format!("The store is at revision {} and does not seem to be restored", done.newest),
    };
    let age = match done.age {
        Age::Same => "",
        Age::Earlier => {
            " It was made before the store's last recovery, so it only adds what is missing: it takes no exit out, withdraws no invitation \
             and replaces no client's settings."
        }
        Age::Later => {
            " It was made after a recovery that the store does not know of, so it is newer than all that the store has."
        }
    };
    let mut text = format!(
        "{store}. The copy is of revision {}.{age}\nClients: {} put back, {} changed, {} removed again{}.\nRemoved keys: {} put back.\n\
         Invitations: {} put back, {} used or withdrawn.\nExits: {} put back{}, {} removed again{}.\n",
        done.copy,
        rows.new_clients,
        rows.changed_clients,
        rows.cut_off.len(),
        listed(&rows.cut_off),
        rows.removed_keys,
        rows.invitations,
        rows.used_invitations + rows.withdrawn_invitations,
        exits.put_back.len(),
        listed(&exits.put_back),
        exits.removed.len(),
        listed(&exits.removed),
    );
    text += &match done.roster {
        Some(serial) => format!("Roster: {serial} is put back.\n"),
        None => "Roster: the store has the newest one that is known here.\n".to_owned(),
    };
    text += "Tickets that nobody has used are void; make new ones with `warren fleet ticket NAME`.\n";
    text += "The exits use the store again. Each exit first adds what only it knows: clients, removed keys, removed exits \
             or a newer roster. Its log says what it added.\n";
    text + &to_check(done)
}

/// Lists the things that the operator should check.
fn to_check(done: &Done) -> String {
    let Done { rows, exits, .. } = done;
    let mut lines = Vec::new();
    if done.state != State::Intact {
        lines.push(
            "open invitations that are newer than the copy are put back once every exit of the fleet has come back; if an exit is lost for good, \
             make them again"
                .to_owned(),
        );
    }
    if !done.disabled.is_empty() {
        let (count, names) = (counted(done.disabled.len(), "client"), listed(&done.disabled));
        lines.push(format!(
            "{count} disabled now{names}, because either the copy or the store says so; to enable one, run \
             `warren exit client enable NAME`"
        ));
    }
    if !rows.left_out.is_empty() {
        let (count, names) = (rows.left_out.len(), listed(&rows.left_out));
        lines.push(format!(
            "clients or invitations that were not put back, because other clients have their names or addresses now: {count}{names}; \
             if you still want them, enrol or invite them again"
        ));
    }
    if !exits.removed.is_empty() {
        lines.push(format!(
            "the etcd users of the removed exits{} are removed within twenty seconds if a link may remove users; otherwise run \
             `warren fleet remove NAME`",
            listed(&exits.removed)
        ));
    }
    if !exits.put_back.is_empty() {
        lines.push(format!(
            "the exits that were put back{} need their etcd users, which the store may lack (`etcdctl user list`)",
            listed(&exits.put_back)
        ));
    }
    if !done.to_grant.is_empty() {
        lines.push(format!(
            "in the backup, the etcd users of these exits may have no rights except to read their own removal, and this command's user may not grant \
             any. As etcd's root, run:\n    {}\nThis changes nothing if they have their rights",
            done.to_grant.join("\n    ")
        ));
    }
    if !exits.left_out.is_empty() {
        lines.push(format!(
            "exits that were not put back, because they may have been removed{}; if you still want one, run `warren fleet leave` there, \
             and join with a new ticket",
            listed(&exits.left_out)
        ));
    }
    lines.push("`warren fleet status` must list every exit of the fleet, and no removed one".to_owned());
    lines.iter().map(|line| format!("Check: {line}.\n")).collect()
}

/// Some names in brackets, or nothing if there are none.
fn listed<T: ToString>(names: &[T]) -> String {
    let Some(rest) = names.len().checked_sub(1) else { return String::new() };
    let shown: Vec<String> = names.iter().take(MOST_NAMES).map(ToString::to_string).collect();
    let more = if rest >= MOST_NAMES { ", ..." } else { "" };
    format!(" ({}{more})", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use warren_fleet_link::Pools;

    use super::*;

    #[test]
    fn a_copy_of_another_epoch_does_not_replace_the_stores_history() {
        let owner = Owner { fleet: "f".to_owned(), exit: ExitId::try_from("a".to_owned()).unwrap() };
        let pools = Pools { ipv4: None, ipv6: None };
        let of = |epoch, recoveries| Meta {
            format: 1,
            id: "f".to_owned(),
            epoch,
            pools: pools.clone(),
            recoveries,
        };
        let first = Recovery { epoch: 1, revision: 9000, store: 0 };
        let copy_of = |meta: Meta| Snapshot {
            owner: owner.clone(),
            meta,
            position: Position::default(),
            revision: 500,
            pairs: Vec::new(),
        };
        let ended = |copied: Meta, stored: Meta, store| {
            let age = Age::of(copied.epoch, stored.epoch);
            let recoveries = recoveries(&copy_of(copied), &stored, age, store);
            Meta { epoch: 4, recoveries, ..stored }
        };
        let after = ended(of(1, Vec::new()), of(2, vec![first]), 700);
        // Links of the store's own epoch compare their copies with the store before the recovery.
        let unknown = Recovery { epoch: 2, revision: i64::MIN, store: 700 };
        assert_eq!([1, 2].map(|epoch| after.recovery_since(epoch)), [Some(first), Some(unknown)]);

        let second = Recovery { epoch: 2, revision: 800, store: 700 };
        let after = ended(of(3, vec![first, second]), of(2, vec![first]), 700);
        let last = Recovery { epoch: 3, revision: 500, store: 0 };
        assert_eq!([2, 3].map(|epoch| after.recovery_since(epoch)), [Some(second), Some(last)]);

        let after = ended(of(2, vec![first]), of(2, vec![first]), 400);
        assert_eq!(after.recovery_since(2), Some(Recovery { epoch: 2, revision: 500, store: 400 }));
    }
}
