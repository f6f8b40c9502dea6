//! Replays the corpus of configurations: each, and each small change of it, is a value or one line.

use super::properties::assert_one_line_or_value;

#[path = "../../../../../fuzz/src/corpus.rs"]
#[allow(unreachable_pub, clippy::print_stderr, reason = "other crates' tests have the file, too")]
mod replayed;

#[test]
fn configurations() {
    replayed::replay("configuration", |data| assert_one_line_or_value(&String::from_utf8_lossy(data)));
}
