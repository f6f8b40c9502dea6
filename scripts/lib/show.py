"""Passes on what cargo test prints, but of the tests that passed only why they were skipped: `--show-output` shows all they print."""

import sys


def shown(lines):
    """The lines of a run that somebody wants to read, in their order."""
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
