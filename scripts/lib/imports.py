"""Shows the import cycles among the modules of each crate, with the names that close them.

    python3 scripts/lib/imports.py [CRATE...]     all crates unless named

A module is a file. Files are found by following `mod` from the root of the crate. Code that is only compiled for tests is left out. A name
belongs to the file that defines it, through any number of `pub use`. A `pub use` counts only if its own file uses the name too. Method
calls are not seen.
"""

import functools
import re
import sys
from pathlib import Path

from rust_source import blank, closing, code, product

ROOT = Path(__file__).resolve().parent.parent.parent

# `pub(in path)` names a module without using it.
VISIBILITY = re.compile(r"\bpub\s*\(\s*in\b[^)]*\)")
DEFINITION = re.compile(r"\b(?:fn|struct|enum|union|trait|const|static|type)\s+(?:mut\s+)?(\w+)|\bmacro_rules!\s*(\w+)")
MODULE = re.compile(r"((?:#\[[^\]]*\]\s*)*)(?:\bpub\b\s*(?:\([^)]*\)\s*)?)?\bmod\s+(\w+)\s*([;{])")
PATH_ATTRIBUTE = re.compile(r'#\[\s*path\s*=\s*"([^"]*)"\s*\]')
USE = re.compile(r"(\bpub\b\s*(?:\([^)]*\)\s*)?)?\buse\s+([^;]*);")
PATH = re.compile(r"(?<![\w:.])\$?(?:\w+\s*::\s*)+\w+")
NAME = re.compile(r"(?<![\w:.])[A-Za-z_]\w*\b(?!\s*::)")


class Module:
    def __init__(self, path, file):
        self.path = path
        # The path of the module that the file is named after. An inline module has that of its parent.
        self.file = file
        # The code without its `use` and `mod`.
        self.source = ""
        self.children = {}
        self.defined = set()
        # What `use` brings in: by name, the path and whether it is public; `use ... as _`; `use ...::*`.
        self.named = {}
        self.unnamed = []
        self.globs = []


def imports(crate):
    """Maps each module of a crate, as `a::b`, to the modules that it uses, and each of those to the names."""
    graph = {}
    for root in roots(crate):
        crate_at(root).add_to(graph)
    return graph


def crate_at(root):
    """Reads a crate. Several tests look at the same crates, so each is read again only after a change of its files."""
    return read_crate(root, tuple(sorted((file, file.stat().st_mtime_ns) for file in root.parent.rglob("*.rs"))))


@functools.cache
def read_crate(root, _changes):
    return Crate(root)


def crates(root):
    """Returns the directories of the crates below a root, sorted, and the benchmarks' last."""
    return [manifest.parent for manifest in [*sorted(root.glob("crates/*/Cargo.toml")), *root.glob("bench/Cargo.toml")]]


def roots(crate):
    return [crate / "src" / name for name in ("lib.rs", "main.rs") if (crate / "src" / name).is_file()]


class Crate:
    def __init__(self, root):
        # Modules by path; the text and the code of each file, by the file's path.
        self.modules = {}
        self.files = {}
        self.read((), root, root.parent)

    def read(self, path, file, directory):
        """Reads a file and the files that it declares, which are in `directory`."""
        text = file.read_text()
        source = VISIBILITY.sub(lambda found: blank(found[0]), product(code(text)))
        self.files[file] = text, source
        self.add(path, path, source, text, directory, directory_of_paths=file.parent)

    def add(self, path, file, source, text, directory, directory_of_paths):
        module = self.modules[path] = Module(path, file)
        at = 0
        while found := MODULE.search(source, at):
            attributes, name, sign = found.groups()
            child = (*path, name)
            module.children[name] = child
            end = found.end()
            if sign == ";":
                written = PATH_ATTRIBUTE.search(text[found.start() : end])
                self.read(child, *place(name, directory, directory_of_paths / written[1] if written else None))
            else:
                end = closing(source, end - 1) + 1
                # Blanks instead of a slice, so that places in `text` stay the same.
                inner = blank(source[: found.end()]) + source[found.end() : end - 1]
                self.add(child, file, inner, text, directory / name, directory / name)
            source = source[: found.start()] + blank(source[found.start() : end]) + source[end:]
            at = end
        for found in USE.finditer(source):
            for names, alias in leaves(found[2]):
                note(module, names, alias, bool(found[1]))
        module.source = USE.sub(lambda found: blank(found[0]), source)
        module.defined = {name for pair in DEFINITION.findall(module.source) for name in pair if name}

    def add_to(self, graph):
        for module in self.modules.values():
            used = graph.setdefault(label(module.file), {})
            for names in self.uses(module):
                file = self.file_of(module, names)
                if file is not None and file != module.file:
                    used.setdefault(label(file), set()).add("::".join(names))

    def uses(self, module):
        """Yields every path in the code of the module."""
        yield from module.unnamed
        names = set(NAME.findall(module.source))
        first = set()
        for path in PATH.findall(module.source):
            path = [name.strip() for name in path.lstrip("$").split("::")]
            first.add(path[0])
            yield path
        for name, (path, is_public) in module.named.items():
            # A private import always counts: the compiler reports unused ones, and a trait is used without its name.
            if not is_public or name in names | first:
                yield path
        if module.globs:
            yield from ([name] for name in names - module.defined - module.named.keys() - module.children.keys())

    def file_of(self, module, names):
        """Finds the file that defines what a path names. None for another crate."""
        found = self.resolve(module, names, set())
        return None if found is None else self.modules[found].file

    def resolve(self, module, names, seen):
        """Finds the module that defines what a path names, as seen from `module`."""
        if (key := (module.path, tuple(names))) in seen:
            return None
        seen.add(key)
        first, *rest = names
        if first == "crate":
            return self.descend(self.modules[()], rest, seen)
        if first == "self":
            return self.descend(module, rest, seen)
        if first == "super":
            return self.descend(self.modules[module.path[:-1]], rest, seen)
        if first in module.children or first in module.defined or first in module.named or module.globs:
            return self.descend(module, names, seen, is_sure=first in module.children or first in module.defined)
        return None

    def descend(self, module, names, seen, is_sure=True):
        if not names:
            return module.path
        first, *rest = names
        if first == "super":
            return self.descend(self.modules[module.path[:-1]], rest, seen)
        if first in ("self", "*"):
            return self.descend(module, rest, seen)
        if first in module.children:
            return self.descend(self.modules[module.children[first]], rest, seen)
        if first in module.defined:
            return module.path
        if first in module.named:
            path, _ = module.named[first]
            # `use name::{self, Other}` of another crate would lead back to itself.
            return self.resolve(module, [*path, *rest], seen) if path[0] != first else None
        for path in module.globs:
            target = self.resolve(module, path, seen)
            if target is not None and target != module.path and self.has(self.modules[target], first, seen):
                return self.descend(self.modules[target], names, seen)
        # A name whose definition was not seen, such as one that a macro makes. `a::b::name` is nevertheless in `a::b`.
        return module.path if is_sure else None

    def has(self, module, name, seen):
        if name in module.children or name in module.defined or name in module.named:
            return True
        return self.descend(module, [name], seen | {(module.path, ())}, is_sure=False) is not None


def label(path):
    return "::".join(path) or "crate"


def place(name, directory, written):
    """Finds the file of a declared module, and the directory of the files that it declares."""
    if written:
        return written, written.parent
    if (file := directory / f"{name}.rs").is_file():
        return file, directory / name
    return directory / name / "mod.rs", directory / name


def note(module, names, alias, is_public):
    if names[-1] == "*":
        module.globs.append(names[:-1])
    elif alias == "_":
        module.unnamed.append(names)
    else:
        name = alias or next(name for name in reversed(names) if name != "self")
        module.named[name] = (names, is_public)


def leaves(tree, prefix=()):
    """Yields the paths of a use tree, each with its `as` name or None."""
    tree = tree.strip().removeprefix("::")
    if "{" not in tree:
        path, _, alias = re.sub(r"\s+", " ", tree).partition(" as ")
        names = [*prefix, *(name.strip() for name in path.split("::"))]
        yield names, alias.strip() or None
        return
    start = tree.index("{")
    names = [*prefix, *(name.strip() for name in tree[:start].split("::") if name.strip())]
    for part in parts(tree[start + 1 : closing(tree, start)]):
        yield from leaves(part, names)


def parts(inner):
    depth, last = 0, 0
    for at, letter in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield inner[last:at]
            last = at + 1
    if inner[last:].strip():
        yield inner[last:]


def cycles(graph):
    """Finds the groups of modules that import each other, directly or through others. Each is sorted."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for used in sorted(graph.get(node, ())):
            if used not in index:
                visit(used)
                low[node] = min(low[node], low[used])
            elif used in stack:
                low[node] = min(low[node], index[used])
        if low[node] == index[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def main():
    for crate in crates(ROOT):
        if sys.argv[1:] and crate.name not in sys.argv[1:]:
            continue
        graph = imports(crate)
        for modules in cycles(graph):
            print(f"{crate.name}: {len(modules)} modules")
            for user in modules:
                for used in modules:
                    if names := graph[user].get(used):
                        print(f"    {user} -> {used}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
