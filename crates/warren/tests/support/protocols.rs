//! An echo for many protocols, and a client that compares the answers: `protocols.py`.

use super::{Finished, Namespace, Running};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/protocols.py");

/// Starts the echo. With "serve" it returns its input unchanged; with "spoil" it changes it.
pub fn echo(host: &Namespace, how: &str) -> Running {
    let mut echo = host.start(&["python3", "-u", SCRIPT, how]);
    echo.wait_for_output("ready");
    echo
}

/// Sends to the echo at `address` with these protocols (separated by commas, or "all"). Fails if anything is lost or changed.
pub fn ask(host: &Namespace, kinds: &str, address: &str) -> Finished {
    host.sh(&format!("python3 {SCRIPT} ask {kinds} {address}"))
}
