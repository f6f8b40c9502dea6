"""Makes a CycloneDX bill of materials from `cargo metadata`: the crates that warren is built from, without those that only tests need.

    sbom.py METADATA        METADATA is a file with the output of `cargo metadata --format-version 1`; run from the repository's root
"""

import hashlib
import json
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT_CRATE = "warren"


def main():
    metadata = read(sys.argv[1])
    lock = tomllib.loads(Path("Cargo.lock").read_text())
    upstream = {crate["name"]: crate for crate in tomllib.loads(Path("vendor/upstream.toml").read_text())["crate"]}
    patches = sorted(Path("vendor/patches").glob("*.patch"))
    json.dump(bill(metadata, lock, upstream, patches), sys.stdout, indent=2, sort_keys=True)
    print()


def read(path, crate=ROOT_CRATE):
    """Reads cargo's metadata, without crates that only other workspace members than `crate` need. cargo resolves the features of all members at once."""
    metadata = json.loads(Path(path).read_text())
    tree = ["cargo", "tree", "--locked", "--package", crate, "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]
    lines = subprocess.run(tree, capture_output=True, text=True, check=True).stdout.splitlines()
    built = {tuple(line.split()[:2]) for line in lines if line}
    kept = {package["id"] for package in metadata["packages"] if (package["name"], f"v{package['version']}") in built}
    metadata["resolve"]["nodes"] = [
        {**node, "deps": [dependency for dependency in node["deps"] if dependency["pkg"] in kept]}
        for node in metadata["resolve"]["nodes"]
        if node["id"] in kept
    ]
    return metadata


def bill(metadata, lock, upstream, patches):
    packages = {package["id"]: package for package in metadata["packages"]}
    root = next(package for package in metadata["packages"] if package["name"] == ROOT_CRATE)
    edges = built_from(metadata, root["id"])
    checksums = {(crate["name"], crate["version"]): crate.get("checksum") for crate in lock["package"]}
    components = [
        component(packages[identity], checksums, upstream, patches)
        for identity in edges
        if identity != root["id"]
    ]
    components.sort(key=lambda component: component["bom-ref"])
    dependencies = [
        {"ref": reference(packages[identity]), "dependsOn": sorted(reference(packages[other]) for other in others)}
        for identity, others in edges.items()
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**named(root), "type": "application"}},
        "components": components,
        "dependencies": sorted(dependencies, key=lambda dependency: dependency["ref"]),
    }
    # The serial number derives from the content, so the same materials give the same document.
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, content).urn
    return document


def built_from(metadata, root, kinds=frozenset({None, "build"})):
    """Returns every package in the root's build, the root included, with its direct dependencies. In `kinds`, `None` stands for linked dependencies."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    edges, waiting = {}, [root]
    while waiting:
        identity = waiting.pop()
        if identity in edges:
            continue
        edges[identity] = {
            dependency["pkg"]
            for dependency in nodes[identity]["deps"]
            if any(kind["kind"] in kinds for kind in dependency["dep_kinds"])
        }
        waiting.extend(edges[identity])
    return edges


def component(package, checksums, upstream, patches):
    made = {**named(package), "type": "library"}
    if package.get("license"):
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    name, version = package["name"], package["version"]
    if name in upstream:
        made["pedigree"] = pedigree(upstream[name], patches)
    elif checksum := checksums.get((name, version)):
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return made


def pedigree(crate, patches):
    """Returns the upstream crate of a crate of the fork, and the patches that touch it. A patch may touch several crates."""
    ancestor = {
        "type": "library",
        "name": crate["name"],
        "version": crate["version"],
        "purl": f"pkg:cargo/{crate['name']}@{crate['version']}",
        "hashes": [{"alg": "SHA-256", "content": crate["sha256"]}],
    }
    of_it = [patch for patch in patches if f"--- a/{crate['name']}/" in patch.read_text()]
    return {
        "ancestors": [ancestor],
        "patches": [{"type": "unofficial", "diff": {"url": str(patch)}} for patch in of_it],
        "notes": " ".join(f"{patch.name} sha256:{hashlib.sha256(patch.read_bytes()).hexdigest()}" for patch in of_it),
    }


def named(package):
    return {
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


if __name__ == "__main__":
    main()
