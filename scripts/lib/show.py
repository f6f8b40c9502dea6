"""Filters the output of `cargo test -- --show-output`. Of the output of tests that passed, it keeps only the reasons for skipped tests."""

import sys


def shown(lines):
    """Yields the lines to show, in order."""
    in_successes = False
    for line in lines:
        if line.startswith(("failures:", "test result: ", "error: ")):
            in_successes = False
        elif line.startswith("successes:"):
            in_successes = True
        if not in_successes or line.startswith("skipped: "):
            yield line


if __name__ == "__main__":
    sys.stdin.reconfigure(errors="replace")
    for line in shown(sys.stdin):
        print(line, end="", flush=True)
