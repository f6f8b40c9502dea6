//! Reads files in directories that may belong to another user. For example, root's commands use the exit's directory. Without
//! checks, the directory's owner could use a symbolic or hard link to make root read, change or give away any file, or a FIFO to
//! make root hang.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::{fs::OFlags, io::Errno, process::geteuid};

/// Opens a file to read. This never blocks, even if the file is a FIFO or a device.
///
/// # Errors
/// If opening fails, the file is not a regular file, or it is a symbolic link in a directory of a user other than root
/// and this process's.
pub fn open_plain(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// Opens a file to read and write, as [`open_plain`] does.
///
/// # Errors
/// As [`open_plain`].
pub fn open_plain_to_write(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true).write(true), path)
}

fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Without NONBLOCK, opening a FIFO would wait for a writer. Without NOCTTY, a terminal could become this process's
    // controlling terminal.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if !follows_links_at(path) {
        flags |= OFlags::NOFOLLOW;
    }
    let file = options.custom_flags(flags.bits().cast_signed()).open(path).map_err(told)?;
    check(&file, path)?;
    Ok(file)
}

/// Reads a file of at most `most` bytes, opened as [`open_plain`] does.
///
/// # Errors
/// As [`open_plain`], and if the file is longer.
pub fn read_plain(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more byte than allowed is read, to detect a file that is too long.
    open_plain(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

/// Whether a symbolic link at `path` may be followed: its directory belongs to root or to this user, so nobody else can have
/// created the link.
pub fn follows_links_at(path: &Path) -> bool {
    let owners = [0, geteuid().as_raw()];
    fs::metadata(directory_of(path)).is_ok_and(|directory| owners.contains(&directory.uid()))
}

/// Refuses all objects but regular files, and a hard link to a file that does not belong to the directory's owner. The owner
/// could use such a link as a second name for another user's file.
pub(crate) fn check(file: &File, path: &Path) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file, so Warren did not make it; remove it"));
    }
    if metadata.nlink() > 1 && fs::metadata(directory_of(path))?.uid() != metadata.uid() {
        return Err(io::Error::other(
            "it is a second name (a hard link) for another user's file, and Warren did not make it; remove it",
        ));
    }
    Ok(())
}

/// Turns the kernel's error for a refused symbolic link into one that explains this.
pub(crate) fn told(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        return io::Error::other("it is a symbolic link, and Warren did not make it; remove it");
    }
    error
}

/// The directory of `path`, which is the current one if the path is a bare name.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn fifo_is_refused_at_once_and_a_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let [fifo, file] = ["fifo", "file"].map(|name| directory.path().join(name));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::write(&file, "12345").unwrap();

        let refused = read_plain(&fifo, 5).unwrap_err().to_string();
        assert!(refused.contains("not a regular file"), "{refused}");
        assert_eq!(read_plain(&file, 5).unwrap(), b"12345");
        assert!(read_plain(&file, 4).is_err());
    }

    #[test]
    fn links_in_another_users_directory_are_refused_and_in_ones_own_followed() {
        if !geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [theirs, soft, hard] = ["theirs", "soft", "hard"].map(|name| directory.path().join(name));
        fs::write(&theirs, "root's").unwrap();
        symlink(&theirs, &soft).unwrap();
        fs::hard_link(&theirs, &hard).unwrap();
        for own in [&soft, &hard] {
            assert_eq!(read_plain(own, 9).unwrap(), b"root's");
        }

        chown(directory.path(), Some(1234), None).unwrap();
        for (link, says) in [(&soft, "symbolic link"), (&hard, "hard link")] {
            let refused = read_plain(link, 9).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        // A hard link to a file of the directory's owner is allowed, because some backup programs create such links.
        chown(&hard, Some(1234), None).unwrap();
        assert_eq!(read_plain(&hard, 9).unwrap(), b"root's");
    }
}
