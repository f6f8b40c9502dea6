//! What a fuzz target drives of this crate, which shows no parser of its own otherwise.

use crate::cli;

/// Gives any bytes to whatever reads a file that people write: profile, exit, clients, and a WireGuard server's.
///
/// # Panics
/// When one of them does, refuses in another way than by a line that names file and line, or takes what does not read back.
pub fn configuration(data: &[u8]) {
    warren_config::fuzzing::configuration(data);
    cli::exit_import::fuzzing::run(data);
}
