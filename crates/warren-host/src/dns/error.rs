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
    #[error("cannot read {path}: {source}; fix that, {advice}", advice = OR_LEAVE)]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {path}: {source}; fix that, {advice}", advice = OR_LEAVE)]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
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
    /// The process has no right to change the file.
    #[error("this user may not change {0}; run Warren as root, {advice}", advice = OR_LEAVE)]
    NotPermitted(PathBuf),
    /// The object at the path is neither a file nor a link, so no resolver can read it.
    #[error("{0} is neither a file nor a symbolic link; put a file there, {advice}", advice = OR_LEAVE)]
    NotAFile(PathBuf),
    /// Another Warren with another state directory wrote the file. The file's earlier content is only in the record of that other
    /// Warren.
    #[error(
        "another Warren, which keeps its record in {record}, wrote {path}; take its tunnel down first with \
         `warren --state-dir DIR down`, or rewrite the file if that Warren is gone"
    )]
    OtherWarren {
        /// The `resolv.conf`.
        path: PathBuf,
        /// The other Warren's record.
        record: PathBuf,
    },
    /// Warren wrote the file for a tunnel that has ended, and the file's earlier content is not recorded.
    #[error(
        "{0} contains the text that Warren wrote for a tunnel that has ended; another program, such as a VPN, has put that \
         text back, and the earlier content is not recorded; write this network's resolvers there, or reconnect to the network"
    )]
    Returned(PathBuf),
    /// The record belongs to the `resolv.conf` of another mount namespace.
    #[error(
        "{0} records a resolv.conf of another mount namespace; run `warren cleanup` there, or delete the file if that namespace is gone"
    )]
    OtherNamespace(PathBuf),
    /// The record cannot be read or written.
    #[error("cannot use {path}: {source}; {}", advice_on_state(source))]
    State {
        /// The record's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A running daemon of that profile has set the host's resolvers.
    #[error("{0} is in use by a running Warren; stop it first with `warren down`")]
    Busy(PathBuf),
    /// A program that sets the host's resolvers failed.
    #[error("`{command}` failed: {reason}; see its manual, {advice}", advice = OR_LEAVE)]
    Command {
        /// The command as a person would type it.
        command: String,
        /// The program's message.
        reason: String,
    },
}

impl DnsError {
    /// The error for `source`, which a write to `path` caused.
    pub(super) fn of_write(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        // In an immutable directory, no file can be created, renamed or removed.
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

/// Whether the file is immutable or append-only (chattr(1)), so that it cannot be overwritten.
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

/// Whether an I/O error has this errno.
pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
