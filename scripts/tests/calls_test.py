#!/usr/bin/env python3
"""Checks that the files of a type call each other's methods in one direction, so that a reader can begin at the top and never has to go back.

    python3 scripts/tests/calls_test.py
    python3 scripts/lib/calls.py              shows today's circles, with the calls that close them
"""

import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
sys.dont_write_bytecode = True

from calls import circles, types  # noqa: E402
from imports import crates  # noqa: E402

# The circles that may stay, each with a reason.
LISTED = Path(__file__).with_name("calls.toml")


def problems(root, listed):
    """Finds circles that are not listed, and entries that match no circle or have no reason."""
    found = {(crate.name, name, len(files)) for crate in crates(root) for name, files, _ in circles(crate)}
    allowed = {(entry["crate"], entry["type"], entry["files"]) for entry in listed}
    said = [f"{crate}: {files} files of {name} call each other in a circle" for crate, name, files in sorted(found - allowed)]
    said += [f"{crate}: there is no circle of {files} files of {name} any more" for crate, name, files in sorted(allowed - found)]
    return said + [f"{entry['crate']}: the circle of {entry['type']} has no reason" for entry in listed if not entry.get("reason", "").strip()]


class CallsTest(unittest.TestCase):
    def test_the_files_of_a_type_call_each_other_in_one_direction(self):
        listed = tomllib.loads(LISTED.read_text()).get("circle", [])
        self.assertEqual("\n".join(problems(ROOT, listed)), "", "python3 scripts/lib/calls.py shows the calls that close each circle")

    def test_the_methods_of_the_product_are_found(self):
        found = {name: len(methods.files) for (name, _), methods in types(ROOT / "crates" / "warren-client").items()}
        self.assertGreater(found["Daemon"], 20)
        self.assertGreater(found["Sessions"], 20)


class CirclesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)

    def found(self, **files):
        source = self.root / "crates" / "one" / "src"
        source.mkdir(parents=True, exist_ok=True)
        (source.parent / "Cargo.toml").write_text("")
        modules = "".join(f"mod {name};\n" for name in files)
        for name, text in {"lib": f"{modules}struct T<A>(A);\nstruct Other;\n", **files}.items():
            (source / f"{name}.rs").write_text(text)
        return [(name, files) for name, files, _ in circles(source.parent)]

    def test_files_that_call_each_other_are_found_whatever_the_impl_looks_like(self):
        a_b = [("T", ["a.rs", "b.rs"])]
        calls_b = "impl T<u8> { fn a(&self) { self.b(1) } }\n"
        for b in (
            "impl T<u8> { fn b(&self) { self.a(); } }",
            "impl<A: Fn(u8) -> u8> crate::T<A>\nwhere A: Copy,\n{ async fn b(&mut self) { x(self\n.a()) } }",
            "impl<'a> From<&'a u8> for T<u8> { fn b() -> [u8; 2] { Self::a() } }",
            "impl<A> T<A> where for<'a> A: From<&'a u8> { fn b(&self) { self.a() } }",
        ):
            self.assertEqual(self.found(a=calls_b, b=b), a_b, b)

    def test_one_direction_is_no_circle(self):
        self.assertEqual(self.found(a="impl T<u8> { fn a(&self) { self.b(); } fn c(&self) {} }", b="impl T<u8> { fn b(&self) { self.d() } fn d(&self) {} }"), [])

    def test_calls_of_other_types_and_of_tests_and_in_comments_do_not_count(self):
        a = "impl T<u8> { fn a(&self) { self.b(); } }"
        for b in (
            "impl T<u8> { fn b(&self) { self.other.a(); a(); } }",
            "impl T<u8> { fn b(&self) {} }\nimpl Other { fn c(&self) { self.a(); } }",
            "impl T<u8> { fn b(&self) { /* self.a() */ \"self.a()\"; } }\n#[cfg(test)]\nmod tests { impl T<u8> { fn t(&self) { self.a(); } } }",
        ):
            self.assertEqual(self.found(a=a, b=b), [], b)

    def test_types_of_one_name_are_told_apart(self):
        self.assertEqual(self.found(a="struct One;\nimpl One { fn a(&self) { self.b(); } }", b="struct One;\nimpl One { fn b(&self) { self.a(); } }"), [])

    def test_the_list_has_to_fit(self):
        self.found(a="impl Other { fn a(&self) { self.b(); } }", b="impl Other { fn b(&self) { self.a(); } }")
        entry = {"crate": "one", "type": "Other", "files": 2, "reason": "They are one."}
        self.assertEqual(problems(self.root, [entry]), [])
        self.assertEqual(problems(self.root, []), ["one: 2 files of Other call each other in a circle"])
        self.assertEqual(len(problems(self.root, [{**entry, "files": 3}])), 2)
        self.assertEqual(problems(self.root, [{**entry, "reason": " "}]), ["one: the circle of Other has no reason"])


if __name__ == "__main__":
    unittest.main()
