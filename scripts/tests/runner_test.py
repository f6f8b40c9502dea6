#!/usr/bin/env python3
"""Tests of how scripts/test finds and runs the workspace's tests."""

import contextlib
import io
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))
sys.dont_write_bytecode = True

from run_tests import Run, executables, package_of  # noqa: E402


def artifact(package, target, executable, is_test=True):
    return json.dumps({
        "reason": "compiler-artifact",
        "package_id": f"path+file:///w/crates/{package}#0.1.0",
        "manifest_path": f"/w/crates/{package}/Cargo.toml",
        "target": {"name": target},
        "profile": {"test": is_test},
        "executable": executable,
    })


class Runner(unittest.TestCase):
    def test_only_test_executables_are_run(self):
        messages = [
            artifact("warren", "e2e", "/w/target/e2e"),
            artifact("warren", "warren", "/w/target/warren", is_test=False),
            artifact("warren-tun", "warren_tun", None),
            json.dumps({"reason": "build-finished", "success": True}),
        ]
        self.assertEqual(list(executables(messages)), [("warren", "e2e", Path("/w/crates/warren"), "/w/target/e2e")])

    def test_a_package_is_named_by_its_directory_or_before_its_version(self):
        self.assertEqual(package_of("path+file:///w/crates/warren#0.1.0"), "warren")
        self.assertEqual(package_of("path+file:///w/bench#warren-bench@0.1.0"), "warren-bench")

    def test_a_failure_is_remembered_whatever_comes_after_it(self):
        tests_run = Run()
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())) as said:
            tests_run.whole([(["sh", "-c", "echo one; exit 3"], Path("/")), (["echo", "two"], Path("/"))])
            said.flush()
            self.assertEqual(said.buffer.getvalue(), b"one\ntwo\n")
        self.assertTrue(tests_run.has_failed)
        fine = Run()
        fine.shown(["true"], Path("/"))
        self.assertFalse(fine.has_failed)


if __name__ == "__main__":
    unittest.main()
