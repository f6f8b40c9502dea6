//! The parsers of this crate for fuzz targets. Otherwise they are private.

use crate::cli;

pub use warren_config::fuzzing::clients_store;

/// Gives any bytes to every parser of a file that people write: profile, exit, clients, and a WireGuard server's.
///
/// # Panics
/// When a parser panics, refuses without naming file and line, or accepts a value that does not read back.
pub fn configuration(data: &[u8]) {
    warren_config::fuzzing::configuration(data);
    cli::exit_import::fuzzing::run(data);
}
