"""Counts `unsafe` in Rust sources, file by file, and compares it with a committed list.

    unsafe_budget.py            print what differs from unsafe-budget.txt; ends with 1 if anything does
    unsafe_budget.py --write    write the list anew
"""

import re
import sys
from pathlib import Path

LIST = Path("unsafe-budget.txt")
HEAD = "# Blocks, functions and implementations that are unsafe, in Warren and in the fork; scripts/lib/unsafe_budget.py checks it.\n"
PLACES = ["crates", "bench", "vendor/noq/src", "vendor/noq-proto/src", "vendor/noq-udp/src"]
# Comments, strings and characters do not count. (Names of lints don't match UNSAFE.)
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|'(?:\\[^u]|[^'\\])'" r'|b?r(#*)".*?"\1|"(?:\\.|[^"\\])*"', re.DOTALL)
UNSAFE = re.compile(r"\bunsafe\b(?=\s*(?:\{|fn\b|impl\b|trait\b|extern\b))")


def main():
    found = count()
    if sys.argv[1:] == ["--write"]:
        LIST.write_text(HEAD + "".join(f"{number:3} {path}\n" for path, number in sorted(found.items())))
        return 0
    wanted = {}
    for line in LIST.read_text().splitlines():
        if not line.startswith("#"):
            number, path = line.split(maxsplit=1)
            wanted[path] = int(number)
    if not any(path.startswith("vendor/") for path in found):
        print("unsafe_budget.py: the fork's source is missing; run scripts/vendor")
        return 1
    different = [path for path in sorted(found.keys() | wanted.keys()) if found.get(path, 0) != wanted.get(path, 0)]
    for path in different:
        print(f"{path}: {found.get(path, 0)} uses of unsafe, and {LIST} has {wanted.get(path, 0)}")
    if different:
        print("unsafe_budget.py: if that is intended and reviewed, run scripts/lib/unsafe_budget.py --write")
    return 1 if different else 0


def count():
    found = {}
    for place in PLACES:
        for path in Path(place).rglob("*.rs"):
            number = len(UNSAFE.findall(NOT_CODE.sub(" ", path.read_text())))
            if number and "target" not in path.parts:
                found[str(path)] = number
    return found


if __name__ == "__main__":
    sys.exit(main())
