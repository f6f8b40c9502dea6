#!/usr/bin/env python3
"""Tests of the sums in the last line of scripts/test."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))
sys.dont_write_bytecode = True

from count_tests import count, failed_names, failures  # noqa: E402
from show import shown  # noqa: E402

CARGO = """
running 3 tests
...
successes:

---- one stdout ----
skipped: this test needs root

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.20s

running 2 tests
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.20s
"""


FAILED = """
running 4 tests
queue::overflows --- FAILED

successes:

---- queue::empties stdout ----
measured: 12
skipped: this test needs root

successes:
    queue::empties

failures:

---- queue::overflows stdout ----
    a line that looks like a name

---- wire::stalls stdout ----
panicked at wire.rs

failures:
    queue::overflows
    wire::stalls

test result: FAILED. 2 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.20s
"""


class CountTest(unittest.TestCase):
    def test_cargo_s_targets_are_summed_and_said_skips_are_no_passes(self):
        self.assertEqual(count(CARGO), (3, 1, 2))

    def test_unittest_s_failures_errors_and_skips_are_no_passes(self):
        self.assertEqual(count("....\nRan 4 tests in 0.012s\n\nOK\n"), (4, 0, 0))
        self.assertEqual(count("Ran 9 tests in 0.012s\n\nFAILED (failures=1, errors=2, skipped=3)\n"), (3, 3, 3))

    def test_both_in_one_log_are_summed(self):
        self.assertEqual(count(CARGO + "Ran 1 test in 0.1s\n\nOK\n"), (4, 1, 2))

    def test_output_without_tests_counts_nothing(self):
        self.assertEqual(count("error: could not compile `warren`\n"), (0, 0, 0))

    def test_failed_tests_are_named_and_their_output_is_not(self):
        self.assertEqual(failed_names(FAILED), ["queue::overflows", "wire::stalls"])
        self.assertEqual(failed_names(CARGO), [])

    def test_what_failed_tests_printed_is_told_by_their_names_and_to_a_length(self):
        told = {"queue::overflows": "a line that looks like a name", "wire::stalls": "panicked at wire.rs"}
        self.assertEqual(failures(FAILED), told)
        self.assertEqual(failures(FAILED.replace("panicked", "one\ntwo\n"), lines=1)["wire::stalls"], "one")
        self.assertEqual(failures(CARGO), {})

    def test_of_tests_that_passed_only_skips_are_shown(self):
        text = "".join(shown(FAILED.splitlines(keepends=True)))
        hidden = "successes:\n\n---- queue::empties stdout ----\nmeasured: 12\n"
        names = "\nsuccesses:\n    queue::empties\n\n"
        self.assertEqual(text, FAILED.replace(hidden, "").replace(names, ""))


if __name__ == "__main__":
    unittest.main()
