//! Replays the fuzz target's corpus.

#[path = "../../../../fuzz/src/corpus.rs"]
#[allow(unreachable_pub, clippy::print_stderr, reason = "other crates' tests have the file, too")]
mod replayed;

#[test]
fn configurations() {
    replayed::replay("configuration", crate::fuzzing::configuration);
}
