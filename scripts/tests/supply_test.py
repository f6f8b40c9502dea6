#!/usr/bin/env python3
"""Tests of the checks on Warren's parts: the sources of its crates, the count of unsafe code, the binary's hardening, size and profile, and the
bills of materials, as a file and inside the binary.

    python3 scripts/tests/supply_test.py
"""

import json
import subprocess
import sys
import tempfile
import tomllib
import unittest
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import auditable
import hardening
import sbom
import size_budget
import third_party
import uncovered
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


class DependenciesTest(unittest.TestCase):
    def test_no_advisory_is_passed_over(self):
        deny = tomllib.loads((ROOT / "deny.toml").read_text())
        self.assertEqual(deny["advisories"].get("ignore", []), [], "each needs a day, within 90, on which it is looked at again")

    def test_all_come_from_one_registry_by_checksum_and_none_from_a_repository(self):
        packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
        sources = {package["source"] for package in packages if "source" in package}
        self.assertEqual([source.split("+")[0] for source in sources], ["registry"])
        self.assertEqual([package["name"] for package in packages if "source" in package and "checksum" not in package], [])

    def test_the_fork_is_of_a_version_that_bounds_gaps_in_streams(self):
        crates = tomllib.loads((ROOT / "vendor/upstream.toml").read_text())["crate"]
        version = next(crate["version"] for crate in crates if crate["name"] == "noq-proto")
        self.assertGreaterEqual(tuple(map(int, version.split("."))), (1, 4, 0))


class HardeningTest(unittest.TestCase):
    def hardening_of(self, *options):
        with tempfile.TemporaryDirectory() as directory:
            source, binary = Path(directory, "main.c"), Path(directory, "main")
            source.write_text("int main(void) { return 0; }")
            subprocess.run(["cc", *options, "-o", str(binary), str(source)], check=True)
            return hardening.hardening(hardening.readelf(str(binary)))

    def test_a_binary_that_has_everything_is_told_from_one_that_has_nothing(self):
        every = self.hardening_of("-fPIE", "-pie", "-Wl,-z,relro,-z,now,-z,noexecstack")
        self.assertEqual({what for what, holds in every.items() if not holds}, set())
        none = self.hardening_of("-no-pie", "-Wl,-z,norelro,-z,lazy,-z,execstack")
        self.assertEqual({what for what, holds in none.items() if holds}, {"code never relocated"})

    def test_relocations_bound_when_they_are_used_are_half_of_relro(self):
        lazy = self.hardening_of("-fPIE", "-pie", "-Wl,-z,relro,-z,lazy")
        self.assertEqual({what for what, holds in lazy.items() if not holds}, {"full RELRO", "bound at the start"})


class ProfileTest(unittest.TestCase):
    def test_the_profile_is_one_that_a_compiler_reads_and_says_of_which_it_is(self):
        # The magic number of an indexed profile (llvm/ProfileData/InstrProfData.inc).
        profile = (ROOT / "profile" / "warren.profdata").read_bytes()
        self.assertEqual(profile[:8], b"\xfflprofi\x81")
        said = dict(line.split(": ", 1) for line in (ROOT / "profile" / "made-with").read_text().splitlines())
        asked = subprocess.run(
            ["bash", "-c", "source scripts/lib/compile.sh; made_with"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        now = dict(line.split(": ", 1) for line in asked.stdout.splitlines())
        self.assertEqual(said.keys(), now.keys())
        self.assertRegex(said["Cargo.lock"], "^[0-9a-f]{64}$")


class SizeTest(unittest.TestCase):
    def test_a_tenth_more_is_refused_and_no_less(self):
        wanted = size_budget.read("# head\nwarren 1000 bytes\nwarren 50 crates\nwarren-fleet 7 bytes\n")["warren"]
        self.assertEqual(size_budget.grown({"bytes": 1100, "crates": 20}, wanted), [])
        self.assertEqual(size_budget.grown({"bytes": 1101, "crates": 56}, wanted), ["bytes", "crates"])

    def test_code_that_no_corpus_reaches_is_told_where_it_has_grown(self):
        listed = uncovered.read("# head\nsegment 1000\nlost 7\n")
        self.assertEqual(listed, {"segment": 1000, "lost": 7})
        self.assertEqual(list(uncovered.growth({"segment": 1050}, listed)), [])
        more, unknown = uncovered.growth({"segment": 1051, "new": 1}, listed)
        self.assertIn("1051 edges of segment", more)
        self.assertIn("new is not in uncovered.txt", unknown)

    def test_the_list_has_the_crates_that_the_bill_has(self):
        bill = json.loads(subprocess.run(["scripts/sbom"], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        wanted = size_budget.read(size_budget.LIST.read_text())
        crates = len(bill["components"]) + 1
        self.assertEqual(size_budget.grown({"crates": crates}, wanted["warren"]), [], "scripts/build, then scripts/lib/size_budget.py --write")
        self.assertEqual(size_budget.read(size_budget.text(wanted)), wanted)

    def test_each_shipped_program_has_a_budget(self):
        command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
        budgets = size_budget.read(size_budget.LIST.read_text())
        with tempfile.NamedTemporaryFile() as metadata:
            subprocess.run(command, cwd=ROOT, stdout=metadata, check=True)
            for program in ["warren", "warren-fleet"]:
                written = subprocess.run(
                    ["python3", "scripts/lib/auditable.py", metadata.name, program], cwd=ROOT, capture_output=True, check=True
                )
                names = [package["name"] for package in json.loads(zlib.decompress(written.stdout))["packages"]]
                self.assertEqual("etcd-client" in names, program == "warren-fleet")
                self.assertEqual(size_budget.grown({"crates": len(names)}, budgets[program]), [], program)
                self.assertGreater(budgets[program]["bytes"], 1_000_000)


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

    def test_the_bill_has_the_crates_that_cargo_builds_warren_from(self):
        command = ["cargo", "tree", "--locked", "--package", "warren", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        built = {tuple(line.split()[:2]) for line in lines if not line.startswith("warren ")}
        components = [(component["name"], f"v{component['version']}") for component in self.bill["components"]]
        self.assertEqual(sorted(components), sorted(built))

    def test_the_list_for_the_binary_has_the_same_crates_with_those_that_they_need(self):
        command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", third_party.host()]
        with tempfile.NamedTemporaryFile() as metadata:
            subprocess.run(command, cwd=ROOT, stdout=metadata, check=True)
            section = subprocess.run([sys.executable, "scripts/lib/auditable.py", metadata.name], cwd=ROOT, capture_output=True, check=True)
        listed = json.loads(zlib.decompress(section.stdout))["packages"]
        names = [f"pkg:cargo/{package['name']}@{package['version']}" for package in listed]
        needed = {name: {names[place] for place in package.get("dependencies", [])} for name, package in zip(names, listed)}
        self.assertEqual(needed, {entry["ref"]: set(entry["dependsOn"]) for entry in self.bill["dependencies"]})
        self.assertEqual([package["name"] for package in listed if package.get("root")], ["warren"])
        by_name = {package["name"]: package for package in listed}
        self.assertEqual((by_name["cc"]["kind"], by_name["noq"]["source"], by_name["tokio"]["source"]), ("build", "local", "crates.io"))
        self.assertNotIn("kind", by_name["tokio"])


class SectionTest(unittest.TestCase):
    def test_any_reader_of_zlib_reads_what_is_stored(self):
        for size in [0, 1, auditable.BLOCK - 1, auditable.BLOCK, auditable.BLOCK + 1, 3 * auditable.BLOCK]:
            data = bytes(place % 251 for place in range(size))
            self.assertEqual(zlib.decompress(auditable.stored(data)), data)

    def test_a_section_is_in_the_binary_and_stays_when_it_is_stripped_again(self):
        with tempfile.TemporaryDirectory() as directory:
            source, binary, section = Path(directory, "main.c"), Path(directory, "main"), Path(directory, "section")
            source.write_text("int main(void) { return 0; }")
            section.write_bytes(auditable.stored(b"[]"))
            subprocess.run(["cc", "-o", binary, source], check=True)
            subprocess.run(["objcopy", "--strip-all", f"--add-section=.dep-v0={section}", binary], check=True)
            subprocess.run(["strip", binary], check=True)
            subprocess.run(["objcopy", f"--dump-section=.dep-v0={section}", binary], check=True)
            self.assertEqual(zlib.decompress(section.read_bytes()), b"[]")
            subprocess.run([binary], check=True)


if __name__ == "__main__":
    unittest.main()
