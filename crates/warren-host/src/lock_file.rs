//! Files that a process locks and that may be in a directory of another user: root's commands look into the exit's.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

/// Opens a file to read and to write, and makes it, for its owner alone, if it is not there.
///
/// # Errors
/// When that cannot be. A symbolic link is refused: whoever the directory belongs to could have root make, empty or give away any
/// file.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path).map_err(|error| {
        if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
            return io::Error::other("it is a symbolic link, and no Warren made it; remove it");
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

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

        assert!(open_lock_file(&file).is_ok());
    }
}
