//! Lock files in directories that may belong to another user. For example, root's commands use the exit's directory.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::OFlags;

use crate::plain_file::{check, told};

/// Maximum number of attempts to open a file that another process creates and removes all the time.
const ATTEMPTS: u32 = 16;

/// Opens a file to read and write. A missing file is created, readable by its owner alone.
///
/// # Errors
/// If opening fails. A symbolic link, a FIFO and a hard link to another user's file are refused, because the directory's owner
/// could otherwise make root create, truncate or give away any file.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    make_lock_file(path).map(|(file, _)| file)
}

/// Like [`open_lock_file`]. Also returns whether this call has created the file, so that the caller may change its owner.
///
/// # Errors
/// As [`open_lock_file`].
pub fn make_lock_file(path: &Path) -> io::Result<(File, bool)> {
    // Opening must not block, even if the file is a FIFO or a device.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    for _ in 0..ATTEMPTS {
        // Two calls rather than `create(true)`, which does not report whether it created the file.
        match options.open(path) {
            Ok(file) => {
                check(&file, path)?;
                return Ok((file, false));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(told(error)),
        }
        match options.clone().create_new(true).mode(0o600).open(path) {
            Ok(file) => return Ok((file, true)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(told(error)),
        }
    }
    Err(io::Error::other("it keeps appearing and disappearing; find the program that creates it"))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{chown, symlink},
    };

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn link_is_refused_wherever_it_leads() {
        let directory = tempfile::tempdir().unwrap();
        let [link, file] = ["link", "file"].map(|name| directory.path().join(name));
        symlink(&file, &link).unwrap();

        for content in [None, Some("theirs")] {
            content.into_iter().for_each(|content| fs::write(&file, content).unwrap());
            let error = open_lock_file(&link).unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
            assert_eq!(fs::read_to_string(&file).ok().as_deref(), content);
        }

        assert!(!make_lock_file(&file).unwrap().1);
        fs::remove_file(&file).unwrap();
        assert!(make_lock_file(&file).unwrap().1);
    }

    #[test]
    fn fifo_and_another_users_hard_link_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let [fifo, file, hard] = ["fifo", "file", "hard"].map(|name| directory.path().join(name));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let refused = open_lock_file(&fifo).unwrap_err().to_string();
        assert!(refused.contains("not a regular file"), "{refused}");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::write(&file, "root's").unwrap();
        fs::hard_link(&file, &hard).unwrap();
        open_lock_file(&hard).unwrap();
        chown(directory.path(), Some(1234), None).unwrap();
        let refused = open_lock_file(&hard).unwrap_err().to_string();
        assert!(refused.contains("hard link"), "{refused}");
    }
}
