//! The fuzz target's corpus, and small changes of it.
#![allow(dead_code, unreachable_pub, clippy::print_stderr, reason = "the files are modules of fuzz/ as well")]

#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/wireguard.rs"]
mod wireguard;

#[test]
fn no_datagram_does_harm() {
    corpus::replay("wireguard", wireguard::run);
}
