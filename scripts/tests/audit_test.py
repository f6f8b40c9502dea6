#!/usr/bin/env python3
"""Tests of scripts/audit: without recent advisories it passes only if asked to, and it says what it did not check. Small scripts stand in for cargo
and cargo-deny.

    python3 scripts/tests/audit_test.py
"""

import os
import re
import subprocess
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DAY = 86_400
PASSES = "#!/bin/sh\n"
# Prints its version, or what it was told to check, when the advisories were fetched and how old they may be.
CARGO_DENY = """#!/bin/sh
if [ "$1" = --version ]; then echo "cargo-deny {version}"; exit; fi
while [ "$1" != --config ]; do shift; done
for what in "$@"; do echo "checked $what"; done
if [ "$what" = advisories ]; then
  folder=$(dirname "$2")/advisories/advisory-db-f1d925a66c7726fe
  test -d "$folder/crates" && stat -c "fetched %Y" "$folder/.git/FETCH_HEAD"
  grep staleness "$2"
fi
"""


class AuditTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name, "repository")
        self.snapshot = Path(directory.name, "shared/research/advisory-db.tar.gz")
        self.programs = Path(directory.name, "bin")
        audit = (ROOT / "scripts/audit").read_text()
        self.program(self.root / "scripts/audit", audit)
        for name in ["scripts/vet", "scripts/vendor"]:
            self.program(self.root / name, PASSES)
        (self.root / "vendor").mkdir()
        for name in ["deny.toml", "vendor/upstream.toml"]:
            (self.root / name).write_text((ROOT / name).read_text())
        self.program(self.programs / "cargo", PASSES)
        version = re.search("^version=(.*)$", audit, re.MULTILINE).group(1)
        self.program(self.programs / "cargo-deny", CARGO_DENY.replace("{version}", version))

    def program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def put_snapshot(self, days, path=None, inside="crates/x/RUSTSEC-2026-0001.md"):
        """Writes a snapshot of two files, the newer one of this age. Returns the time of the newer one."""
        path = path or self.snapshot
        path.parent.mkdir(parents=True, exist_ok=True)
        newest = int(time.time()) - days * DAY - 3_600
        with tarfile.open(path, "w:gz") as archive:
            for name, at in [(inside, newest), (inside + ".old", newest - 400 * DAY)]:
                entry = tarfile.TarInfo(name)
                entry.mtime = at
                archive.addfile(entry)
        return newest

    def audit(self, *arguments, **environment):
        path = f"{self.programs}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "WARREN_ADVISORIES": "", **environment}
        return subprocess.run([self.root / "scripts/audit", *arguments], capture_output=True, text=True, env=environment)

    def test_recent_advisories_are_checked_and_count_as_old_as_their_newest_file(self):
        newest = self.put_snapshot(days=29)
        audited = self.audit()
        self.assertEqual((audited.returncode, audited.stderr), (0, ""), audited)
        self.assertEqual(audited.stdout.count("checked advisories"), 2)
        self.assertIn("29 days old", audited.stdout)
        self.assertIn(f"fetched {newest}", audited.stdout)
        self.assertIn('maximum-db-staleness = "P30D"', audited.stdout)

    def test_without_advisories_it_fails_unless_any_will_do(self):
        for arguments, code, word in [([], 1, "error"), (["--whatever-advisories"], 0, "WARNING")]:
            audited = self.audit(*arguments)
            self.assertEqual(audited.returncode, code, audited)
            self.assertIn(f"{word}: advisories were NOT checked", audited.stderr)
            self.assertIn("checked licenses", audited.stdout)
            self.assertNotIn("checked advisories", audited.stdout)

    def test_old_advisories_are_a_failure_unless_any_will_do_and_are_checked_then(self):
        self.put_snapshot(days=31)
        refused = self.audit()
        self.assertEqual(refused.returncode, 1, refused)
        self.assertIn("error: the advisories are 31 days old", refused.stderr)
        audited = self.audit("--whatever-advisories")
        self.assertEqual(audited.returncode, 0, audited)
        self.assertIn("WARNING: the advisories are 31 days old", audited.stderr)
        self.assertEqual(audited.stdout.count("checked advisories"), 2)
        self.assertIn('maximum-db-staleness = "P10Y"', audited.stdout)

    def test_another_file_with_a_folder_around_all_will_do(self):
        other = self.root / "recent.tar.gz"
        self.put_snapshot(1, other, "advisory-db-main/crates/x/RUSTSEC-2026-0001.md")
        audited = self.audit(WARREN_ADVISORIES=str(other))
        self.assertEqual((audited.returncode, audited.stderr), (0, ""), audited)
        self.assertIn("fetched", audited.stdout)

    def test_an_archive_of_something_else_and_an_unknown_word_are_refused(self):
        self.put_snapshot(1, inside="README.md")
        refused = self.audit("--whatever-advisories")
        self.assertEqual(refused.returncode, 1, refused)
        self.assertIn("no archive of the advisories", refused.stderr)
        self.assertEqual(self.audit("--advisories").returncode, 2)

    def test_what_cargo_deny_finds_is_a_failure_whatever_advisories_do(self):
        self.put_snapshot(1)
        text = (self.programs / "cargo-deny").read_text()
        self.program(self.programs / "cargo-deny", text + 'test "$what" != advisories\n')
        self.assertNotEqual(self.audit("--whatever-advisories").returncode, 0)

    def test_scripts_test_audits_and_lets_any_advisories_do(self):
        self.assertIn('\nstep "audit" scripts/audit --whatever-advisories\n', (ROOT / "scripts/test").read_text())


if __name__ == "__main__":
    unittest.main()
