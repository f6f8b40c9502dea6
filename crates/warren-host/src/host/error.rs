//! Errors of changing the host and of undoing changes.

use std::{fmt, io, path::PathBuf};

use crate::step::StepError;

/// Why changes to the host cannot be made or undone.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The journal cannot be read or written.
    #[error("cannot use the journal {path}: {source}; {}", advice_on_journal(source))]
    Journal {
        /// The journal's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has the journal open.
    #[error("{0} is in use by a running Warren; stop it first with `warren down` or `systemctl stop`")]
    Busy(PathBuf),
    /// A killed daemon left changes behind.
    #[error("{0} lists changes that a killed Warren left on this host; undo them with `warren cleanup`")]
    Unfinished(PathBuf),
    /// The journal's changes were made in another network namespace.
    #[error(
        "{0} lists changes in another network namespace; run `warren cleanup` there, or delete the file if that namespace is gone"
    )]
    OtherNamespace(PathBuf),
    /// The kernel's state cannot be read.
    #[error("cannot read the state of the network: {0}; run it as root")]
    Read(#[source] io::Error),
    /// Some changes could not be undone.
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// A plan that could not be applied. All earlier steps were undone, except those in [`ApplyError::left`].
#[derive(Debug)]
pub struct ApplyError {
    /// The step that failed, as a person would type it.
    pub step: String,
    /// Why the step failed.
    pub cause: StepError,
    /// The changes that could not be undone afterwards.
    pub left: Option<UndoError>,
}

/// Why an applied plan could not be turned into another.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A step of the new plan failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A part of the old plan could not be undone.
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// Changes that could not be undone; they are still in the journal.
#[derive(Debug)]
pub struct UndoError {
    /// Each change with the reason.
    pub left: Vec<(String, StepError)>,
}

fn advice_on_journal(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        "run it as root"
    } else if source.kind() == io::ErrorKind::StorageFull {
        "free space on that disk, or choose another --runtime-dir"
    } else {
        "check its directory, or choose another --runtime-dir"
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed: {}", self.step, self.cause)?;
        match &self.left {
            Some(left) => write!(f, "; {left}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ApplyError {}

impl fmt::Display for UndoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("could not undo ")?;
        for (number, (what, why)) in self.left.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{what} ({why})")?;
        }
        f.write_str("; `warren cleanup` tries again")
    }
}

impl std::error::Error for UndoError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_says_what_failed_why_and_what_is_left() {
        let left = UndoError { left: vec![("link x0".into(), StepError::NotPermitted)] };
        let error =
            ApplyError { step: "sysctl -w a=1".into(), cause: StepError::NoSetting, left: Some(left) };

        assert_eq!(
            error.to_string(),
            "`sysctl -w a=1` failed: this kernel has no such setting; use a kernel that has it; could not undo link x0 (not permitted; run it as \
             root or with CAP_NET_ADMIN); `warren cleanup` tries again"
        );
    }
}
