//! Makes this crate's private parsers available to fuzz targets.

use crate::cli;

pub use warren_config::fuzzing::clients_store;

/// Gives any bytes to every parser of a file that people write: a profile, an exit's configuration, clients, and a WireGuard
/// server's file.
///
/// # Panics
/// When a parser panics, refuses a file without naming file and line, or accepts a value that does not read back as the same value.
pub fn configuration(data: &[u8]) {
    warren_config::fuzzing::configuration(data);
    cli::exit_import::fuzzing::run(data);
}
