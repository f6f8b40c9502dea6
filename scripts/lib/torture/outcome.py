"""What a row came to, and the table of outcomes."""

import re
from dataclasses import dataclass

from .row import Row

PASSED = "passed"
FAILED = "FAILED"

MEASURED = re.compile(r"^measured: (.*)$", re.MULTILINE)
TESTS = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed", re.MULTILINE)
PANIC = re.compile(r"^thread '.*panicked at .*\n(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    row: Row
    verdict: str
    measured: str
    seconds: float


def judge(row, code, lines, seconds):
    """What a row that has ended is worth: its exit code decides, and a test that did not run has not passed."""
    text = "".join(lines)
    tests = TESTS.findall(text)
    is_test = "test" in row.command[:2]
    ran = sum(int(passed) + int(failed) for passed, failed in tests) > 0 and "skipped: " not in text
    passed = code == 0 and (ran or not is_test)
    return Outcome(row, PASSED if passed else FAILED, measured(text, tests, code), seconds)


def measured(text, tests, code):
    """What a row says that it measured; else why it failed, else how many tests ran."""
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
    """A Markdown table with a line for each outcome."""
    head = "| row | what | asked | measured | minutes | verdict |\n|---|---|---|---|---:|---|\n"
    return head + "".join(line(outcome) for outcome in outcomes)


def line(outcome):
    row = outcome.row
    cells = [row.identifier, row.what, row.asked, outcome.measured, f"{outcome.seconds / 60:.1f}", outcome.verdict]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
