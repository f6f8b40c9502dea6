//! Makes or deletes several firewall tables of a plan in one transaction, because each transaction costs a run of nft.

use crate::{Step, step, undo::Undo};

/// The tables at the beginning of `steps` that no process owns.
pub(super) fn leading(steps: &[Step]) -> &[Step] {
    let is_other = |step: &Step| !matches!(step, Step::Nftables { owned: false, .. });
    let end = steps.iter().position(is_other).unwrap_or(steps.len());
    steps.get(..end).unwrap_or_default()
}

/// Returns the nft text that makes new tables, and the undo of each table.
pub(super) fn new(tables: &[Step]) -> (String, Vec<Undo>) {
    let mut text = String::new();
    let mut undos = Vec::new();
    for step in tables {
        let Step::Nftables { family, table, ruleset, .. } = step else { continue };
        text.push_str(&step::new_table(*family, table, ruleset, false));
        undos.push(Undo::Nftables { family: *family, table: table.clone() });
    }
    (text, undos)
}

/// Returns the nft line that undoes a change by deleting its table. `None` if the change is not a table.
pub(super) fn deletion(undo: &Undo) -> Option<String> {
    let Undo::Nftables { family, table } = undo else { return None };
    Some(format!("delete table {family} {table}\n"))
}
