#!/usr/bin/env python3
"""Tests of scripts/vendor: what it builds, and that each error is one clear sentence and leaves nothing half done.

    python3 scripts/tests/vendor_test.py

Needs the archives in cargo's cache (as after scripts/vendor) and no network.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "vendor"
CACHE = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry" / "cache"
CRATES = tomllib.loads((ROOT / "vendor" / "upstream.toml").read_text())["crate"]


def archive_name(crate):
    return f"{crate['name']}-{crate['version']}.crate"


class VendorTest(unittest.TestCase):
    def setUp(self):
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="vendor-test-")))
        self.vendor = self.directory / "vendor"
        self.vendor.mkdir()
        shutil.copy(ROOT / "vendor" / "upstream.toml", self.vendor)
        shutil.copytree(ROOT / "vendor" / "patches", self.vendor / "patches")
        # A cargo home of its own that holds the archives and cannot reach the network.
        self.cargo_home = self.directory / "cargo"
        self.archives = self.cargo_home / "registry" / "cache" / "index"
        self.archives.mkdir(parents=True)
        (self.cargo_home / "config.toml").write_text("[net]\noffline = true\n")
        for crate in CRATES:
            shutil.copy(next(CACHE.glob(f"*/{archive_name(crate)}")), self.archives)

    def run_vendor(self, *arguments):
        environment = {**os.environ, "CARGO_HOME": str(self.cargo_home), "CARGO_NET_OFFLINE": "true"}
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--vendor-dir", str(self.vendor), *arguments],
            env=environment, capture_output=True, text=True, timeout=120,
        )

    def build(self):
        result = self.run_vendor()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result

    def state(self):
        """Every file of the vendor folder but the inputs, with its content."""
        files = (path for path in self.vendor.rglob("*") if path.is_file())
        inputs = {self.vendor / "upstream.toml", *(self.vendor / "patches").iterdir()}
        return {path.relative_to(self.vendor): path.read_bytes() for path in files if path not in inputs}

    def assert_refused(self, result, before, *parts):
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "")
        message = result.stderr.strip()
        self.assertTrue(message.startswith("scripts/vendor: "), message)
        self.assertEqual(len(message.splitlines()), 1, message)
        for part in parts:
            self.assertIn(str(part), message)
        self.assertEqual(self.state(), before, "nothing is half done")

    def test_builds_the_patched_crates(self):
        result = self.build()
        patches = len(list((self.vendor / "patches").glob("*.patch")))
        self.assertIn(f"with {patches} patches", result.stdout)
        for crate in CRATES:
            manifest = tomllib.loads((self.vendor / crate["name"] / "Cargo.toml").read_text())
            self.assertEqual(manifest["package"]["version"], crate["version"])
        self.assertIn("TransmitCaps", (self.vendor / "noq-proto" / "src" / "config" / "transport.rs").read_text())
        left = {path.name for path in self.vendor.iterdir()}
        self.assertEqual(left, {"upstream.toml", "patches", ".stamp", *(crate["name"] for crate in CRATES)})

    def test_does_nothing_and_takes_no_time_when_nothing_changed(self):
        self.build()
        before = {path: path.stat().st_mtime_ns for path in self.vendor.rglob("*")}
        start = time.monotonic()
        result = self.build()
        self.assertLess(time.monotonic() - start, 1)
        self.assertEqual(result.stdout, "")
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.vendor.rglob("*")}, before)

    def test_builds_again_when_a_patch_changed_a_folder_is_gone_or_it_is_told_to(self):
        self.build()
        built = self.state()
        last = max((self.vendor / "patches").glob("*.patch"))
        last.unlink()
        self.assertIn("built", self.build().stdout)
        self.assertNotEqual(self.state(), built)
        shutil.rmtree(self.vendor / "noq")
        self.assertIn("built", self.build().stdout)
        (self.vendor / "noq" / "src" / "lib.rs").write_text("edited by hand")
        result = self.run_vendor("--force")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotEqual((self.vendor / "noq" / "src" / "lib.rs").read_text(), "edited by hand")

    def test_damaged_archive_is_refused(self):
        self.build()
        before = self.state()
        archive = self.archives / archive_name(CRATES[1])
        content = bytearray(archive.read_bytes())
        content[len(content) // 2] ^= 0xFF
        archive.write_bytes(content)
        result = self.run_vendor("--force")
        self.assert_refused(result, before, archive, CRATES[1]["sha256"], "delete it and run scripts/vendor again")

    def test_truncated_archive_is_refused_in_an_empty_folder(self):
        archive = self.archives / archive_name(CRATES[0])
        archive.write_bytes(archive.read_bytes()[:1000])
        self.assert_refused(self.run_vendor(), {}, archive, "damaged")

    def test_wrong_checksum_is_refused(self):
        upstream = self.vendor / "upstream.toml"
        upstream.write_text(upstream.read_text().replace(CRATES[2]["sha256"], "0" * 64))
        self.assert_refused(self.run_vendor(), {}, archive_name(CRATES[2]), CRATES[2]["sha256"], "0" * 64)

    def test_archive_that_matches_its_checksum_but_is_no_archive_is_refused(self):
        import hashlib

        archive = self.archives / archive_name(CRATES[0])
        archive.write_bytes(b"not an archive")
        upstream = self.vendor / "upstream.toml"
        digest = hashlib.sha256(b"not an archive").hexdigest()
        upstream.write_text(upstream.read_text().replace(CRATES[0]["sha256"], digest))
        self.assert_refused(self.run_vendor(), {}, "cannot unpack", archive)

    def test_hunk_that_does_not_fit_is_refused(self):
        self.build()
        before = self.state()
        patch = self.vendor / "patches" / "9999-misfit.patch"
        patch.write_text("What: a test\n\n--- a/noq/src/lib.rs\n+++ b/noq/src/lib.rs\n@@ -1,1 +1,1 @@\n-no such line\n+another\n")
        self.assert_refused(self.run_vendor(), before, "9999-misfit.patch", "does not apply", "make the patch anew")

    def test_patch_of_a_file_that_is_not_there_is_refused(self):
        patch = self.vendor / "patches" / "9999-misfit.patch"
        patch.write_text("--- a/noq/src/none.rs\n+++ b/noq/src/none.rs\n@@ -1,1 +1,1 @@\n-line\n+another\n")
        self.assert_refused(self.run_vendor(), {}, "9999-misfit.patch", "does not apply")

    def test_patch_without_a_diff_is_refused(self):
        (self.vendor / "patches" / "9999-empty.patch").write_text("What: nothing\n")
        self.assert_refused(self.run_vendor(), {}, "9999-empty.patch", "does not apply")

    def test_archive_that_is_not_cached_cannot_be_had_offline(self):
        (self.archives / archive_name(CRATES[0])).unlink()
        self.assert_refused(self.run_vendor(), {}, "cannot download", CRATES[0]["name"], "check the network")

    def test_missing_cargo_home_cannot_be_had_offline(self):
        shutil.rmtree(self.cargo_home)
        self.assert_refused(self.run_vendor(), {}, "cannot download", CRATES[0]["name"], "check the network")

    def test_damaged_upstream_toml_is_refused(self):
        for content in ("[[crate]\n", '[[crate]]\nname = "noq"\n', ""):
            (self.vendor / "upstream.toml").write_text(content)
            self.assert_refused(self.run_vendor(), {}, "upstream.toml", "restore it")
        (self.vendor / "upstream.toml").unlink()
        self.assert_refused(self.run_vendor(), {}, "upstream.toml", "restore it")

    def test_missing_cargo_is_said(self):
        (self.archives / archive_name(CRATES[0])).unlink()
        environment = {"CARGO_HOME": str(self.cargo_home), "PATH": "/nonexistent", "HOME": str(self.directory)}
        result = subprocess.run(
            [sys.executable, str(SCRIPT), "--vendor-dir", str(self.vendor)],
            env=environment, capture_output=True, text=True, timeout=120,
        )
        self.assert_refused(result, {}, "cargo", "install")

    def test_missing_git_is_said(self):
        environment = {"CARGO_HOME": str(self.cargo_home), "PATH": "/nonexistent", "HOME": str(self.directory)}
        result = subprocess.run(
            [sys.executable, str(SCRIPT), "--vendor-dir", str(self.vendor)],
            env=environment, capture_output=True, text=True, timeout=120,
        )
        self.assert_refused(result, {}, "git", "install")


if __name__ == "__main__":
    unittest.main()
