//! What an attacker finds in the program's file: no address that he knows beforehand, no table that he could write to.
#![allow(clippy::print_stdout, reason = "test code")]

use std::process::Command;

use crate::support::finished;

/// Scorecard S8; of a release `python3 scripts/lib/hardening.py FILE` asks the same, and that no switch of tests is in it.
#[test]
fn the_program_can_be_loaded_anywhere_and_is_bound_before_it_runs() {
    let mut check = Command::new("python3");
    check.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/lib/hardening.py"));
    if cfg!(debug_assertions) {
        check.arg("--development");
    }
    println!("measured: {}", finished(check.arg(env!("CARGO_BIN_EXE_warren"))).ok());
}
