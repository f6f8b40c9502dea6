"""Counts the edges of each fuzz target that its committed corpus does not reach. Ends with 1 if a count is more than a twentieth above that in
fuzz/uncovered.txt: then there is new code that no input of the corpus runs through.

    uncovered.py DIRECTORY            DIRECTORY has the targets that scripts/fuzz has built
    uncovered.py --write DIRECTORY    write the list anew
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "fuzz" / "uncovered.txt"
HEAD = "# Edges of each fuzz target that its committed corpus does not reach; scripts/fuzz compares, `scripts/lib/uncovered.py --write` writes it.\n"
ALL = re.compile(r"\((\d+) inline 8-bit counters\)")
REACHED = re.compile(r"cov: (\d+)")


def main():
    write = "--write" in sys.argv[1:]
    directory = Path(next(argument for argument in sys.argv[1:] if argument != "--write"))
    targets = sorted(path.stem for path in (ROOT / "fuzz" / "fuzz_targets").glob("*.rs"))
    found = {target: uncovered(directory / target, ROOT / "fuzz" / "corpus" / target) for target in targets}
    if write:
        LIST.write_text(HEAD + "".join(f"{target} {count}\n" for target, count in found.items()))
        return
    listed = read(LIST.read_text())
    grown = list(growth(found, listed))
    for problem in grown:
        print(f"scripts/fuzz: {problem}")
    print(f"measured: of {len(found)} targets {sum(found.values())} edges are not reached by their corpora; the list has {sum(listed.values())}")
    sys.exit(1 if grown else 0)


def uncovered(target, corpus):
    """Runs a target once on its corpus only, and returns the number of edges not reached."""
    ran = subprocess.run([target, "-runs=0", corpus], capture_output=True, text=True, check=True)
    edges, reached = ALL.findall(ran.stderr), REACHED.findall(ran.stderr)
    if not edges or not reached:
        sys.exit(f"scripts/fuzz: {target.name} does not print its coverage; build it with `scripts/fuzz`")
    return sum(map(int, edges)) - int(reached[-1])


def read(text):
    lines = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {target: int(count) for target, count in lines}


def growth(found, listed):
    """Yields a sentence for each target whose count has grown too much."""
    for target, count in found.items():
        if target not in listed:
            yield f"{target} is not in {LIST.name}: write the list anew with `scripts/lib/uncovered.py --write`"
        elif count > listed[target] * 1.05:
            yield f"{count} edges of {target} are not reached by its corpus, instead of {listed[target]}: add inputs that reach the new code"


if __name__ == "__main__":
    main()
