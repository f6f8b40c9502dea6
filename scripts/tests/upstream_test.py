#!/usr/bin/env python3
"""Tests of vendor/upstream/: each of the library's own faults has a text that can be sent and a test, of crates that are known here.

    python3 scripts/tests/upstream_test.py

Whether the tests find the faults in the published crates, and not in the fork, `scripts/upstream` says, which builds them.
"""

import re
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
UPSTREAM = ROOT / "vendor" / "upstream"
# Patches of panics, memory without bound, and broken protocol. All others are changes that Warren wants, not faults of the library.
FAULTS = ["0004", "0005", "0010", "0011", "0014", "0015", "0020", "0021", "0022", "0023", "0024", "0025"]
PARTS = ["**Affected:**", "## What happens", "## Why", "## Impact", "## Suggested fix", "## Known upstream?"]


def tested():
    """The patches that a test names in its first line."""
    firsts = (file.read_text().split("\n", 1)[0] for file in (UPSTREAM / "tests" / "tests").glob("*.rs"))
    return {re.match(r"//! Patch (\d{4})\. Fails with: \S", line)[1] for line in firsts}


class UpstreamTest(unittest.TestCase):
    def test_each_fault_has_a_text_with_all_that_a_report_needs(self):
        for patch in FAULTS:
            with self.subTest(patch):
                text = next(UPSTREAM.glob(f"{patch}-*.md")).read_text()
                self.assertTrue(text.startswith("# "), "a title")
                self.assertEqual([part for part in PARTS if part not in text], [])
                self.assertEqual([named for named in re.findall(r"vendor/patches/[\w.-]+", text) if not (ROOT / named.rstrip(".")).is_file()], [])
                self.assertIn(f"vendor/patches/{patch}-", text)

    def test_each_fault_has_a_test(self):
        diffs = {file.name[:4] for file in UPSTREAM.glob("*.diff")}
        self.assertEqual(sorted(tested() | diffs), FAULTS)

    def test_the_list_has_every_text_and_every_test(self):
        listed = (UPSTREAM / "README.md").read_text()
        texts = [file.name for file in UPSTREAM.glob("0*") if file.name not in listed]
        tests = [file.name for file in (UPSTREAM / "tests" / "tests").glob("*.rs") if file.name not in listed]
        self.assertEqual(texts + tests, [])

    def test_the_tests_are_built_from_the_published_archives_and_from_crates_that_are_known(self):
        known = {tuple(line.split()[:3]) for line in (ROOT / "dependencies.txt").read_text().splitlines() if not line.startswith("#")}
        crates = tomllib.loads((ROOT / "vendor" / "upstream.toml").read_text())["crate"]
        known |= {(crate["name"], crate["version"], crate["sha256"]) for crate in crates}
        packages = tomllib.loads((UPSTREAM / "tests" / "Cargo.lock").read_text())["package"]
        locked = {(package["name"], package["version"], package["checksum"]) for package in packages if "source" in package}
        self.assertEqual(sorted(locked - known), [])
        self.assertTrue({"noq-proto", "noq-udp"} <= {name for name, *_ in locked})


if __name__ == "__main__":
    unittest.main()
