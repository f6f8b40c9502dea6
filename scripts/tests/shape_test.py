#!/usr/bin/env python3
"""Checks the sizes of functions, argument lists and structs of the product against the limits in scripts/lib/shape.py.

    python3 scripts/tests/shape_test.py
    python3 scripts/lib/shape.py            shows what is too large, with its place
"""

import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
sys.dont_write_bytecode = True

from shape import LIMITS, oversized  # noqa: E402

# Code that is too large and older than this test. The list has no file names, because code moves.
BASELINE = Path(__file__).with_name("shape.toml")


def problems(found, baseline):
    """Finds what is too large and not in the baseline with this size, and baseline entries that match nothing."""
    said = []
    left = {what: {name: sorted(counts) for name, counts in baseline.get(what, {}).items()} for what in LIMITS}
    for file, line, what, name, count in sorted(found, key=lambda each: each[-1]):
        listed = left[what].get(name, [])
        if count in listed:
            listed.remove(count)
        else:
            said.append(f"{file}:{line}: {name} has {count} {what}, {LIMITS[what]} are allowed")
    gone = [f"{name} = {counts} in [{what}]" for what, names in left.items() for name, counts in names.items() if counts]
    return said + [f"{BASELINE.name} lists what is not there any more: {entry}" for entry in gone]


class ShapeTest(unittest.TestCase):
    def test_nothing_of_the_product_is_too_large_that_was_not(self):
        self.assertEqual("\n".join(problems(oversized(ROOT), tomllib.loads(BASELINE.read_text()))), "")


class OversizedTest(unittest.TestCase):
    def found(self, text, others=()):
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory) / "crates" / "one" / "src"
            source.mkdir(parents=True)
            (source.parent / "Cargo.toml").write_text("")
            for name, content in {"lib.rs": text, **dict(others)}.items():
                (source / name).write_text(content)
            return [tuple(each[2:]) for each in oversized(Path(directory))]

    def test_a_long_function_is_found_and_comments_and_blank_lines_are_no_lines(self):
        body = "    let x = 1;\n" * 60
        self.assertEqual(self.found(f"fn f() {{\n{body}}}\n"), [])
        self.assertEqual(self.found(f"fn f() {{\n{body}\n    // A word.\n    /* A word.\n   more */\n}}\n"), [])
        self.assertEqual(self.found(f"impl T {{\n    async fn f<A: Fn(u8) -> u8>(&self) -> [u8; 2] {{\n{body}let y = \"\n}}\";\n}}\n}}\n"), [("lines", "f", 62)])

    def test_a_long_argument_list_is_found_unless_a_trait_asks_for_it(self):
        six = "a: u8, b: &[u8], c: (u8, u8), d: HashMap<u8, u8>, e: impl Fn(u8, u8) -> u8, f: u8,"
        self.assertEqual(self.found(f"fn f<T: Into<Vec<u8>>>({six}) {{}}\n"), [])
        self.assertEqual(self.found(f"fn f(&self, {six}) {{}}\n"), [("arguments", "f", 7)])
        self.assertEqual(self.found(f"impl<'a> Trait<'a> for Type {{ fn f(&self, {six}) {{}} }}\nimpl Type {{ fn g() {{}} }}\n"), [])

    def test_a_large_struct_is_found_unless_its_documentation_says_why(self):
        field = "    /// One, of many.\n    #[serde(default, flatten)]\n    pub f: Map<u8, u8>,\n"
        fields = 16 * field
        self.assertEqual(self.found(f"struct S<T> {{\n{fields}}}\n"), [("fields", "S", 16)])
        self.assertEqual(self.found(f"struct S {{\n{15 * field}}}\n"), [])
        self.assertEqual(self.found(f"/// All there is.\n#[derive(Debug, Clone)]\npub struct S {{\n{fields}}}\n"), [("fields", "S", 16)])
        reason = "/// All there is. It has 16 fields\n/// because each is a column.\n"
        self.assertEqual(self.found(f"{reason}#[derive(Debug, Clone)]\n#[serde(\n    default,\n)]\npub struct S {{\n{fields}}}\n"), [])
        self.assertEqual(self.found(f"{reason}struct Other;\n\nstruct S {{\n{fields}}}\n"), [("fields", "S", 16)])

    def test_tests_may_be_long(self):
        long = "fn f() {\n" + "    let x = 1;\n" * 61 + "}\n"
        self.assertEqual(self.found(long), [("lines", "f", 61)])
        self.assertEqual(self.found(f"#[test]\n{long}#[cfg(test)]\nmod tests {{\n{long}}}\n#[cfg(test)]\nmod model;\n", {"model.rs": long}.items()), [])

    def test_the_baseline_can_only_shrink(self):
        def said(*counts, listed):
            return len(problems([("a.rs", 1, "lines", "f", count) for count in counts], {"lines": {"f": listed}}))

        self.assertEqual(said(70, listed=[70]), 0)
        self.assertEqual(said(70, 80, listed=[80, 70]), 0)
        self.assertEqual(said(70, 80, listed=[70]), 1)
        # Growing and shrinking both leave an entry that matches nothing.
        self.assertEqual(said(71, listed=[70]), 2)
        self.assertEqual(said(65, listed=[70]), 2)
        self.assertEqual(said(listed=[70]), 1)


if __name__ == "__main__":
    unittest.main()
