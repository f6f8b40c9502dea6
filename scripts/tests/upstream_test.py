#!/usr/bin/env python3
"""Tests of vendor/upstream/: each fault of the library has a report and a test, and the tests build only crates that are known here.

    python3 scripts/tests/upstream_test.py

`scripts/upstream` builds the tests and shows that they find the faults in the published crates and not in the fork.
"""

import re
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
UPSTREAM = ROOT / "vendor" / "upstream"
# Panics, memory without bound, and broken protocol. All other patches are changes that Warren wants, not faults of the library.
FAULTS = [
    "close-before-validation", "control-messages", "copied-stream-data", "deaf-peers", "ecn-after-refusals", "handshake-probe-keys",
    "loss-probe-alone", "reset-after-network-change", "return-to-validated-path", "short-farewells", "slow-acknowledgers", "waiting-datagrams",
]
PARTS = ["**Affected:**", "## What happens", "## Why", "## Impact", "## Suggested fix", "## Known upstream?"]


class UpstreamTest(unittest.TestCase):
    def test_each_fault_has_a_text_with_all_that_a_report_needs(self):
        for fault in FAULTS:
            with self.subTest(fault):
                text = (UPSTREAM / f"{fault}.md").read_text()
                self.assertTrue(text.startswith("# "), "a title")
                self.assertEqual([part for part in PARTS if part not in text], [])

    def test_each_text_names_a_patch_that_is_there_and_names_the_text(self):
        for fault in FAULTS:
            with self.subTest(fault):
                patch = ROOT / re.search(r"`(vendor/patches/[\w.-]+)`", (UPSTREAM / f"{fault}.md").read_text())[1]
                self.assertIn(f"{fault}.md", patch.read_text().split("\ndiff ", 1)[0])

    def test_each_fault_has_a_test(self):
        files = list((UPSTREAM / "tests" / "tests").glob("*.rs"))
        self.assertEqual([file.name for file in files if not re.match(r"//! Fails with: \S", file.read_text())], [])
        tested = [file.stem.replace("_", "-") for file in files] + [file.stem for file in UPSTREAM.glob("*.diff")]
        self.assertEqual(sorted(tested), FAULTS)

    def test_the_list_has_every_text_and_every_test(self):
        listed = (UPSTREAM / "README.md").read_text()
        files = [*UPSTREAM.glob("*.md"), *UPSTREAM.glob("*.diff"), *(UPSTREAM / "tests" / "tests").glob("*.rs")]
        self.assertEqual([file.name for file in files if file.name != "README.md" and file.name not in listed], [])

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
