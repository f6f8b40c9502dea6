//! Standard error as a log that can be lost and reconnected, for example when the journal restarts. In between, lines are kept.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Standard error. Lines go to [`KEPT`] while it cannot be written to.
#[derive(Debug)]
pub(super) struct StandardError;

impl Write for StandardError {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).write(line, &mut io::stderr())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Makes `log` this process's standard error, and writes the kept lines to it.
///
/// # Errors
/// When `log` cannot be written to either.
pub(crate) fn write_to(log: OwnedFd) -> io::Result<()> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    // The kept lines stay locked while standard error is replaced, so that no new line is written before them.
    rustix::stdio::dup2_stderr(log)?;
    kept.write_out(&mut io::stderr())
}

/// Lines that could not be written.
#[derive(Debug, Default)]
struct Kept {
    lines: Vec<u8>,
    /// How many lines did not fit.
    left_out: u64,
}

impl Kept {
    fn write(&mut self, line: &[u8], log: &mut impl Write) -> io::Result<usize> {
        // If earlier lines are still kept, a new line is kept after them, so that the order is preserved.
        if self.lines.is_empty() {
            match log.write(line) {
                Err(error) if is_lost(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                // If this returned an error, the caller would report it on standard error, and panic because that fails too.
                Err(_) => return Ok(line.len()),
                written => return written,
            }
        }
        if self.lines.len() + line.len() <= MOST {
            self.lines.extend_from_slice(line);
        } else {
            self.left_out += 1;
        }
        Ok(line.len())
    }

    fn write_out(&mut self, log: &mut impl Write) -> io::Result<()> {
        log.write_all(&self.lines)?;
        self.lines.clear();
        match std::mem::take(&mut self.left_out) {
            0 => Ok(()),
            lines => writeln!(log, "{lines} lines were left out while the log was unavailable"),
        }
    }
}

/// Whether the reader of a stream is gone.
fn is_lost(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { lines: Vec::new(), left_out: 0 });
/// Maximum number of bytes that are kept.
const MOST: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_took_is_written_to_the_next_log_and_what_did_not_fit_is_counted() {
        let mut kept = Kept::default();
        for line in ["one\n", "two\n"] {
            assert_eq!(kept.write(line.as_bytes(), &mut Lost).unwrap(), 4);
        }
        assert_eq!(kept.write(&[b'x'; MOST], &mut Lost).unwrap(), MOST);
        // The log can be written to again, but a new line must still come after the kept ones.
        let mut log = Vec::new();
        assert_eq!(kept.write(b"three\n", &mut log).unwrap(), 6);
        assert!(log.is_empty());

        kept.write_out(&mut log).unwrap();
        kept.write(b"four\n", &mut log).unwrap();

        let expected = "one\ntwo\nthree\n1 lines were left out while the log was unavailable\nfour\n";
        assert_eq!(String::from_utf8(log).unwrap(), expected);
    }

    #[test]
    fn a_full_disk_is_nobodys_error() {
        let mut kept = Kept::default();
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(kept.write(b"one\n", &mut full).unwrap(), 4);
        assert!(kept.lines.is_empty());
    }

    struct Lost;

    impl Write for Lost {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
