//! Firewall tables of one plan that are made, or deleted, in one transaction. Each transaction costs a run of nft.

use super::{Applied, Host};
use crate::{
    Step, TableFamily,
    nft::{self, NftError},
    step::{self, StepError},
    undo::Undo,
};

/// The tables at the beginning of `steps` that belong to no process.
pub(super) fn leading(steps: &[Step]) -> &[Step] {
    let is_other = |step: &Step| !matches!(step, Step::Nftables { owned: false, .. });
    let end = steps.iter().position(is_other).unwrap_or(steps.len());
    steps.get(..end).unwrap_or_default()
}

impl Host {
    /// Makes several new tables. Returns false if nft refuses them as one; nothing has changed then, and each of them
    /// alone shows what is wrong.
    pub(super) async fn make_together(
        &mut self,
        tables: &[Step],
        applied: &mut Applied,
    ) -> Result<bool, StepError> {
        let mut text = String::new();
        let mut entries = Vec::new();
        for step in tables {
            let Step::Nftables { family, table, ruleset, .. } = step else { continue };
            text.push_str(&step::new_table(*family, table, ruleset, false));
            let undo = Undo::Nftables { family: *family, table: table.clone() };
            entries.push((self.journal.begin(undo)?, step));
        }
        let lock = self.share_lock()?;
        let made = nft::load(&text, lock).await;
        for (entry, step) in entries {
            match made {
                Ok(()) => applied.add(entry, step),
                Err(_) => self.journal.end(entry)?,
            }
        }
        match made {
            Ok(()) => Ok(true),
            Err(NftError::Refused(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the tables of these entries if there are at least two, no process of ours owns one of them, and all are
    /// there. Returns what it has undone.
    pub(super) async fn delete_together(&mut self, entries: &[u64]) -> Result<Vec<String>, StepError> {
        let mut tables: Vec<(u64, TableFamily, String)> = Vec::new();
        for entry in entries {
            match self.journal.outstanding().get(entry) {
                Some(Undo::Nftables { family, table }) if !self.owners.contains_key(entry) => {
                    tables.push((*entry, *family, table.clone()));
                }
                _ => break,
            }
        }
        if tables.len() < 2 {
            return Ok(Vec::new());
        }
        let text: String =
            tables.iter().map(|(_, family, table)| format!("delete table {family} {table}\n")).collect();
        let lock = self.share_lock()?;
        if nft::load(&text, lock).await.is_err() {
            // Each of them alone shows which is gone, or what is wrong.
            return Ok(Vec::new());
        }
        let mut undone = Vec::new();
        for (entry, family, table) in tables {
            undone.push(Undo::Nftables { family, table }.to_string());
            self.journal.end(entry)?;
        }
        Ok(undone)
    }
}
