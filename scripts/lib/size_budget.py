"""Compares a shipped binary with size-budget.txt, and ends with 1 if its size or number of crates has grown by more than a tenth.

    size_budget.py FILE [PROGRAM]            compare a binary that scripts/build made, of warren unless another program is named
    size_budget.py --write FILE [PROGRAM]    write the program's figures anew
"""

import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

LIST = Path(__file__).resolve().parents[2] / "size-budget.txt"
HEAD = "# The binaries as scripts/build makes them; scripts/lib/size_budget.py refuses a tenth more.\n"
# Percent.
GROWTH = 10


def main():
    write = "--write" in sys.argv[1:]
    binary, *program = (argument for argument in sys.argv[1:] if argument != "--write")
    program = program[0] if program else "warren"
    found = {"bytes": Path(binary).stat().st_size, "crates": len(crates(binary))}
    budgets = read(LIST.read_text())
    if write:
        LIST.write_text(text({**budgets, program: found}))
        return 0
    if program not in budgets:
        print(f"size_budget.py: {LIST.name} has no {program}; run scripts/lib/size_budget.py --write {binary} {program}")
        return 1
    wanted = budgets[program]
    print(f"{program}: " + "; ".join(f"{what}: {number:,} of {wanted[what]:,}" for what, number in found.items()))
    for what in grown(found, wanted):
        print(
            f"size_budget.py: {what} grew by more than {GROWTH} %. If that is intended, run scripts/lib/size_budget.py --write {binary} {program}"
        )
    return 1 if grown(found, wanted) else 0


def crates(binary):
    """Returns the crates listed in the binary; see auditable.py."""
    with tempfile.NamedTemporaryFile() as section:
        command = ["objcopy", f"--dump-section=.dep-v0={section.name}", binary, "/dev/null"]
        subprocess.run(command, check=True)
        return json.loads(zlib.decompress(section.read()))["packages"]


def read(text):
    """Returns the figures of each program."""
    budgets = {}
    for program, number, what in (line.split() for line in text.splitlines() if not line.startswith("#")):
        budgets.setdefault(program, {})[what] = int(number)
    return budgets


def text(budgets):
    """Returns the list's text."""
    lines = (f"{program:12} {number:10} {what}\n" for program, budget in budgets.items() for what, number in budget.items())
    return HEAD + "".join(lines)


def grown(found, wanted):
    return [what for what, number in found.items() if number * 100 > wanted[what] * (100 + GROWTH)]


if __name__ == "__main__":
    sys.exit(main())
