#!/usr/bin/env python3
"""Tests of scripts/vet: it refuses a crate that nobody has put into dependencies.txt, however the crate got into a lock file.

    python3 scripts/tests/vet_test.py
"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ADDED = '\n[[package]]\nname = "left-pad"\nversion = "1.0.0"\nsource = "registry+https://registry.invalid/index"\nchecksum = "00"\n'


class VetTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        own = {"Cargo.lock", "dependencies.txt", "fuzz"}
        for entry in ROOT.iterdir():
            if entry.name not in own:
                (self.root / entry.name).symlink_to(entry)
        for name in ["Cargo.lock", "dependencies.txt"]:
            (self.root / name).write_text((ROOT / name).read_text())
        (self.root / "fuzz").mkdir()
        for name in ["Cargo.toml", "Cargo.lock"]:
            (self.root / "fuzz" / name).write_text((ROOT / "fuzz" / name).read_text())
        for name in ["fuzz_targets", "src"]:
            (self.root / "fuzz" / name).symlink_to(ROOT / "fuzz" / name)

    def vet(self, *names):
        command = [sys.executable, str(ROOT / "scripts/vet"), "--root", str(self.root), *names]
        vetted = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(vetted.stderr, "")
        return vetted

    def assert_refused(self, *what):
        vetted = self.vet()
        self.assertEqual(vetted.returncode, 1, vetted.stdout)
        self.assertEqual(len(vetted.stdout.splitlines()), len(what), vetted.stdout)
        for line, words in zip(vetted.stdout.splitlines(), what):
            self.assertIn(words, line)

    def change(self, name, pattern, replacement):
        path = self.root / name
        text, times = re.subn(pattern, replacement, path.read_text(), count=1)
        self.assertEqual(times, 1, pattern)
        path.write_text(text)

    def test_every_locked_crate_is_in_the_committed_list(self):
        vetted = self.vet()
        self.assertEqual((vetted.returncode, vetted.stdout), (0, ""))

    def test_an_added_crate_is_refused_in_either_lock_file(self):
        for lock in ["Cargo.lock", "fuzz/Cargo.lock"]:
            before = (self.root / lock).read_text()
            (self.root / lock).write_text(before + ADDED)
            self.assert_refused("left-pad 1.0.0 is not in dependencies.txt")
            (self.root / lock).write_text(before)

    def test_another_version_is_refused_and_the_old_one_is_to_go(self):
        self.change("Cargo.lock", r'name = "plotters"\nversion = "[^"]+"', 'name = "plotters"\nversion = "99.0.0"')
        self.assert_refused("plotters 99.0.0 is not in", "no longer locked")

    def test_the_same_version_with_other_bytes_is_refused(self):
        self.change("Cargo.lock", r'(name = "prost"\nversion = "[^"]+"\nsource = "[^"]+"\nchecksum = ")[^"]+', r"\g<1>00")
        self.assert_refused("has other bytes")

    def test_a_crate_that_is_put_into_the_list_is_there_as_it_was_and_alone(self):
        for name in ["prost-derive", "proptest"]:
            self.change("dependencies.txt", rf"\n{name} .*", "")
        self.assert_refused("proptest", "prost-derive")
        self.assertIn("runs while it is built: macros", self.vet("prost-derive").stdout)
        self.assert_refused("proptest")
        self.vet("proptest")
        self.assertEqual((self.root / "dependencies.txt").read_text(), (ROOT / "dependencies.txt").read_text())


if __name__ == "__main__":
    unittest.main()
