"""Writes the licences of all libraries in a binary. The binary is warren's unless another crate is named. Names and versions come first, then each licence
text once, with the libraries that it is for."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TEXTS = ("license", "licence", "copying", "notice", "copyright")


def main():
    line = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host()]
    metadata = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    libraries = [packages[identifier] for identifier in linked(metadata, *sys.argv[1:2]) if packages[identifier]["source"] or is_fork(packages[identifier])]
    libraries.sort(key=lambda package: (package["name"], package["version"]))
    texts = defaultdict(list)
    print("Libraries in the binary of Warren\n")
    for package in libraries:
        print(f"{package['name']} {package['version']}: {package['license']}")
        for path in sorted(Path(package["manifest_path"]).parent.iterdir()):
            if path.is_file() and path.name.lower().startswith(TEXTS):
                texts[path.read_text(errors="replace").strip()].append(f"{package['name']}/{path.name}")
    for text, files in sorted(texts.items(), key=lambda item: item[1]):
        print(f"\n{'-' * 78}\n{', '.join(files)}\n{'-' * 78}\n\n{text}")


def host():
    """Returns the platform that cargo builds for."""
    version = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in version.splitlines() if line.startswith("host:"))


def linked(metadata, crate="warren"):
    """Returns the packages that a program is linked with, without those that only tests and builds need."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [package["id"] for package in metadata["packages"] if package["name"] == crate]
    seen = set()
    while todo:
        identifier = todo.pop()
        if identifier in seen:
            continue
        seen.add(identifier)
        for dependency in nodes[identifier]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return seen


def is_fork(package):
    """Tells whether a package is part of the fork, which cargo takes for local code."""
    return "/vendor/" in package["manifest_path"]


if __name__ == "__main__":
    main()
