"""Writes what warren is built from in the form that cargo-auditable puts into binaries, as their section .dep-v0: a zlib stream of JSON.
rust-audit-info, cargo-audit and others read it.

    auditable.py METADATA        a file with the answer of `cargo metadata --format-version 1`; run from the repository's root
"""

import json
import sys
import zlib

from sbom import ROOT_CRATE, built_from, read

# The most that a stored block of RFC 1951 (section 3.2.4) holds.
BLOCK = 0xFFFF


def main():
    text = json.dumps({"packages": packages(read(sys.argv[1]))}, separators=(",", ":"))
    sys.stdout.buffer.write(stored(text.encode()))


def packages(metadata):
    """Every package by name and version, each with the places in this list of those that it needs."""
    known = {package["id"]: package for package in metadata["packages"]}
    root = next(package["id"] for package in metadata["packages"] if package["name"] == ROOT_CRATE)
    edges = built_from(metadata, root)
    linked = built_from(metadata, root, kinds={None})
    order = sorted(edges, key=lambda identity: (known[identity]["name"], known[identity]["version"]))
    places = {identity: place for place, identity in enumerate(order)}
    listed = []
    for identity in order:
        package = known[identity]
        entry = {
            "name": package["name"],
            "version": package["version"],
            # The fork is local too: what is known of the published crate need not be true of it.
            "source": "crates.io" if package["source"] else "local",
        }
        if identity not in linked:
            entry["kind"] = "build"
        if edges[identity]:
            entry["dependencies"] = sorted(places[other] for other in edges[identity])
        if identity == root:
            entry["root"] = True
        listed.append(entry)
    return listed


def stored(data):
    """A zlib stream (RFC 1950) that is not compressed: each version of zlib would compress otherwise, and a binary have other bytes."""
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)] or [b""]
    stream = b"\x78\x01"
    for number, block in enumerate(blocks, 1):
        length = len(block).to_bytes(2, "little")
        stream += bytes([number == len(blocks)]) + length + bytes(byte ^ 0xFF for byte in length) + block
    return stream + zlib.adler32(data).to_bytes(4, "big")


if __name__ == "__main__":
    main()
