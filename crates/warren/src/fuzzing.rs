//! Makes this crate's private parsers available to fuzz targets.

use crate::cli;

pub use warren_config::fuzzing::clients_store;

/// Passes `data` to the parser of each kind of file that people write: a profile, an exit's configuration, clients, and a
/// WireGuard server's file.
///
/// # Panics
/// When a parser panics, an error lacks the file and line, or an accepted value changes when it is written and read again.
pub fn configuration(data: &[u8]) {
    warren_config::fuzzing::configuration(data);
    cli::exit_import::fuzzing::run(data);
}
