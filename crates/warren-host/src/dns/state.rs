//! Files of the state directory. Each is replaced atomically: a reader gets the old content or the new, even after a power cut.

use std::{io, path::Path};

pub(super) use crate::durable_file::remove;
use crate::durable_file::{Unfinished, replace};

/// Replaces a file's content. The caller holds the lock of the record.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, Unfinished::At(&path.with_extension("new")), content, 0o600, None)
}
