#!/usr/bin/env python3
"""Checks what contributors rely on: the tasks in CONTRIBUTING.md, the steps in RELEASING.md, the toolchain and package metadata.

    python3 scripts/tests/contributor_test.py
"""

import re
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
sys.dont_write_bytecode = True

from imports import crates  # noqa: E402

DOCUMENTS = ["CONTRIBUTING.md", "RELEASING.md", "README.md", "ARCHITECTURE.md", ".github/PULL_REQUEST_TEMPLATE.md"]
# A script, and the options that follow it.
SCRIPT = re.compile(r"(?<![\w./-])((?:scripts|\.ci)/[\w./-]*\w)((?: --[\w-]+)*)")
PACKAGE = re.compile(r"\bcargo [^`\n]*?-p ([\w-]+)")
FILE = re.compile(r"`((?:crates|bench|docs|fuzz|profile|vendor|configs)/[\w./-]+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
METADATA = ["description", "license", "readme", "keywords", "categories", "rust-version"]


def document_problems(text, root):
    """Finds scripts, options, packages and files that a document names and that do not exist."""
    problems = []
    for script, options in SCRIPT.findall(text):
        if not (root / script).exists():
            problems.append(f"there is no {script}")
            continue
        problems += [f"{script} has no {option}" for option in options.split() if option not in (root / script).read_text()]
    packages = {tomllib.loads((crate / "Cargo.toml").read_text())["package"]["name"] for crate in crates(root)}
    problems += [f"there is no package {name}" for name in PACKAGE.findall(text) if name not in packages]
    return problems + [f"there is no {file}" for file in FILE.findall(text) + LINK.findall(text) if not (root / file).exists()]


def unlisted(text, root):
    """Finds scripts that the table of tasks does not list."""
    table = "\n".join(line for line in text.splitlines() if line.startswith("| "))
    named = {script for script, _ in SCRIPT.findall(table)}
    return sorted(name for path in (root / "scripts").iterdir() if path.is_file() and (name := f"scripts/{path.name}") not in named)


def toolchain():
    return tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]


class ContributorTest(unittest.TestCase):
    def test_what_documents_name_is_there(self):
        for name in DOCUMENTS:
            with self.subTest(name):
                self.assertEqual(document_problems((ROOT / name).read_text(), ROOT), [])

    def test_every_script_is_a_task(self):
        self.assertEqual(unlisted((ROOT / "CONTRIBUTING.md").read_text(), ROOT), [])

    def test_what_is_not_there_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "scripts").mkdir()
            (root / "scripts" / "test").write_text("--list")
            text = "| test | `scripts/test --list --gone` |\n`scripts/lost`, `cargo test -p weather`, `crates/e.rs`, [a](b.md#c), [d](https://e.test/)\n"
            said = ["scripts/test has no --gone", "there is no scripts/lost", "there is no package weather", "there is no crates/e.rs", "there is no b.md"]
            self.assertEqual(document_problems(text, root), said)
            self.assertEqual(unlisted(text, root), [])
            self.assertEqual(unlisted("`scripts/test` outside of the table", root), ["scripts/test"])

    def test_the_toolchain_is_the_one_that_the_profile_is_of(self):
        made_with = (ROOT / "profile" / "made-with").read_text()
        self.assertIn(f"rustc release: {toolchain()}\n", made_with, "run scripts/profile with the new compiler")

    def test_the_toolchain_can_build_warren(self):
        oldest = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
        self.assertGreaterEqual([int(part) for part in toolchain().split(".")], [int(part) for part in oldest.split(".")])

    def test_every_package_has_its_metadata(self):
        shared = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
        for crate in crates(ROOT):
            with self.subTest(crate.name):
                package = tomllib.loads((crate / "Cargo.toml").read_text())["package"]
                own = {key: shared.get(key) if value == {"workspace": True} else value for key, value in package.items()}
                self.assertEqual([key for key in METADATA if not own.get(key)], [])
                # crates.io accepts at most five.
                self.assertLessEqual(len(own["keywords"]), 5)

    def test_plain_cargo_commands_leave_the_benchmarks_out(self):
        workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
        self.assertEqual((workspace["members"], workspace["default-members"]), (["crates/*", "bench"], ["crates/*"]))


if __name__ == "__main__":
    unittest.main()
