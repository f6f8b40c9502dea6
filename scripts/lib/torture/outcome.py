"""The outcome of a row, and the table of outcomes."""

import re
from dataclasses import dataclass

from .row import Row

PASSED = "passed"
FAILED = "FAILED"

MEASURED = re.compile(r"^measured: (.*)$", re.MULTILINE)
TESTS = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed", re.MULTILINE)
# The longest cell of the table, in characters. A longer measurement is cut there and repeated in full below the table.
LONGEST_CELL = 110
PANIC = re.compile(r"^thread '.*panicked at .*\n(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    row: Row
    verdict: str
    measured: str
    seconds: float


def judge(row, code, lines, seconds):
    """Judges a finished row. Its exit code decides; a test that did not run has not passed."""
    text = "".join(lines)
    tests = TESTS.findall(text)
    is_test = "test" in row.command[:2]
    ran = sum(int(passed) + int(failed) for passed, failed in tests) > 0 and "skipped: " not in text
    passed = code == 0 and (ran or not is_test)
    return Outcome(row, PASSED if passed else FAILED, measured(text, tests, code), seconds)


def measured(text, tests, code):
    """Returns the row's measurements. If there are none, returns why the row failed, or how many tests ran."""
    said = MEASURED.findall(text)
    panics = PANIC.findall(text)
    if said or panics:
        return "; ".join(said + panics)
    if tests:
        passed = sum(int(passed) for passed, _ in tests)
        failed = sum(int(failed) for _, failed in tests)
        return f"{passed} tests passed, {failed} failed"
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return last or f"exit code {code}"


def table(outcomes):
    """Writes a Markdown table with one short line per outcome, then the measurements that were too long for it."""
    head = "| row | what | asked | measured | verdict |\n|---|---|---|---|---|\n"
    cut = [outcome for outcome in outcomes if short(outcome.measured) != outcome.measured]
    in_full = "".join(f"- **{outcome.row.identifier}**: {outcome.measured}\n" for outcome in cut)
    return head + "".join(line(outcome) for outcome in outcomes) + (f"\nMeasured, in full:\n\n{in_full}" if cut else "")


def line(outcome):
    row = outcome.row
    cells = [row.identifier, row.what, row.asked, short(outcome.measured), outcome.verdict]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def short(text):
    """Cuts a text that is too long for a cell, after a clause if possible."""
    if len(text) <= LONGEST_CELL:
        return text
    ends = (text.rfind(mark, 0, LONGEST_CELL) for mark in ("; ", ", ", " "))
    return text[: next((end for end in ends if end > 0), LONGEST_CELL)] + " ..."
