//! Appends to a file that only grows. An append is either durable as a whole or has no effect.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The file operations that an append needs. Tests make each of them fail.
pub(super) trait Storage {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn truncate(&self, length: u64) -> io::Result<()>;
}

impl Storage for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // fdatasync(2) also writes the new length of the file, which a reader needs.
        self.sync_data()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// The end of the valid part of a file.
#[derive(Debug)]
pub(super) struct Tail {
    length: u64,
    /// Whether bytes of an interrupted append may follow.
    is_torn: bool,
}

impl Tail {
    /// The end of a file whose first `length` bytes are valid and durable.
    pub(super) fn new(length: u64, is_torn: bool) -> Self {
        Self { length, is_torn }
    }

    /// Appends with one write and one sync.
    ///
    /// # Errors
    /// The file's error. If a part of the bytes was written, it is truncated now or, if that fails too, before the next append.
    pub(super) fn append(&mut self, file: &impl Storage, bytes: &[u8]) -> io::Result<()> {
        // The remains of an interrupted append are removed first, because a new line that is shorter would overwrite only a part
        // of them.
        if self.is_torn {
            file.truncate(self.length)?;
            self.is_torn = false;
        }
        let written = file.write_at(bytes, self.length).and_then(|()| file.sync());
        if let Err(error) = written {
            // The append is reported as failed, so no reader may find its line, not even after a power cut. Without the sync, a power cut
            // could bring the whole line back.
            self.is_torn = file.truncate(self.length).and_then(|()| file.sync()).is_err();
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::*;

    /// A file in memory whose next operations fail as planned.
    #[derive(Default)]
    struct Faulty {
        bytes: RefCell<Vec<u8>>,
        /// Whether a power cut may bring back an earlier state.
        is_unsynced: Cell<bool>,
        /// How many bytes the next write writes before it fails.
        room: Cell<Option<usize>>,
        no_sync: Cell<bool>,
        no_truncate: Cell<bool>,
    }

    impl Storage for Faulty {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.is_unsynced.set(true);
            let mut all = self.bytes.borrow_mut();
            let offset = usize::try_from(offset).map_err(io::Error::other)?;
            let written = self.room.get().unwrap_or(bytes.len()).min(bytes.len());
            let end = (offset + written).max(all.len());
            all.resize(end, 0);
            all[offset..offset + written].copy_from_slice(&bytes[..written]);
            if written < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn sync(&self) -> io::Result<()> {
            if self.no_sync.get() {
                return Err(io::Error::other("EIO"));
            }
            self.is_unsynced.set(false);
            Ok(())
        }

        fn truncate(&self, length: u64) -> io::Result<()> {
            if self.no_truncate.get() {
                return Err(io::Error::other("EIO"));
            }
            self.is_unsynced.set(true);
            self.bytes.borrow_mut().truncate(usize::try_from(length).map_err(io::Error::other)?);
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn failed_append_leaves_no_trace_once_something_can_be_written_again(
            appends in prop::collection::vec((prop::collection::vec(1_u8.., 1..9), prop::option::of(0_usize..9), any::<[bool; 2]>()), 1..20)
        ) {
            let file = Faulty::default();
            let mut tail = Tail::new(0, false);
            let mut expected = Vec::new();
            for (bytes, room, [no_sync, no_truncate]) in appends {
                file.room.set(room);
                file.no_sync.set(no_sync);
                file.no_truncate.set(no_truncate);
                if tail.append(&file, &bytes).is_ok() {
                    expected.extend(bytes);
                }
                prop_assert!(file.bytes.borrow().starts_with(&expected));
                prop_assert!(tail.is_torn || *file.bytes.borrow() == expected);
                prop_assert!(tail.is_torn || !file.is_unsynced.get(), "a failed append can be back after a loss of power");
            }
            file.room.set(None);
            file.no_sync.set(false);
            file.no_truncate.set(false);
            tail.append(&file, b"end").unwrap();
            expected.extend(b"end");
            prop_assert_eq!(&*file.bytes.borrow(), &expected);
        }
    }
}
