//! Replaces the file from which programs read the resolvers. If another program replaces the file at the same moment, the other
//! program's file stays. There are two exceptions: a file system that lacks the flags of renameat2(2) ([`rename_over`],
//! [`place_if_free`]), and a program that writes the file in place between Warren's last comparison and Warren's write.
//!
//! A regular file is changed in place, so its inode, mode, owner and labels stay. This is also the only way to change a file that
//! is mounted over another one, which is common in containers. The file is opened once, compared with the state that the caller
//! saw, and written through the same descriptor. If another program renames its own file to the path meanwhile, that file stays.
//!
//! A symbolic link is replaced as a link and never followed, because its target belongs to another program. Warren's file and the
//! link are exchanged atomically. Afterwards Warren compares the object that it took away with the expected one.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Seek as _, Write as _},
    mem,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use super::{
    DnsError,
    error::is,
    resolv_conf::{NO_FOLLOW, Standing},
};
use crate::durable_file::{self, Owner, sync_directory_of};

/// Puts `new` at `path`, durably, in place of `seen`. Returns whether it has done so.
///
/// `false` means that another program has changed `path` first. Then `path` stays as this program left it, even if it has removed
/// the object.
pub(super) fn replace(path: &Path, seen: &Standing, new: &Standing) -> Result<bool, DnsError> {
    let replaced = match (seen, new) {
        (Standing::Missing, Standing::Missing) => Ok(true),
        (Standing::File { .. }, Standing::File { .. }) => overwrite(path, seen, new),
        (_, Standing::Missing) => take_away(path, seen),
        (Standing::Missing, _) => prepare(path, new)
            .and_then(|()| place_if_free(path).inspect_err(|_| drop(fs::remove_file(beside(path))))),
        (_, _) => prepare(path, new).and_then(|()| exchange(path, seen, new)),
    };
    replaced
        .and_then(|is_there| sync_directory_of(path).map(|()| is_there))
        .map_err(|source| DnsError::of_write(path, source))
}

/// Returns the object that a killed process left beside `path`: the one that it was about to put at `path`, or the one that it
/// took away from `path`.
pub(super) fn left_behind(path: &Path) -> Result<Standing, DnsError> {
    Standing::at(&beside(path))
}

/// Removes the object that a killed process left beside `path`.
pub(super) fn forget(path: &Path) -> Result<(), DnsError> {
    durable_file::remove(&beside(path)).map_err(|source| DnsError::of_write(path, source))
}

/// Moves the object that a killed process left beside `path` back to `path` in place of `seen`, unless another program has put a
/// newer object at `path`.
pub(super) fn put_back(path: &Path, seen: &Standing, left: &Standing) -> Result<(), DnsError> {
    let done = match seen {
        Standing::Missing => place_if_free(path),
        Standing::Link { .. } | Standing::File { .. } => exchange(path, seen, left),
    };
    done.and_then(|_| sync_directory_of(path)).map_err(|source| DnsError::of_write(path, source))
}

/// Overwrites a regular file if it is still `seen`. Returns whether `path` still leads to that file afterwards.
fn overwrite(path: &Path, seen: &Standing, new: &Standing) -> io::Result<bool> {
    let file = match OpenOptions::new().read(true).write(true).custom_flags(NO_FOLLOW).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || is(&error, Errno::LOOP) => return Ok(false),
        opened => opened?,
    };
    // From here on, the opened file is read and written, even if another file gets its name.
    if Standing::of(&file)? != *seen {
        return Ok(false);
    }
    if let Err(error) = write_over(&file, new) {
        // After a failed write, the old text is written back, because an incomplete text would look like another program's.
        drop(write_over(&file, seen));
        return Err(error);
    }
    file.sync_all()?;
    let (ours, there) = (file.metadata()?, fs::symlink_metadata(path));
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
}

/// Overwrites a file's content from its start, and then truncates the file. It is not truncated first, so a concurrent reader
/// always sees the first lines, even after a power cut. The rest of the old content is overwritten with empty lines before the
/// truncation, so no old line is left if the process is killed in between.
fn write_over(mut file: &File, new: &Standing) -> io::Result<()> {
    let Standing::File { content, mode, user, group } = new else { return Ok(()) };
    file.rewind()?;
    let rest = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut padded = content.bytes().to_vec();
    padded.resize(rest.max(padded.len()), b'\n');
    file.write_all(&padded)?;
    file.set_len(u64::try_from(content.bytes().len()).map_err(io::Error::other)?)?;
    Owner { user: *user, group: *group }.give(file)?;
    // The mode is set after the owner, because chown(2) can clear bits of the mode.
    if file.metadata()?.mode() & 0o7777 != *mode {
        file.set_permissions(Permissions::from_mode(*mode))?;
    }
    Ok(())
}

/// Removes the object at `path` if it is `seen`. Moves the object aside first, and then compares it with `seen`.
fn take_away(path: &Path, seen: &Standing) -> io::Result<bool> {
    let beside = beside(path);
    durable_file::remove(&beside)?;
    match fs::rename(path, &beside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        // A mount point cannot be removed, so its content is removed instead. To a reader, an empty file means the same as no
        // file.
        Err(error) if is(&error, Errno::BUSY) => return overwrite(path, seen, &seen.emptied()),
        moved => moved?,
    }
    if looked_at(&beside).inspect_err(|_| drop(fs::rename(&beside, path)))? == *seen {
        return durable_file::remove(&beside).map(|()| true);
    }
    place_if_free(path)?;
    Ok(false)
}

/// Creates the object `new` beside `path`.
fn prepare(path: &Path, new: &Standing) -> io::Result<()> {
    let beside = beside(path);
    durable_file::remove(&beside)?;
    match new {
        Standing::Missing => Ok(()),
        Standing::Link { target } => symlink(target, beside),
        Standing::File { content, mode, user, group } => {
            let owner = Owner { user: *user, group: *group };
            durable_file::prepare(&beside, content.bytes(), *mode, owner)
        }
    }
}

/// Moves the object beside `path` to `path` if nothing exists there. Otherwise removes the object. Returns whether it was moved.
fn place_if_free(path: &Path) -> io::Result<bool> {
    let beside = beside(path);
    let is_there = || fs::symlink_metadata(path).is_ok();
    match renameat_with(CWD, &beside, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => durable_file::remove(&beside).map(|()| false),
        Err(errno) if is_unsupported(errno) && is_there() => durable_file::remove(&beside).map(|()| false),
        Err(errno) if is_unsupported(errno) => fs::rename(&beside, path).map(|()| true),
        moved => Ok(moved.map(|()| true)?),
    }
}

/// Exchanges `new`, which is beside `path`, with the object at `path`, and removes that object if it is `seen`.
///
/// If it is not `seen`, another program has put it at `path` meanwhile. This object is the newest, so a second exchange puts it
/// back. If the second exchange takes away another object than `new`, another program has changed `path` again, and its object is
/// put back too.
fn exchange(path: &Path, seen: &Standing, new: &Standing) -> io::Result<bool> {
    let beside = beside(path);
    let (mut expected, mut placed) = (seen.clone(), new.clone());
    loop {
        match renameat_with(CWD, &beside, CWD, path, RenameFlags::EXCHANGE) {
            // Another program has removed the object at `path`.
            Err(Errno::NOENT) => return durable_file::remove(&beside).map(|()| false),
            Err(errno) if is_unsupported(errno) => return rename_over(path, &expected),
            Err(errno) => {
                // If the object beside `path` is another program's, it is not removed, so that the next start can put it back.
                if placed == *new {
                    drop(fs::remove_file(&beside));
                }
                return Err(errno.into());
            }
            Ok(()) => {}
        }
        let taken = looked_at(&beside).inspect_err(|_| {
            let _ = renameat_with(CWD, &beside, CWD, path, RenameFlags::EXCHANGE);
        })?;
        if taken == expected {
            return durable_file::remove(&beside).map(|()| placed == *new);
        }
        expected = mem::replace(&mut placed, taken);
    }
}

/// Replaces the object at `path` if it is `seen`, on a file system that cannot exchange two objects. An object that another
/// program puts at `path` between the comparison and the rename is lost.
fn rename_over(path: &Path, seen: &Standing) -> io::Result<bool> {
    let beside = beside(path);
    if looked_at(path)? != *seen {
        return durable_file::remove(&beside).map(|()| false);
    }
    fs::rename(&beside, path).map(|()| true)
}

fn looked_at(path: &Path) -> io::Result<Standing> {
    Standing::at(path).map_err(io::Error::other)
}

/// Whether the file system, or the kernel, lacks the flags of renameat2(2).
fn is_unsupported(errno: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP].contains(&errno)
}

/// The temporary name beside `path`. It is always the same, so that a killed daemon leaves at most one such object.
pub(super) fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.warren"))
}

#[cfg(test)]
mod tests;
