//! Replays the corpora of the fuzz targets.

#[path = "../../../../fuzz/src/corpus.rs"]
#[allow(unreachable_pub, clippy::print_stderr, reason = "other crates' tests have the file, too")]
mod replayed;

#[test]
fn configurations() {
    replayed::replay("configuration", crate::fuzzing::configuration);
}

#[test]
fn clients_stores() {
    replayed::replay("clients_store", crate::fuzzing::clients_store);
}
