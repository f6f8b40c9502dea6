//! Applies a plan as a unit, and undoes it as a unit.

mod error;
mod leaving;
mod tables;

use std::{collections::BTreeMap, fs::File, io, path::Path};

pub use error::{ApplyError, ChangeError, HostError, UndoError};

use self::leaving::Leaving;
use crate::{
    DeviceName, Family, Forwarding, Missing, Plan, Surroundings, TableFamily,
    band::Band,
    client_plan,
    foreign_rules::{self, RulePlace, Tunnel},
    journal::{Journal, Place},
    netlink::Netlink,
    nft::{self, NftError},
    plan::{Step, table_text},
    step::{self, StepError},
    undo::Undo,
    verify,
};

/// The host, as the calling thread's network namespace shows it, and the journal of changes to the host.
///
/// If the future of a call is dropped before it has completed, some steps may stay in effect. They are in the journal, so
/// [`Host::undo_all`] and [`recover`] find them.
#[derive(Debug)]
pub struct Host {
    netlink: Netlink,
    journal: Journal,
    owners: BTreeMap<u64, OwnedTable>,
}

/// A firewall table that an nft process of Warren's owns, and the rules that were loaded last.
#[derive(Debug)]
struct OwnedTable {
    owner: nft::Owner,
    ruleset: String,
}

/// The changes that one plan has made, to be undone by [`Host::undo`].
///
/// If this is dropped instead, the changes stay in effect until [`Host::undo_all`], or until [`recover`] once
/// this process has ended.
#[derive(Debug, Default)]
#[must_use = "the changes stay in effect until they are handed to Host::undo"]
pub struct Applied {
    /// The journal entry of each step, and the step itself unless a later step has replaced it.
    entries: Vec<(u64, Option<Step>)>,
}

/// The result of [`Host::repair`].
#[derive(Debug, Default)]
pub struct Repaired {
    /// Steps that were not in effect and have been made again.
    pub repaired: Vec<Missing>,
    /// Steps that are not in effect and could not be repaired.
    pub failed: Vec<(Missing, StepError)>,
}

/// The result of [`recover`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The changes that were undone or were gone already, in the order of undoing. Each is a phrase for use in a message.
    pub undone: Vec<String>,
    /// The numbers of journal lines that could not be read, so that their changes were not undone.
    pub damaged_lines: Vec<usize>,
}

impl Host {
    /// Opens the host and the journal at `journal`, whose directory exists. Call this within a tokio runtime.
    ///
    /// # Errors
    /// If another process has the journal open, or the journal lists changes of a killed daemon, which [`recover`]
    /// must undo first.
    pub async fn open(journal: impl AsRef<Path>) -> Result<Self, HostError> {
        let path = journal.as_ref();
        let host = Self::open_unfinished(path)?;
        if host.journal.outstanding().is_empty() {
            return Ok(host);
        }
        Err(HostError::Unfinished(path.to_owned()))
    }

    /// Makes the plan's steps in order. Consecutive firewall tables are made in one transaction. If a step fails, the
    /// earlier ones are undone in reverse.
    ///
    /// # Errors
    /// The step that failed and why, and the changes that could not be undone.
    pub async fn apply(&mut self, plan: &Plan) -> Result<Applied, ApplyError> {
        let mut applied = Applied::default();
        let mut rest = plan.steps.as_slice();
        while let Some((step, others)) = rest.split_first() {
            let tables = tables::leading(rest);
            let together = match tables.len() {
                0 | 1 => Ok(false),
                _ => self.make_together(tables, &mut applied).await,
            };
            let made = match together {
                Ok(true) => {
                    rest = rest.get(tables.len()..).unwrap_or_default();
                    continue;
                }
                Ok(false) => self.make(step, &mut applied).await,
                Err(error) => Err(error),
            };
            if let Err(cause) = made {
                let left = self.undo(applied).await.err();
                return Err(ApplyError { step: step.summary(), cause, left });
            }
            rest = others;
        }
        Ok(applied)
    }

    /// Compares the host with a plan and lists the missing steps.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub async fn verify(&self, plan: &Plan) -> Result<Vec<Missing>, StepError> {
        verify::verify(plan, &self.netlink).await
    }

    /// Checks an applied plan, and makes each step again that somebody has undone.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub async fn repair(&mut self, plan: &Plan, applied: &mut Applied) -> Result<Repaired, StepError> {
        let mut found = Repaired::default();
        for missing in self.verify(plan).await? {
            match self.make(&missing.step, applied).await {
                Ok(()) => found.repaired.push(missing),
                Err(error) => found.failed.push((missing, error)),
            }
        }
        Ok(found)
    }

    /// Turns an applied plan into another. First makes the steps that only the new plan has, then undoes those that
    /// only the old plan has. Steps that are in both plans are left alone. Only [`Host::undo`] puts the device and
    /// settings back.
    ///
    /// # Errors
    /// The step that failed and why. `applied` has the steps that were made and have not been undone.
    pub async fn change(&mut self, applied: &mut Applied, plan: &Plan) -> Result<(), ChangeError> {
        for step in plan.steps.iter().filter(|step| !applied.has(step)).collect::<Vec<_>>() {
            if let Err(cause) = self.make(step, applied).await {
                return Err(ApplyError { step: step.summary(), cause, left: None }.into());
            }
        }
        // Steps that cannot be undone alone, such as settings, stay in the journal until the whole plan is undone.
        let obsolete = applied.take(|step| step.stands_alone() && !plan.steps.contains(step));
        self.undo_entries(obsolete, &mut Leaving::default()).await?;
        Ok(())
    }

    /// Waits until an nft process that owns an applied firewall table has ended. The kernel has then deleted the table. Without
    /// such a process, waits for ever.
    pub async fn table_lost(&mut self) {
        let ends: Vec<_> = self.owners.values_mut().map(|table| Box::pin(table.owner.ended())).collect();
        if ends.is_empty() {
            return std::future::pending().await;
        }
        futures_util::future::select_all(ends).await;
    }

    /// Replaces the rules of a firewall table that one of Warren's nft processes owns, in one transaction, so that no packet
    /// passes while the table is incomplete. If the definitions of all sets and base chains stay the same, sets keep their
    /// content, so clients' flows stay counted. The way in which the table is undone does not change.
    ///
    /// # Errors
    /// If there is no such table, or nft refuses the rules. In that case the old rules stay in force.
    pub async fn replace_table(&mut self, table: &str, ruleset: &str) -> Result<(), StepError> {
        let outstanding = self.journal.outstanding();
        let is_its = |entry: &u64| matches!(outstanding.get(entry), Some(Undo::Nftables { family: TableFamily::Inet, table: own }) if own == table);
        let owned = self.owners.iter_mut().find(|(entry, _)| is_its(entry));
        let (_, owned) = owned.ok_or(StepError::Nft(NftError::Gone))?;
        let text = table_text(TableFamily::Inet, table, ruleset, true);
        let emptied = nft::emptied(table, &owned.ruleset, ruleset);
        // nft cannot change the definition of a set or base chain, so in that case the transaction deletes the table and
        // recreates it.
        let emptied = emptied.unwrap_or_else(|| format!("delete table inet {table}\n"));
        owned.owner.load(&format!("{emptied}{text}")).await?;
        ruleset.clone_into(&mut owned.ruleset);
        Ok(())
    }

    /// Undoes an applied plan in reverse. Steps that are gone already are skipped.
    ///
    /// # Errors
    /// The steps that could not be undone; all others are undone.
    pub async fn undo(&mut self, applied: Applied) -> Result<(), UndoError> {
        let entries = applied.entries.into_iter().map(|(entry, _)| entry).collect();
        self.undo_entries(entries, &mut Leaving::default()).await.map(drop)
    }

    /// Undoes all changes in the journal, in reverse order.
    ///
    /// # Errors
    /// The steps that could not be undone; all others are undone.
    pub async fn undo_all(&mut self) -> Result<(), UndoError> {
        self.undo_all_with(Vec::new()).await.map(drop)
    }

    /// Undoes all changes in the journal, in reverse order. Also deletes the devices with these indexes, which must be Warren's,
    /// once no rule leads to them. Returns a future that waits until the devices are deleted.
    ///
    /// # Errors
    /// The steps that could not be undone; all others are undone.
    pub async fn undo_all_with(
        &mut self,
        devices: Vec<u32>,
    ) -> Result<impl Future<Output = ()> + Send + use<>, UndoError> {
        let entries = self.journal.outstanding().keys().copied().collect();
        let mut leaving = Leaving::of(devices);
        self.undo_entries(entries, &mut leaving).await?;
        Ok(leaving.gone())
    }

    /// The changes on this host as the journal lists them, oldest first, each in a few words.
    pub fn changes(&self) -> Vec<String> {
        self.journal.outstanding().values().map(Undo::change).collect()
    }

    /// Finds a slot whose routing table and rule priorities are unused on this host. `None` if all 256 are taken.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub async fn free_slot(&self) -> Result<Option<u8>, HostError> {
        first_free_slot(&self.netlink).await.map_err(HostError::Read)
    }

    /// Finds a band with no bypass in front of it for the rules of the tunnel in `slot`. `band` is the band that the rules are in
    /// or, if they do not exist yet, the one that is planned for them.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub async fn place(&self, tunnel: &Tunnel, slot: u8, band: Band) -> Result<RulePlace, HostError> {
        foreign_rules::place(&self.netlink, tunnel, slot, band).await.map_err(HostError::Read)
    }

    /// Returns the networks and devices around an exit whose own device is `tun`, and which devices already forward.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub async fn surroundings(&self, tun: &DeviceName) -> Result<Surroundings, HostError> {
        let observer = self.netlink.observe(tun).await.map_err(HostError::Read)?;
        let changes = self.journal.outstanding();
        let changed = |key: &str, device| changes.values().find_map(|undo| undo.companions_of(key, device));
        observer
            .surroundings(|bridges, indexes| Forwarding::look(tun, changed, bridges, indexes))
            .map_err(HostError::Read)
    }

    /// Opens the host even if the journal lists changes of a killed daemon.
    pub(crate) fn open_unfinished(path: &Path) -> Result<Self, HostError> {
        let journal = open_journal(path)?;
        let netlink = Netlink::open().map_err(HostError::Read)?;
        Ok(Self { netlink, journal, owners: BTreeMap::new() })
    }

    /// Records in the journal how to undo a step that is about to be made, unless that is recorded already.
    pub(crate) fn note_once(&mut self, undo: Undo) -> io::Result<()> {
        if self.journal.outstanding().values().any(|noted| *noted == undo) {
            return Ok(());
        }
        self.journal.begin(undo).map(drop)
    }

    /// A second descriptor of the journal's lock, for a child process that may outlive this process.
    pub(crate) fn share_lock(&self) -> io::Result<File> {
        self.journal.share_lock()
    }

    /// Makes a step, and adds it to `applied`. Replaces an earlier form of the step in `applied`.
    async fn make(&mut self, step: &Step, applied: &mut Applied) -> Result<(), StepError> {
        let replaced = applied.replaced_by(step);
        let Some(undo) = step::prepare(step, &self.netlink, replaced).await? else { return Ok(()) };
        // If a step is repeated because somebody had undone it, its existing entry is used, so that it is undone only once.
        let known = self.journal.outstanding().iter().find(|(_, outstanding)| **outstanding == undo);
        let (entry, is_new) = match known.map(|(entry, _)| *entry) {
            Some(entry) => (entry, false),
            None => (self.journal.begin(undo.clone())?, true),
        };
        // Only the process that owns a table can change it. If that process has ended, the table is gone, and the code
        // below makes a new one.
        if replaced
            && !applied.has(step)
            && let Some((table, ruleset)) = step.owned_rules()
            && self.replace_table(table, ruleset).await.is_ok()
        {
            applied.replace(step, entry);
            applied.add(entry, step);
            return Ok(());
        }
        let lock = self.share_lock()?;
        match step::make(step, &undo, &self.netlink, replaced, lock).await {
            Ok(owner) => {
                let ruleset = step.owned_rules().map(|(_, ruleset)| ruleset.to_owned()).unwrap_or_default();
                self.owners.extend(owner.map(|owner| (entry, OwnedTable { owner, ruleset })));
            }
            // The entry stays in the journal, so that undoing the plan also undoes the part of this step that took effect.
            Err(error) if step::may_be_half_made(step) || (is_new && is_unanswered(&error)) => {
                applied.add(entry, step);
                return Err(error);
            }
            Err(error) => {
                // An entry that existed before belongs to an earlier change, so only a new one is ended.
                if is_new {
                    self.journal.end(entry)?;
                }
                return Err(error);
            }
        }
        let entry = self.note_put_back(step, &undo, entry)?;
        if replaced {
            for gone in applied.replace(step, entry) {
                self.journal.end(gone)?;
            }
        }
        applied.add(entry, step);
        Ok(())
    }

    /// Makes several new tables in one transaction. Returns false if nft refuses them together. In that case nothing has changed,
    /// and the caller makes each table separately to find the one at fault.
    async fn make_together(&mut self, tables: &[Step], applied: &mut Applied) -> Result<bool, StepError> {
        let (text, undos) = tables::new(tables);
        let entries =
            undos.into_iter().map(|undo| self.journal.begin(undo)).collect::<io::Result<Vec<_>>>()?;
        let lock = self.share_lock()?;
        let made = nft::load(&text, lock).await;
        for (entry, step) in entries.into_iter().zip(tables) {
            match made {
                Err(NftError::Refused(_) | NftError::Missing) => self.journal.end(entry)?,
                // If nft gave no answer, it may have made the tables nevertheless, so they count as applied and are undone with
                // the plan.
                Ok(()) | Err(NftError::Gone | NftError::Io(_)) => applied.add(entry, step),
            }
        }
        match made {
            Ok(()) => Ok(true),
            Err(NftError::Refused(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the tables at the beginning of `entries` in one transaction, if there are at least two. Skips tables that one of
    /// Warren's nft processes owns. Returns the deleted tables: none if one of them was already gone.
    async fn delete_together(&mut self, entries: &[u64]) -> io::Result<Vec<String>> {
        let mut text = String::new();
        let mut tables = Vec::new();
        for entry in entries.iter().take_while(|entry| !self.owners.contains_key(entry)) {
            let Some(undo) = self.journal.outstanding().get(entry) else { break };
            let Some(deletion) = tables::deletion(undo) else { break };
            text.push_str(&deletion);
            tables.push((*entry, undo.to_string()));
        }
        if tables.len() < 2 || nft::load(&text, self.share_lock()?).await.is_err() {
            return Ok(Vec::new());
        }
        tables.into_iter().map(|(entry, undone)| self.journal.end(entry).map(|()| undone)).collect()
    }

    /// Replaces `entry` with one that records that the setting's companions were put back. If a companion is on later, somebody
    /// else has turned it on. Returns the new entry's number.
    fn note_put_back(&mut self, step: &Step, undo: &Undo, entry: u64) -> io::Result<u64> {
        let Some(undo) = undo.with_companions_put_back(step) else { return Ok(entry) };
        // The new entry is written before the old one ends. If the process is killed in between, undoing both does no harm,
        // because the second undo finds that the setting no longer has Warren's value.
        let known = self.journal.outstanding().iter().find(|(_, outstanding)| **outstanding == undo);
        let noted = match known.map(|(entry, _)| *entry) {
            Some(entry) => entry,
            None => self.journal.begin(undo)?,
        };
        self.journal.end(entry)?;
        Ok(noted)
    }

    async fn undo_entries(
        &mut self,
        mut entries: Vec<u64>,
        leaving: &mut Leaving,
    ) -> Result<Vec<String>, UndoError> {
        entries.sort_unstable();
        let mut undone = Vec::new();
        let mut left = Vec::new();
        // Entry numbers rise in the order of the steps, even if a repair has changed the order in `Applied`. The
        // steps are undone in reverse order, because a later step may depend on an earlier one. A route, for
        // instance, depends on its device's address.
        entries.reverse();
        for (place, entry) in entries.iter().enumerate() {
            // The loop skips the entries of tables that `delete_together` has deleted, because they are no longer in the journal.
            match self.delete_together(entries.get(place..).unwrap_or_default()).await {
                Ok(mut deleted) => undone.append(&mut deleted),
                Err(error) => left.push(("firewall tables".to_owned(), error.into())),
            }
            let Some(undo) = self.journal.outstanding().get(entry).cloned() else { continue };
            let owner = self.owners.remove(entry).map(|table| table.owner);
            let made = match leaving.takes_along(&undo) {
                true => Ok(()),
                false => undo.run(&self.netlink, owner).await,
            };
            let result = match made {
                Ok(()) => self.journal.end(*entry).map_err(StepError::Io),
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => undone.push(undo.to_string()),
                Err(error) => left.push((undo.to_string(), error)),
            }
        }
        if left.is_empty() { Ok(undone) } else { Err(UndoError { left }) }
    }
}

/// Whether nft gave no answer. The kernel may have made the table nevertheless.
fn is_unanswered(error: &StepError) -> bool {
    matches!(error, StepError::Nft(NftError::Gone | NftError::Io(_)))
}

impl Applied {
    fn has(&self, step: &Step) -> bool {
        self.steps().any(|applied| applied == step)
    }

    /// Whether `step` replaces an applied step, because the kernel holds only one of the two.
    fn replaced_by(&self, step: &Step) -> bool {
        self.steps().any(|applied| applied.is_replaced_by(step))
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.entries.iter().filter_map(|(_, step)| step.as_ref())
    }

    fn add(&mut self, entry: u64, step: &Step) {
        self.entries.retain(|(other, _)| *other != entry);
        self.entries.push((entry, Some(step.clone())));
    }

    /// Removes the steps that `step`, whose entry is `entry`, has replaced. Returns the entries for which nothing is left to
    /// undo.
    fn replace(&mut self, step: &Step, entry: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        for (other, applied) in &mut self.entries {
            if *other == entry || !applied.as_ref().is_some_and(|applied| applied.is_replaced_by(step)) {
                continue;
            }
            // The entry of a device or setting stays, because only its first entry contains the value from before the plan.
            let undone = applied.take().is_some_and(|applied| applied.stands_alone());
            gone.extend(undone.then_some(*other));
        }
        self.entries.retain(|(entry, _)| !gone.contains(entry));
        gone
    }

    /// Removes the entries whose steps are `wanted`.
    fn take(&mut self, wanted: impl Fn(&Step) -> bool) -> Vec<u64> {
        let is_wanted = |step: &Option<Step>| step.as_ref().is_some_and(&wanted);
        let taken =
            self.entries.iter().filter(|(_, step)| is_wanted(step)).map(|(entry, _)| *entry).collect();
        self.entries.retain(|(_, step)| !is_wanted(step));
        taken
    }
}

/// Finds a slot whose routing table and rule priorities are unused on this host. `None` if all 256 are taken. Opens no
/// journal.
///
/// # Errors
/// If the kernel's state cannot be read.
pub async fn free_slot() -> Result<Option<u8>, HostError> {
    let netlink = Netlink::open().map_err(HostError::Read)?;
    first_free_slot(&netlink).await.map_err(HostError::Read)
}

/// Like [`Host::place`] for a tunnel without rules, but without a journal.
///
/// # Errors
/// If the kernel's state cannot be read.
pub async fn place(tunnel: &Tunnel, slot: u8) -> Result<RulePlace, HostError> {
    let netlink = Netlink::open().map_err(HostError::Read)?;
    foreign_rules::place(&netlink, tunnel, slot, Band::USUAL).await.map_err(HostError::Read)
}

/// The networks and devices around an exit whose own device is `tun`, before it has changed anything. Opens no
/// journal.
///
/// # Errors
/// If the kernel's state cannot be read.
pub async fn surroundings(tun: &DeviceName) -> Result<Surroundings, HostError> {
    let observer = Netlink::open().map_err(HostError::Read)?.observe(tun).await.map_err(HostError::Read)?;
    observer
        .surroundings(|bridges, indexes| Forwarding::look(tun, |_, _| None, bridges, indexes))
        .map_err(HostError::Read)
}

async fn first_free_slot(netlink: &Netlink) -> io::Result<Option<u8>> {
    for slot in 0..=u8::MAX {
        // If a tunnel's rules are in another band, the search for the table finds them.
        let (priorities, table) = (Band::USUAL.priorities(slot), client_plan::table(slot));
        let is_used = netlink.is_used(Family::Ipv4, priorities, table).await?
            || netlink.is_used(Family::Ipv6, priorities, table).await?;
        if !is_used {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

/// Opens a journal, even if it lists changes of a killed process. Discards the changes of another boot, because none of them is
/// in effect any more.
pub(crate) fn open_journal(path: &Path) -> Result<Journal, HostError> {
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let mut journal = Journal::open(path).map_err(failed)?.ok_or_else(|| HostError::Busy(path.to_owned()))?;
    journal.forget_other_boots().map_err(failed)?;
    let here = Place::here().map_err(failed)?;
    match journal.place() {
        Some(place) if place.namespace != here.namespace && !journal.outstanding().is_empty() => {
            Err(HostError::OtherNamespace(path.to_owned()))
        }
        _ => Ok(journal),
    }
}

/// Undoes the changes that a killed daemon's journal lists, and nothing else. Call this within a tokio runtime.
///
/// A missing journal at `journal` means that there is nothing to undo.
///
/// # Errors
/// If a running daemon has the journal open, the journal is about another network namespace, or something could not be
/// undone.
pub async fn recover(journal: impl AsRef<Path>) -> Result<Recovered, HostError> {
    undo_journal(journal.as_ref(), false).await
}

/// Like [`recover`], but afterwards deletes each of the journal's tables once more, because a process that read the journal
/// before may have recreated a table.
pub(crate) async fn recover_and_look_again(journal: &Path) -> Result<Recovered, HostError> {
    undo_journal(journal, true).await
}

async fn undo_journal(path: &Path, looks_again: bool) -> Result<Recovered, HostError> {
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => return Ok(Recovered::default()),
        Err(source) => return Err(HostError::Journal { path: path.to_owned(), source }),
    }
    let mut host = Host::open_unfinished(path)?;
    let damaged_lines = host.journal.damaged().to_vec();
    let is_table = |undo: &&Undo| matches!(undo, Undo::Nftables { .. });
    let tables: Vec<Undo> = host.journal.outstanding().values().filter(is_table).cloned().collect();
    let entries = host.journal.outstanding().keys().copied().collect();
    let undone = host.undo_entries(entries, &mut Leaving::default()).await?;
    // Damaged lines are reported only once. If they stayed in the journal, the file would never be removed.
    host.journal.clear().map_err(|source| HostError::Journal { path: path.to_owned(), source })?;
    // The journal is still locked, so these tables cannot belong to another daemon.
    for table in tables.iter().filter(|_| looks_again) {
        let failed = |error| UndoError { left: vec![(table.to_string(), error)] };
        table.run(&host.netlink, None).await.map_err(failed)?;
    }
    Ok(Recovered { undone, damaged_lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_the_host_can_be_a_task_of_its_own() {
        fn is_send<T: Send>(_: &T) {}
        fn check(mut host: Host, plan: &Plan, journal: &Path) {
            is_send(&recover(journal));
            is_send(&host.verify(plan));
            is_send(&host.free_slot());
            is_send(&host.undo_all());
            is_send(&host.apply(plan));
            is_send(&host.change(&mut Applied::default(), plan));
            is_send(&host.repair(plan, &mut Applied::default()));
            is_send(&host);
        }
        let _ = check;
    }
}
