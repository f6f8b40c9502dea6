//! Replays the corpora of the fuzz targets that concern sessions.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "the files are modules of fuzz/ as well"
)]

#[path = "../../../fuzz/src/control.rs"]
mod control;
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/invite.rs"]
mod invite;
#[path = "../../../fuzz/src/roster.rs"]
mod roster;

#[test]
fn control_streams() {
    corpus::replay("control", control::run);
}

#[test]
fn invitations() {
    corpus::replay("invite", invite::run);
}

#[test]
fn rosters() {
    corpus::replay("roster", roster::run);
}
