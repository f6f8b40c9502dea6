//! Properties of the program file that make exploits harder: no fixed addresses, and no writable table of addresses.
#![allow(clippy::print_stdout, reason = "test code")]

use std::process::Command;

use crate::support::finished;

/// Scorecard S8. `python3 scripts/lib/hardening.py FILE` checks a release in the same way, and also that it contains no test switch.
#[test]
fn the_program_can_be_loaded_anywhere_and_is_bound_before_it_runs() {
    let mut check = Command::new("python3");
    check.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/lib/hardening.py"));
    if cfg!(debug_assertions) {
        check.arg("--development");
    }
    println!("measured: {}", finished(check.arg(env!("CARGO_BIN_EXE_warren"))).ok());
}
