//! An echo for many protocols, and who asks it and compares: `protocols.py`.

use super::{Finished, Namespace, Running};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/protocols.py");

/// Starts the echo, with "serve" one that returns what comes and with "spoil" one that changes it.
pub fn echo(host: &Namespace, how: &str) -> Running {
    let mut echo = host.start(&["python3", "-u", SCRIPT, how]);
    echo.wait_for_output("ready");
    echo
}

/// Asks the echo at `address` by these kinds, a comma between them, or by "all"; fails if anything is lost or changed.
pub fn ask(host: &Namespace, kinds: &str, address: &str) -> Finished {
    host.sh(&format!("python3 {SCRIPT} ask {kinds} {address}"))
}
