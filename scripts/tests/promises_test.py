#!/usr/bin/env python3
"""Checks the table of promises in docs/security.md: each row names a test, and each named test exists and runs.

    python3 scripts/tests/promises_test.py
"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
sys.dont_write_bytecode = True

from torture import ROWS  # noqa: E402

PLACES = [ROOT / "crates" / "warren" / "tests", ROOT / "crates", ROOT]
HEAD = "## Promises, and the tests"
# A long test that only scripts/torture runs has the mark.
NAMED = re.compile(r"`([\w./-]+\.(?:rs|py))::(\w+)`( \(torture\))?")
# A promise that no test can show in one run. Its row names the script that shows it.
SHOWN_OTHERWISE = "scripts/reproduce"


def rows(text):
    """Returns the table's rows: promise, documents, tests."""
    table = text[text.index(HEAD) :]
    cells = ([cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in table.splitlines() if line.startswith("| "))
    return [row for row in cells if row[0] != "promise"]


def file_of(name):
    return next((place / name for place in PLACES if (place / name).is_file()), None)


def problem_of(file, function, mark=""):
    """Returns why scripts/test does not run this test, or why scripts/torture does not if the test is marked. Returns None if it runs."""
    path = file_of(file)
    if path is None:
        return f"there is no {file}"
    if mark and not any(word.split("::")[-1] == function for row in ROWS for word in row.command):
        return f"no row of scripts/torture runs {function}"
    return problem_in(path.read_text(), function, path.suffix, bool(mark))


def problem_in(source, function, suffix, is_torture=False):
    if suffix == ".py":
        return None if re.search(rf"^    def {function}\(self\)", source, re.MULTILINE) else f"it has no {function}"
    found = re.search(rf"((?:^ *(?:#\[.*\]|//.*)\n)*)^ *(?:async )?fn {function}\(", source, re.MULTILINE)
    if found is None:
        return f"it has no {function}"
    if ("#[ignore" in found[1]) != is_torture:
        return f"{function} is {'run by scripts/test too' if is_torture else 'switched off'}"
    is_test = re.search(r"#\[(?:tokio::)?test\b", found[1]) or re.search(rf"proptest! \{{|test_every_driver!\([^)]*\b{function}\b", source)
    return None if is_test else f"{function} is no test"


class PromisesTest(unittest.TestCase):
    def test_each_promise_has_tests_and_each_of_them_exists(self):
        table = rows((ROOT / "docs" / "security.md").read_text())
        self.assertGreater(len(table), 50)
        for promise, _, *tests in table:
            with self.subTest(promise):
                named = NAMED.findall(" ".join(tests))
                self.assertTrue(named or SHOWN_OTHERWISE in tests[0], "no test is named")
                self.assertEqual([problem for test in named if (problem := problem_of(*test))], [])

    def test_each_document_that_a_promise_is_in_exists(self):
        for promise, documents, *_ in rows((ROOT / "docs" / "security.md").read_text()):
            with self.subTest(promise):
                missing = [name for name in documents.split(", ") if not (ROOT / "docs" / f"{name}.md").is_file() and name != "SECURITY"]
                self.assertEqual(missing, [])

    def test_what_is_no_test_is_found(self):
        source = "#[test]\n#[ignore = \"slow\"]\nfn off() {}\n\n/// A word.\n#[test]\nfn on() {}\n\nfn helper() {}\n"
        said = [problem_in(source, name, ".rs") for name in ("on", "off", "helper", "gone")]
        self.assertEqual(said, [None, "off is switched off", "helper is no test", "it has no gone"])
        self.assertEqual([problem_in(source, name, ".rs", True) for name in ("on", "off")], ["on is run by scripts/test too", None])
        self.assertEqual(problem_of("spoofing.rs", "nothing", "(torture)"), "no row of scripts/torture runs nothing")
        self.assertEqual(problem_of("no_such_file.rs", "on"), "there is no no_such_file.rs")


if __name__ == "__main__":
    unittest.main()
