//! The rules of a closed kill switch, stored beside its journal. If the table is changed or deleted, any process can recreate it
//! from these rules, even after the process that closed the kill switch has ended.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::rules::KillSwitchRules;
use crate::durable_file::{Unfinished, replace};

/// The record of one kill switch. It is valid only while the journal lists the kill switch as closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) rules: KillSwitchRules,
    /// The kernel's listing of the table right after it was made. `None` while the table is being made.
    pub(super) listing: Option<String>,
}

impl Record {
    /// Reads the record beside a journal. `None` if it is missing or cannot be read, for instance because an earlier
    /// version wrote it.
    pub(super) fn read(journal: &Path) -> io::Result<Option<Self>> {
        match fs::read(file(journal)) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the record beside a journal atomically. The caller has locked the journal.
    pub(super) fn write(&self, journal: &Path) -> io::Result<()> {
        let unfinished = journal.with_extension("rules-unfinished");
        // Only the owner may read the record, because the mark in it is a secret.
        let mode = 0o600;
        replace(&file(journal), Unfinished::At(&unfinished), &serde_json::to_vec(self)?, mode, None)
    }

    /// Removes the record beside a journal, if there is one.
    pub(super) fn remove(journal: &Path) {
        // If removing fails, the record does no harm, because it is not valid without an entry in the journal.
        drop(fs::remove_file(file(journal)));
    }
}

fn file(journal: &Path) -> PathBuf {
    journal.with_extension("rules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_read_as_it_was_written_and_one_that_makes_no_sense_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("kill-switch");
        assert_eq!(Record::read(&journal).unwrap(), None);
        let rules = KillSwitchRules {
            include: vec!["0.0.0.0/0".parse().unwrap()],
            query_mark: Some(7),
            ..KillSwitchRules::default()
        };
        let record = Record { rules, listing: Some("table inet x {\n}\n".into()) };

        record.write(&journal).unwrap();
        Record { listing: None, ..record.clone() }.write(&journal).unwrap();

        assert_eq!(Record::read(&journal).unwrap(), Some(Record { listing: None, ..record }));
        fs::write(directory.path().join("kill-switch.rules"), "{").unwrap();
        assert_eq!(Record::read(&journal).unwrap(), None);
        Record::remove(&journal);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
