#!/usr/bin/env python3
"""Tests of scripts/vendor: what it builds, that patches become commits and patches again, and that each error is one clear sentence and
leaves nothing half done.

    python3 scripts/tests/vendor_test.py

Needs the archives in cargo's cache (as after scripts/vendor) and no network.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
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


HEADER = "What: a test\nWhy: a test\nNeeded by: a test\nUpstream: not offered.\n"


class VendorCase(unittest.TestCase):
    """A vendor folder with the real patches and a cargo home with the real archives, both thrown away after the test."""

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


class BuildTest(VendorCase):
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

    def test_only_files_that_changed_get_a_new_time(self):
        self.build()
        files = [path for crate in CRATES for path in (self.vendor / crate["name"]).rglob("*") if path.is_file()]
        for path in files:
            os.utime(path, (1, 1))
        before = {path: path.read_bytes() for path in files}
        (self.vendor / "patches" / max(os.listdir(self.vendor / "patches"))).unlink()
        self.build()
        touched = {path for path in files if path.stat().st_mtime != 1}
        self.assertEqual(touched, {path for path in files if path.read_bytes() != before[path]})
        self.assertNotEqual(touched, set())

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
        self.assert_refused(self.run_vendor(), before, "9999-misfit.patch", "does not apply", "vendor/README.md")

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


class BranchTest(VendorCase):
    def setUp(self):
        super().setUp()
        self.fork = self.vendor / "fork"
        self.run_command("branch")

    def run_command(self, *arguments):
        result = self.run_vendor(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def git(self, *arguments, **environment):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        result = subprocess.run(["git", *arguments], cwd=self.fork, env={**kept, **environment}, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def patches(self):
        return {path.name: path.read_text() for path in (self.vendor / "patches").glob("*.patch")}

    def commit(self, message, path="noq/src/lib.rs"):
        file = self.fork / path
        file.write_text(file.read_text() + "// a change\n")
        self.git("commit", "--quiet", "--all", "--message", message)

    def assert_not_exported(self, *parts):
        before = self.patches()
        result = self.run_vendor("export")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertEqual(self.patches(), before)

    def test_a_branch_has_the_published_source_and_a_commit_for_each_patch(self):
        subjects = self.git("log", "--reverse", "--format=%s", "fork").splitlines()
        names = sorted(name.removesuffix(".patch") for name in self.patches())
        self.assertEqual(subjects, [", ".join(f"{crate['name']} {crate['version']}" for crate in CRATES), *names])
        self.assertEqual(self.git("status", "--porcelain"), "")

    def test_laying_the_patches_and_exporting_them_gives_the_same_bytes(self):
        before = self.patches()
        self.assertIn(f"{len(before)} patches exported, 0 of them changed", self.run_command("export"))
        self.assertEqual(self.patches(), before)

    def test_the_branch_ends_with_what_is_built(self):
        self.build()
        for path in self.git("ls-files").splitlines():
            self.assertEqual((self.fork / path).read_bytes(), (self.vendor / path).read_bytes(), path)

    def test_the_user_s_settings_of_git_do_not_change_what_is_exported(self):
        before = self.patches()
        settings = self.directory / "gitconfig"
        settings.write_text("[diff]\nnoprefix = true\ncontext = 9\nalgorithm = patience\n[core]\nabbrev = 4\n[color]\nui = always\n")
        os.environ["GIT_CONFIG_GLOBAL"] = str(settings)
        self.addCleanup(os.environ.pop, "GIT_CONFIG_GLOBAL")
        self.run_command("export")
        self.assertEqual(self.patches(), before)

    def test_an_amended_commit_changes_its_patch_and_the_build(self):
        before = self.patches()
        first = min(before)
        self.commit(f"fixup! {first.removesuffix('.patch')}")
        self.git("rebase", "--quiet", "--interactive", "--autosquash", "upstream", GIT_SEQUENCE_EDITOR="true")
        self.assertIn("1 of them changed or new; 0 removed", self.run_command("export"))
        self.assertEqual([name for name, text in self.patches().items() if text != before[name]], [first])
        self.assertTrue((self.vendor / "noq" / "src" / "lib.rs").read_text().endswith("// a change\n"))

    def test_a_new_commit_becomes_a_patch_and_a_dropped_one_goes(self):
        before = self.patches()
        self.git("reset", "--quiet", "--hard", "HEAD~")
        self.commit(f"9999-another\n\n{HEADER}")
        self.assertIn("1 of them changed or new; 1 removed", self.run_command("export"))
        self.assertEqual(set(before) ^ set(self.patches()), {max(before), "9999-another.patch"})
        self.assertTrue(self.patches()["9999-another.patch"].startswith(f"{HEADER}\ndiff --git a/noq/src/lib.rs"))

    def test_a_rebase_on_a_newer_version_is_exported_and_built(self):
        before = self.patches()
        self.publish(CRATES[2], "9.9.9")
        self.assert_not_exported("scripts/vendor base")
        self.assertIn("git rebase", self.run_command("base"))
        self.assert_not_exported("git rebase")
        self.git("rebase", "--quiet")
        self.assertIn("0 of them changed or new; 0 removed", self.run_command("export"))
        self.assertEqual(self.patches(), before)
        self.assertTrue((self.vendor / "noq-udp" / "src" / "lib.rs").read_text().startswith("// newer\n"))
        self.assertIn("already", self.run_command("base"))

    def publish(self, crate, version):
        """Puts a newer version of a crate into the cache and into upstream.toml: the same source with one more line on top."""
        source = self.directory / "source"
        with tarfile.open(self.archives / archive_name(crate)) as archive:
            archive.extractall(source)
        folder = source / f"{crate['name']}-{crate['version']}"
        library = folder / "src" / "lib.rs"
        library.write_text("// newer\n" + library.read_text())
        newer = self.archives / archive_name({**crate, "version": version})
        with tarfile.open(newer, "w:gz") as archive:
            archive.add(folder, f"{crate['name']}-{version}")
        upstream = self.vendor / "upstream.toml"
        before, _, after = upstream.read_text().rpartition(f'version = "{crate["version"]}"')
        checksum = hashlib.sha256(newer.read_bytes()).hexdigest()
        upstream.write_text(before + f'version = "{version}"' + after.replace(crate["sha256"], checksum))

    def test_half_done_work_is_not_exported(self):
        file = self.fork / "noq" / "src" / "lib.rs"
        file.write_text(file.read_text() + "// a change\n")
        self.assert_not_exported("not committed")
        self.git("stash")
        self.git("checkout", "--quiet", "upstream")
        self.assert_not_exported("branch fork is not checked out")

    def test_a_commit_that_is_no_patch_is_not_exported(self):
        for message, *parts in [
            ("a change", "'a change'", "NNNN-name"),
            ("9999-another\n\nWhat: a test\n", "9999-another", "'Why:'"),
            (f"0001-another\n\n{HEADER}", "0001-another comes after", "ascend"),
        ]:
            with self.subTest(message):
                self.commit(message)
                self.assert_not_exported(*parts)
                self.git("reset", "--quiet", "--hard", "HEAD~")

    def test_a_branch_is_laid_again_only_if_it_is_told_to(self):
        self.commit("work")
        result = self.run_vendor("branch")
        self.assertEqual(result.returncode, 1)
        self.assertIn("exists already", result.stderr)
        self.assertIn("work", self.git("log", "-1", "--format=%s"))
        self.run_command("branch", "--force")
        self.assertNotIn("work", self.git("log", "-1", "--format=%s"))

    def test_without_a_branch_there_is_nothing_to_export_or_to_rebase(self):
        shutil.rmtree(self.fork)
        self.assert_not_exported("scripts/vendor branch")
        self.assertIn("scripts/vendor branch", self.run_vendor("base").stderr)


class PatchesTest(unittest.TestCase):
    NAMES = sorted(path.stem for path in (ROOT / "vendor" / "patches").glob("*.patch"))

    def test_the_patches_are_numbered_without_gaps(self):
        self.assertEqual([name[:4] for name in self.NAMES], [f"{number:04}" for number in range(1, len(self.NAMES) + 1)])

    def test_the_list_has_every_patch(self):
        self.assertEqual(re.findall(r"^\| `(\d{4}-[\w-]+)` \|", (ROOT / "vendor" / "README.md").read_text(), re.MULTILINE), self.NAMES)


if __name__ == "__main__":
    unittest.main()
