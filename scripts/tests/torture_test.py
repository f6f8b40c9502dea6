"""Checks that scripts/torture judges rows correctly, and that its table and docs/torture.md have one short line per row."""

import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
sys.dont_write_bytecode = True

from torture import FAILED, LONGEST_CELL, PASSED, ROWS, Row, judge, table  # noqa: E402

TEST = Row("g", "X1", "what | it is", "asked", 1, ("cargo", "test"))
PROGRAM = Row("g", "X2", "what", "asked", 1, ("cargo", "run"))


class Judging(unittest.TestCase):
    def test_what_a_test_measured_is_in_the_table(self):
        lines = ["measured: 500 of 500\n", "test result: ok. 1 passed; 0 failed; 0 ignored\n"]
        outcome = judge(TEST, 0, lines, 90)
        self.assertEqual((outcome.verdict, outcome.measured), (PASSED, "500 of 500"))
        self.assertTrue(table([outcome]).endswith("| X1 | what \\| it is | asked | 500 of 500 | passed |\n"))

    def test_a_long_measurement_is_cut_in_the_table_and_in_full_below(self):
        measured = "all of 500 came back; " + "x" * LONGEST_CELL
        written = table([judge(PROGRAM, 0, [f"measured: {measured}\n"], 1)])
        self.assertIn("| X2 | what | asked | all of 500 came back ... | passed |\n", written)
        self.assertTrue(written.endswith(f"\n- **X2**: {measured}\n"))

    def test_a_test_that_did_not_run_has_not_passed(self):
        for line in ["test result: ok. 0 passed; 0 failed; 0 ignored\n", ""]:
            self.assertEqual(judge(TEST, 0, [line], 1).verdict, FAILED)
        lines = ["skipped: this test needs root\n", "test result: ok. 1 passed; 0 failed\n"]
        self.assertEqual(judge(TEST, 0, lines, 1).verdict, FAILED)

    def test_a_failed_test_says_why(self):
        lines = [
            "thread 'a::b' (7) panicked at x.rs:1:2:\n",
            "flap 3: 4.2s\n",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored\n",
        ]
        outcome = judge(TEST, 101, lines, 1)
        self.assertEqual((outcome.verdict, outcome.measured), (FAILED, "flap 3: 4.2s"))

    def test_a_program_is_judged_by_its_exit_code(self):
        self.assertEqual(judge(PROGRAM, 0, ["all holds\n", "\n"], 1).measured, "all holds")
        self.assertEqual(judge(PROGRAM, 1, [], 1).verdict, FAILED)

    def test_nightly_rows_take_at_most_80_minutes(self):
        self.assertLessEqual(sum(row.minutes for row in ROWS if row.tier == 1), 80)

    def test_every_row_is_a_short_line(self):
        for row in ROWS:
            self.assertLessEqual(max(len(row.what), len(row.asked)), LONGEST_CELL, row.identifier)

    def test_the_published_table_has_short_lines_and_asks_for_the_same(self):
        published = (ROOT / "docs" / "torture.md").read_text().split("\n## What was measured\n")[1].split("\n### ")[0]
        lines = [line.strip("| ").split(" | ") for line in published.splitlines() if line.startswith("| ")][1:]
        rows = {row.identifier: row for row in ROWS}
        self.assertGreater(len(lines), 50)
        for identifier, what, asked, measured, _ in lines:
            row = rows[identifier]
            self.assertEqual((what, asked), (row.what, row.asked), identifier)
            self.assertLessEqual(len(measured), LONGEST_CELL, identifier)

    def test_every_end_to_end_test_of_a_row_exists(self):
        tests = ROOT / "crates" / "warren" / "tests"
        for row in ROWS:
            if "e2e" in row.command:
                *modules, name = row.command[row.command.index("e2e") + 1].split("::")
                self.assertIn(f"fn {name}()", tests.joinpath(*modules).with_suffix(".rs").read_text())


class Command(unittest.TestCase):
    def torture(self, *arguments):
        command = [sys.executable, str(ROOT / "scripts" / "torture"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_list_names_every_group(self):
        for arguments, tiers in [(["--list"], [1]), (["--list", "--release"], [1, 2])]:
            listed = self.torture(*arguments)
            self.assertEqual(listed.returncode, 0)
            for row in ROWS:
                self.assertEqual(f"{row.identifier:<10} about" in listed.stdout, row.tier in tiers, row.identifier)

    def test_a_row_is_chosen_by_its_name_whatever_its_tier(self):
        listed = self.torture("--list", "L7", "F8 roam", "wires").stdout.splitlines()
        self.assertEqual([line[13:24].split("  ")[0].strip() for line in listed], ["F8 roam", "F3, F4", "L7"])

    def test_unknown_group_is_refused(self):
        refused = self.torture("nonsense")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("no group or row nonsense", refused.stderr)


if __name__ == "__main__":
    unittest.main()
