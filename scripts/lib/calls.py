"""Shows the types whose methods are spread over several files, and where these files call each other in a circle.

    python3 scripts/lib/calls.py [TYPE...]     shows all circles, or only those of the named types, with all files of these types

A call is `self.name(...)` or `Self::name(...)` inside an `impl` of the type. Code that is only compiled for tests is left out.
"""

import re
import sys
from collections import defaultdict
from os.path import commonpath
from pathlib import Path

from imports import crate_at, crates, cycles, roots
from rust_source import closing

ROOT = Path(__file__).resolve().parent.parent.parent

DEFINITION = re.compile(r"\b(?:struct|enum|union)\s+(\w+)")
IMPL = re.compile(r"^impl\b([^{;]*)\{", re.MULTILINE)
WHERE = re.compile(r"\bwhere\b")
# The type's name, without its path, at the end of a header without generics and bounds.
NAME = re.compile(r"(\w+)\s*$")
METHOD = re.compile(r"\bfn\s+(\w+)")
CALL = re.compile(r"\b(?:self\s*\.|Self\s*::)\s*(\w+)\s*\(")


class Methods:
    """The methods of a type."""

    def __init__(self):
        # The file of each method, and the methods that each calls.
        self.files = {}
        self.calls = defaultdict(set)

    def add(self, file, body):
        found = list(METHOD.finditer(body))
        for method, following in zip(found, [*found[1:], None]):
            self.files[method[1]] = file
            self.calls[method[1]] |= set(CALL.findall(body, method.end(), following.start() if following else len(body)))

    def between_files(self):
        """Maps each file to the files whose methods it calls, and each of those to the calls."""
        graph = {file: defaultdict(set) for file in self.files.values()}
        for caller, called in self.calls.items():
            for name in called & self.files.keys():
                if self.files[name] != self.files[caller]:
                    graph[self.files[caller]][self.files[name]].add((caller, name))
        return graph


def types(crate):
    """Maps each type of a crate, as its name and the file that defines it, to its methods."""
    files = {str(file.relative_to(crate / "src")): source for root in roots(crate) for file, (_, source) in crate_at(root).files.items()}
    defined = defaultdict(list)
    for file, source in files.items():
        for definition in DEFINITION.finditer(source):
            defined[definition[1]].append(file)
    found = defaultdict(Methods)
    for file, source in files.items():
        for impl in IMPL.finditer(source):
            name = type_of(impl[1])
            if name in defined:
                body = source[impl.end() : closing(source, impl.end() - 1)]
                found[name, nearest(file, defined[name])].add(file, body)
    return found


def nearest(file, definitions):
    """Returns the definition to which an `impl` in a file most likely belongs. Types with the same name are in different folders, or private to a file."""
    return max(sorted(definitions), key=lambda other: (other == file, len(commonpath([parent(file), parent(other)])), -len(other)))


def parent(file):
    """Returns the path of a module: a file's name without its ending."""
    return file.removesuffix(".rs").removesuffix("/mod")


def type_of(header):
    """Returns the type's name from the text between `impl` and its brace."""
    # A bound may contain a `for`, too.
    header = WHERE.split(without_generics(header))[0]
    found = NAME.search(header.rsplit(" for ", 1)[-1])
    return found and found[1]


def without_generics(header):
    depth, kept = 0, []
    for at, letter in enumerate(header):
        if letter == ">" and header[at - 1] != "-":
            depth -= 1
        elif letter == "<":
            depth += 1
        elif depth == 0:
            kept.append(letter)
    return "".join(kept)


def circles(crate):
    """Finds the types whose files call each other in a circle. Yields each with these files and its methods."""
    for (name, _), methods in sorted(types(crate).items(), key=lambda each: each[0]):
        for files in cycles(methods.between_files()):
            yield name, files, methods


def main():
    for crate in crates(ROOT):
        for (name, _), methods in types(crate).items() if sys.argv[1:] else ():
            if name in sys.argv[1:]:
                files = sorted(set(methods.files.values()))
                print(f"{crate.name}: {name} has {len(methods.files)} methods in {len(files)} files: {', '.join(files)}")
        for name, files, methods in circles(crate):
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            graph = methods.between_files()
            print(f"{crate.name}: {name}: {len(files)} files call each other in a circle")
            for caller in files:
                for called in files:
                    if calls := graph[caller].get(called):
                        print(f"    {caller} -> {called}: {', '.join(f'{a} calls {b}' for a, b in sorted(calls))}")


if __name__ == "__main__":
    main()
