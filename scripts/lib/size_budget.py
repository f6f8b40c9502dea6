"""Compares the shipped binary with size-budget.txt, and ends with 1 if its size or number of crates has grown by more than a tenth.

    size_budget.py FILE            compare the binary that scripts/build made
    size_budget.py --write FILE    write the list anew
"""

import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

LIST = Path(__file__).resolve().parents[2] / "size-budget.txt"
HEAD = "# The binary as scripts/build makes it; scripts/lib/size_budget.py refuses a tenth more.\n"
# Percent.
GROWTH = 10


def main():
    binary = Path(sys.argv[-1])
    found = {"bytes": binary.stat().st_size, "crates": len(crates(binary))}
    if sys.argv[1] == "--write":
        LIST.write_text(HEAD + "".join(f"{number:10} {what}\n" for what, number in found.items()))
        return 0
    wanted = read(LIST.read_text())
    print("; ".join(f"{what}: {number:,} of {wanted[what]:,}" for what, number in found.items()))
    for what in grown(found, wanted):
        print(f"size_budget.py: {what} grew by more than {GROWTH} %. If that is intended, run scripts/lib/size_budget.py --write {binary}")
    return 1 if grown(found, wanted) else 0


def crates(binary):
    """Returns the crates listed in the binary; see auditable.py."""
    with tempfile.NamedTemporaryFile() as section:
        command = ["objcopy", f"--dump-section=.dep-v0={section.name}", binary, "/dev/null"]
        subprocess.run(command, check=True)
        return json.loads(zlib.decompress(section.read()))["packages"]


def read(text):
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {what: int(number) for number, what in lines}


def grown(found, wanted):
    return [what for what, number in found.items() if number * 100 > wanted[what] * (100 + GROWTH)]


if __name__ == "__main__":
    sys.exit(main())
