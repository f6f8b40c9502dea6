"""Writes the list of warren's crates in cargo-auditable's format: the content of a binary's section .dep-v0, a zlib stream of JSON. rust-audit-info,
cargo-audit and others read it.

    auditable.py METADATA [CRATE]   METADATA is a file with the output of `cargo metadata --format-version 1`; run from the repository's root
"""

import json
import sys
import zlib

from sbom import ROOT_CRATE, built_from, read

# The most bytes in a stored block (RFC 1951 section 3.2.4).
BLOCK = 0xFFFF


def main():
    crate = sys.argv[2] if len(sys.argv) > 2 else ROOT_CRATE
    text = json.dumps({"packages": packages(read(sys.argv[1], crate), crate)}, separators=(",", ":"))
    sys.stdout.buffer.write(stored(text.encode()))


def packages(metadata, crate=ROOT_CRATE):
    """Returns every package with its name, version, and the indices in this list of the packages that it depends on."""
    known = {package["id"]: package for package in metadata["packages"]}
    root = next(package["id"] for package in metadata["packages"] if package["name"] == crate)
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
            # The fork counts as local, because advisories for the published crate need not apply to it.
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
    """Returns an uncompressed zlib stream (RFC 1950). Compressed bytes depend on zlib's version, and the binary must be reproducible."""
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)] or [b""]
    stream = b"\x78\x01"
    for number, block in enumerate(blocks, 1):
        length = len(block).to_bytes(2, "little")
        stream += bytes([number == len(blocks)]) + length + bytes(byte ^ 0xFF for byte in length) + block
    return stream + zlib.adler32(data).to_bytes(4, "big")


if __name__ == "__main__":
    main()
