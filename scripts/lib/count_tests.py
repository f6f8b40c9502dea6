"""Reads the output of cargo test and unittest from a file, and prints "PASSED FAILED SKIPPED". With --failed it prints the names of cargo's failed tests,
with --failures the first lines that each of them printed."""

import re
import sys

CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)
UNITTEST = re.compile(r"^Ran (\d+) tests? in [\d.]+s\n\n(?:OK|FAILED)(?: \((.*)\))?$", re.MULTILINE)
# A test that lacks something it needs prints this and succeeds, so cargo counts it as passed.
SKIPPED = re.compile(r"^skipped: ", re.MULTILINE)


def count(text):
    passed = failed = skipped = 0
    for result in CARGO.finditer(text):
        passed += int(result[1])
        failed += int(result[2])
        skipped += int(result[3])
    said = len(SKIPPED.findall(text))
    passed -= said
    skipped += said
    for result in UNITTEST.finditer(text):
        named = dict(re.findall(r"(\w+)=(\d+)", result[2] or ""))
        bad = int(named.get("failures", 0)) + int(named.get("errors", 0))
        left_out = int(named.get("skipped", 0))
        passed += int(result[1]) - bad - left_out
        failed += bad
        skipped += left_out
    return passed, failed, skipped


def failed_names(text):
    """Returns the names in cargo's closing lists of failures, in order."""
    lists = re.findall(r"^failures:\n((?:    \S+\n)+)", text, re.MULTILINE)
    return [name for names in lists for name in names.split()]


def failures(text, lines=25):
    """Returns what each failed test printed, by its name."""
    said = {}
    for part in text.split("\nfailures:\n")[1:]:
        for block in re.split(r"^---- ", part.split("\ntest result: ")[0], flags=re.MULTILINE)[1:]:
            name, _, output = block.partition(" stdout ----\n")
            said[name] = "\n".join(output.splitlines()[:lines]).strip()
    return said


if __name__ == "__main__":
    with open(sys.argv[-1], encoding="utf-8", errors="replace") as log:
        text = log.read()
    if "--failed" in sys.argv[1:-1]:
        print(*failed_names(text), sep="\n")
    elif "--failures" in sys.argv[1:-1]:
        for name, output in failures(text).items():
            print(f"---- {name}\n{output}\n")
    else:
        print(*count(text))
