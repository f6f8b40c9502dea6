#!/usr/bin/env python3
"""Checks that crates use only crates below them, and that the modules of a crate do not import each other in a circle.

    python3 scripts/tests/layers_test.py
    python3 scripts/lib/imports.py            shows today's cycles, with the names that close them
"""

import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
sys.dont_write_bytecode = True

from imports import crates, cycles, imports  # noqa: E402

# Bottom to top. A crate may use crates of lower rows, but none of its own row.
LAYERS = [
    ["warren-simulation"],
    ["warren-packet", "warren-session", "warren-host"],
    ["warren-tun", "warren-quic", "warren-wireguard", "warren-fleet-link"],
    ["warren-tunnel"],
    ["warren-config"],
    ["warren-control"],
    ["warren-daemon", "warren-manual"],
    ["warren-client", "warren-exit"],
    ["warren", "warren-fleet"],
    ["warren-bench"],
]
LEVELS = {name: level for level, row in enumerate(LAYERS) for name in row}
# Cycles that may stay, each with its reason.
LISTED = Path(__file__).with_name("layers.toml")


def manifests(root):
    return [crate / "Cargo.toml" for crate in crates(root)]


def crate_problems(root):
    """Finds crates without a layer, and dependencies that do not point downwards. Tests may use any crate."""
    problems = []
    for path in manifests(root):
        manifest = tomllib.loads(path.read_text())
        crate = manifest["package"]["name"]
        if crate not in LEVELS:
            problems.append(f"{crate} is in no layer: add it to LAYERS in {Path(__file__).name}")
            continue
        for used in sorted(dependencies(manifest)):
            if used.startswith("warren") and LEVELS.get(used, len(LAYERS)) >= LEVELS[crate]:
                problems.append(f"{crate} depends on {used}, which is not below it")
    return problems


def dependencies(manifest):
    tables = [manifest, *manifest.get("target", {}).values()]
    entries = [entry for table in tables for kind in ("dependencies", "build-dependencies") for entry in table.get(kind, {}).items()]
    return {how.get("package", name) if isinstance(how, dict) else name for name, how in entries}


def cycle_problems(root, listed):
    """Finds cycles that are not listed, and entries that match no cycle, have no reason or are listed twice."""
    problems, found = [], set()
    for path in manifests(root):
        crate = tomllib.loads(path.read_text())["package"]["name"]
        found |= {(crate, tuple(modules)) for modules in cycles(imports(path.parent))}
    allowed = [(entry["crate"], tuple(sorted(entry["modules"]))) for entry in listed]
    problems += [f"{crate} has a cycle that is not listed: {', '.join(modules)}" for crate, modules in sorted(found - set(allowed))]
    problems += [f"{crate} has no such cycle any more: {', '.join(modules)}" for crate, modules in sorted(set(allowed) - found)]
    problems += [f"{crate} is listed twice: {', '.join(modules)}" for crate, modules in sorted(set(allowed)) if allowed.count((crate, modules)) > 1]
    problems += [f"{entry['crate']} has a cycle without a reason: {', '.join(entry['modules'])}" for entry in listed if not has_reason(entry)]
    return problems


def has_reason(entry):
    return bool(entry.get("reason", "").strip())


class LayersTest(unittest.TestCase):
    def test_no_crate_depends_on_one_above_or_beside_it(self):
        self.assertEqual(crate_problems(ROOT), [])

    def test_no_modules_import_each_other_but_those_listed_with_a_reason(self):
        listed = tomllib.loads(LISTED.read_text()).get("cycle", [])
        self.assertEqual("\n".join(cycle_problems(ROOT, listed)), "", "python3 scripts/lib/imports.py shows the names that close each cycle")

    def test_all_of_the_product_is_looked_at(self):
        for path in manifests(ROOT):
            with self.subTest(path.parent.name):
                graph = imports(path.parent)
                # Half is enough, because the files of tests are not in the graph.
                self.assertGreaterEqual(2 * len(graph), len(list((path.parent / "src").rglob("*.rs"))))
                self.assertGreaterEqual(sum(len(used) for used in graph.values()), len(graph) - 3)


class CratesTest(unittest.TestCase):
    def setUp(self):
        self.root = tree(self)

    def crate(self, name, manifest=""):
        write(self.root / "crates" / name / "Cargo.toml", f'[package]\nname = "{name}"\n{manifest}')

    def test_a_dependency_downwards_is_allowed(self):
        self.crate("warren-tun", '[dependencies]\nwarren-packet.workspace = true\nbytes = "1"\n')
        self.assertEqual(crate_problems(self.root), [])

    def test_a_dependency_upwards_is_found(self):
        self.crate("warren-packet", '[dependencies]\nwarren-tun = { path = "../warren-tun" }\n')
        self.assertEqual(crate_problems(self.root), ["warren-packet depends on warren-tun, which is not below it"])

    def test_a_dependency_sideways_is_found(self):
        self.crate("warren-quic", "[dependencies]\nwarren-tun.workspace = true\n")
        self.assertEqual(crate_problems(self.root), ["warren-quic depends on warren-tun, which is not below it"])

    def test_renamed_dependencies_and_those_of_a_target_and_of_build_scripts_are_found(self):
        self.crate("warren-host", '[dependencies]\nx = { package = "warren", path = "../warren" }\n')
        self.crate("warren-packet", '[target."cfg(unix)".dependencies]\nwarren-tun.workspace = true\n')
        self.crate("warren-session", "[build-dependencies]\nwarren-packet.workspace = true\n")
        self.assertEqual(len(crate_problems(self.root)), 3)

    def test_tests_may_use_any_crate(self):
        self.crate("warren-quic", "[dev-dependencies]\nwarren-tun.workspace = true\n")
        self.assertEqual(crate_problems(self.root), [])

    def test_a_crate_that_is_in_no_layer_is_found(self):
        self.crate("warren-weather")
        self.crate("warren", "[dependencies]\nwarren-weather.workspace = true\n")
        self.assertEqual(len(crate_problems(self.root)), 2)


class CyclesTest(unittest.TestCase):
    def setUp(self):
        self.root = tree(self)

    def cycles(self, files, root="mod a;\nmod b;\n"):
        write(self.root / "crates" / "warren-tun" / "Cargo.toml", '[package]\nname = "warren-tun"\n')
        for name, text in {"lib.rs": root, **files}.items():
            write(self.root / "crates" / "warren-tun" / "src" / name, text)
        return cycles(imports(self.root / "crates" / "warren-tun"))

    def test_modules_that_import_each_other_are_found(self):
        a_b = [["a", "b"]]
        uses_b = "pub(crate) struct A;\nuse crate::b::B;\nfn f(_: B) {}\n"
        self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": "pub(crate) struct B;\nuse super::a::A;\nfn g(_: A) {}\n"}), a_b)
        self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": "pub(crate) struct B;\nuse crate::{a::{self}, c};\nfn g(_: a::A) {}\n"}), a_b)
        self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": "pub(crate) struct B;\nfn g() -> Option<crate::a::A> { None }\n"}), a_b)
        self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": "pub(crate) struct B;\nuse super::a::*;\nfn g(_: A) {}\n"}), a_b)
        self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": "pub(crate) struct B;\nfn g() { use super::a::A as Other; let _ = Other; }\n"}), a_b)

    def test_a_cycle_of_three_is_one_cycle(self):
        files = {name: f"pub(crate) struct T;\nfn f(_: crate::{used}::T) {{}}\n" for name, used in zip("abc", "bca")}
        self.assertEqual(self.cycles({f"{name}.rs": text for name, text in files.items()}, "mod a;\nmod b;\nmod c;\n"), [["a", "b", "c"]])

    def test_one_way_is_no_cycle(self):
        self.assertEqual(self.cycles({"a.rs": "use crate::b::B;\nfn f(_: B) {}\n", "b.rs": "pub(crate) struct B;\n"}), [])

    def test_what_is_compiled_for_tests_does_not_count(self):
        uses_b = "pub(crate) struct A;\nfn f(_: crate::b::B) {}\n"
        for mark in ("#[cfg(test)]", '#[cfg(any(test, feature = "simulation"))]'):
            b = f"pub(crate) struct B;\n{mark}\nmod tests {{ use crate::a::A; fn f(_: A) {{}} }}\n{mark}\nuse crate::a::A;\n"
            self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": b}), [], mark)
        outer = "pub(crate) struct B;\n#[cfg(test)]\n#[allow(unused)]\nmod tests;\n"
        self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": outer, "b/tests.rs": "use crate::a::A;\n"}), [])
        self.assertEqual(self.cycles({"a.rs": uses_b, "b.rs": "pub(crate) struct B;\n#[cfg(not(test))]\nuse crate::a::A;\nfn f(_: A) {}\n"}), [["a", "b"]])

    def test_comments_and_texts_are_no_code(self):
        text = 'pub(crate) struct B;\n/// As [`crate::a::A`]. /* crate::a::A\n/* /* */ crate::a::A */\nconst T: &str = "crate::a::A \\" crate::a::A";\n'
        text += "const R: &str = r#\"\" crate::a::A \"#;\nconst C: [char; 2] = ['\"', '\\''];\nfn f<'a>(_: &'a str) {}\n"
        self.assertEqual(self.cycles({"a.rs": "pub(crate) struct A;\nfn f(_: crate::b::B) {}\n", "b.rs": text}), [])
        self.assertEqual(self.cycles({"b.rs": text + "fn g(_: crate::a::A) {}\n"}), [["a", "b"]])

    def test_a_child_that_uses_its_parent_is_a_cycle_only_if_the_parent_uses_the_child(self):
        child = "pub(crate) struct C;\nfn f(_: super::A) {}\n"
        for way in ("mod c;\n", "mod c;\npub(crate) use c::C;\n", "mod c;\npub use c::*;\n"):
            self.assertEqual(self.cycles({"a.rs": f"{way}pub(crate) struct A;\n", "a/c.rs": child}, "mod a;\n"), [], way)
        for way in ("use c::C;\n", "pub(crate) use c::C;\n", "pub use c::*;\n"):
            self.assertEqual(self.cycles({"a.rs": f"mod c;\n{way}pub(crate) struct A(C);\n", "a/c.rs": child}, "mod a;\n"), [["a", "a::c"]], way)
        self.assertEqual(self.cycles({"a.rs": "mod c;\npub(crate) struct A(c::C);\n", "a/c.rs": child}, "mod a;\n"), [["a", "a::c"]])

    def test_a_name_belongs_to_the_module_that_defines_it(self):
        files = {
            # `a` only re-exports what `b` uses.
            "a.rs": "mod c;\npub(crate) use c::C;\nfn f(_: crate::b::B) {}\n",
            "a/c.rs": "pub(crate) struct C;\n",
            "b.rs": "use crate::a::C;\npub(crate) struct B(C);\n",
        }
        self.assertEqual(self.cycles(files), [])
        self.assertEqual(self.cycles({**files, "a/c.rs": "pub(crate) struct C(crate::b::B);\n"}), [["a::c", "b"]])

    def test_modules_in_folders_and_inside_of_files_are_followed(self):
        files = {"a/mod.rs": "pub(crate) mod inner { pub(crate) struct A(crate::b::B); }\n", "other.rs": "pub(crate) struct B(crate::a::inner::A);\n"}
        self.assertEqual(self.cycles(files, 'mod a;\n#[path = "other.rs"]\nmod b;\n'), [["a", "b"]])

    def test_the_list_has_to_fit(self):
        self.cycles({name: f"pub(crate) struct T;\nfn f(_: crate::{used}::T) {{}}\n" for name, used in (("a.rs", "b"), ("b.rs", "a"))})
        entry = {"crate": "warren-tun", "modules": ["b", "a"], "reason": "They are one."}
        self.assertEqual(cycle_problems(self.root, [entry]), [])
        self.assertEqual(cycle_problems(self.root, []), ["warren-tun has a cycle that is not listed: a, b"])
        self.assertEqual(cycle_problems(self.root, [entry, {**entry, "modules": ["c", "d"]}]), ["warren-tun has no such cycle any more: c, d"])
        self.assertEqual(cycle_problems(self.root, [entry, entry]), ["warren-tun is listed twice: a, b"])
        self.assertEqual(cycle_problems(self.root, [{**entry, "reason": " "}]), ["warren-tun has a cycle without a reason: b, a"])


def tree(test):
    directory = tempfile.TemporaryDirectory()
    test.addCleanup(directory.cleanup)
    return Path(directory.name)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    unittest.main()
