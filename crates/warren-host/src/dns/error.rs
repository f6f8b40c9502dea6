//! Why the host's resolvers cannot be set or put back.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{IFlags, ioctl_getflags},
    io::Errno,
};

/// Why the host's resolvers cannot be set or put back.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; mend that, {advice}", advice = OR_LEAVE)]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {path}: {source}; mend that, {advice}", advice = OR_LEAVE)]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is immutable.
    #[error("{0} is immutable; allow changes with `chattr -i {0}`, {advice}", advice = OR_LEAVE)]
    Immutable(PathBuf),
    /// The file system takes no changes.
    #[error(
        "{0} is on a read-only file system; make it writable for Warren (ReadWritePaths= in a systemd unit), {advice}",
        advice = OR_LEAVE
    )]
    ReadOnly(PathBuf),
    /// The process may not change the file.
    #[error("{0} is not this user's to change; run Warren as root, {advice}", advice = OR_LEAVE)]
    NotPermitted(PathBuf),
    /// Something stands there that no resolver reads.
    #[error("{0} is neither a file nor a symbolic link; put a file there, {advice}", advice = OR_LEAVE)]
    NotAFile(PathBuf),
    /// Another Warren, with another state directory, has written the file, and what it replaced is known to that one only.
    #[error(
        "{path} was written by another Warren that keeps its record in {record}; take that one down first with \
         `warren --state-dir DIR down`, or write the file anew if that one is gone"
    )]
    OtherWarren {
        /// The `resolv.conf`.
        path: PathBuf,
        /// The other's record.
        record: PathBuf,
    },
    /// Warren has written the file for a tunnel that has ended, and no record says what it replaced.
    #[error(
        "{0} is what Warren wrote there for a tunnel that has ended, put back since by another program, a VPN for instance, and nothing \
         says what stood there before; write this network's resolvers there, or connect to the network anew"
    )]
    Returned(PathBuf),
    /// The record is about the file of another mount namespace.
    #[error(
        "{0} is about a resolv.conf of another namespace; run `warren cleanup` in that one, or delete the file if it is gone"
    )]
    OtherNamespace(PathBuf),
    /// The record cannot be read or written.
    #[error("cannot use {path}: {source}; {}", advice_on_state(source))]
    State {
        /// The record's file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A running daemon of that profile has set the host's resolvers.
    #[error("{0} is in use by a running Warren; stop that one first, with `warren down`")]
    Busy(PathBuf),
    /// A program that the host's resolvers are set through did not do as it was told.
    #[error("`{command}` failed: {reason}; see its manual, {advice}", advice = OR_LEAVE)]
    Command {
        /// The command as a person would type it.
        command: String,
        /// What it said.
        reason: String,
    },
}

impl DnsError {
    /// The error that `source` is when `path` was to be written.
    pub(super) fn of_write(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if is(&source, Errno::PERM) && (is_immutable(&path) || path.parent().is_some_and(is_immutable)) {
            Self::Immutable(path)
        } else if is(&source, Errno::ROFS) {
            Self::ReadOnly(path)
        } else if source.kind() == io::ErrorKind::PermissionDenied {
            Self::NotPermitted(path)
        } else {
            Self::Write { path, source }
        }
    }
}

/// Whether the file is marked as one that nobody may change (chattr(1)).
fn is_immutable(path: &Path) -> bool {
    File::open(path)
        .and_then(|file| Ok(ioctl_getflags(file)?))
        .is_ok_and(|flags| flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND))
}

fn advice_on_state(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        "run it as root"
    } else if source.kind() == io::ErrorKind::StorageFull {
        "free space on that disk"
    } else {
        "the state directory must be writable, choose one with --state-dir"
    }
}

const OR_LEAVE: &str = "or set servers = [] in [dns] of the profile to leave the host's DNS alone";

/// Whether an I/O error is this one of the system's.
pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
