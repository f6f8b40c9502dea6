#!/usr/bin/env python3
"""Tests of what is said of Warren's parts: how much of them is unsafe, and the bill of materials.

    python3 scripts/tests/supply_test.py
"""

import json
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import sbom
import unsafe_budget


class UnsafeBudgetTest(unittest.TestCase):
    def test_every_use_of_unsafe_is_in_the_committed_list(self):
        checked = subprocess.run([sys.executable, "scripts/lib/unsafe_budget.py"], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_only_code_counts(self):
        text = """
            // unsafe { comment }
            #![deny(unsafe_code)] let text = "unsafe { in a text"; let quote = '"';
            unsafe { one() } unsafe fn two() {} unsafe impl Three for Four {} let raw = r#"unsafe { " }"#;
        """
        self.assertEqual(len(unsafe_budget.UNSAFE.findall(unsafe_budget.NOT_CODE.sub(" ", text))), 3)


class BillTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = [subprocess.run(["scripts/sbom"], cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
        cls.made, cls.again = made
        cls.bill = json.loads(cls.made)

    def test_the_same_tree_gives_the_same_bytes(self):
        self.assertEqual(self.made, self.again)

    def test_the_fork_names_its_origin_and_every_patch(self):
        crates = {component["name"]: component for component in self.bill["components"]}
        patches = set()
        for name in ["noq", "noq-proto", "noq-udp"]:
            pedigree = crates[name]["pedigree"]
            self.assertEqual(pedigree["ancestors"][0]["purl"], f"pkg:cargo/{name}@{crates[name]['version']}")
            patches |= {patch["diff"]["url"] for patch in pedigree["patches"]}
        self.assertEqual(patches, {str(patch.relative_to(ROOT)) for patch in (ROOT / "vendor/patches").glob("*.patch")})

    def test_published_crates_have_a_checksum_and_those_of_tests_are_left_out(self):
        crates = {component["name"]: component for component in self.bill["components"]}
        self.assertNotIn("proptest", crates)
        for name in ["rustls", "tokio"]:
            self.assertEqual(len(crates[name]["hashes"][0]["content"]), 64)

    def test_all_that_is_depended_on_is_listed(self):
        listed = {component["bom-ref"] for component in self.bill["components"]}
        listed.add(self.bill["metadata"]["component"]["bom-ref"])
        for dependency in self.bill["dependencies"]:
            self.assertLessEqual(set(dependency["dependsOn"]), listed)


if __name__ == "__main__":
    unittest.main()
