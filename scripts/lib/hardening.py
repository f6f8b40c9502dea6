"""Prints how a binary of warren is hardened, and fails if any protection is missing.

    hardening.py FILE                  a release build
    hardening.py --development FILE    a development build, which must have the switches that only tests use
    hardening.py --fleet FILE          a release build of warren-fleet
"""

import subprocess
import sys
from pathlib import Path

# Strings that a release must not contain: the variable that makes a program write TLS secrets to a file, and the request that makes a part
# of a daemon panic.
SWITCHES = (b"SSLKEYLOGFILE", b"break_down")


def main():
    development = sys.argv[1] == "--development"
    # tonic, the library of etcd's client, has the first string for an option that warren-fleet never turns on.
    switches = SWITCHES[1:] if sys.argv[1] == "--fleet" else SWITCHES
    binary = sys.argv[-1]
    properties = hardening(readelf(binary))
    found = [switch.decode() for switch in switches if switch in Path(binary).read_bytes()]
    print("; ".join(f"{what}: {'yes' if holds else 'NO'}" for what, holds in properties.items()), end="; ")
    print(f"test switches: {', '.join(found) or 'none'}")
    # A development build has one of them, which shows that the search works.
    sys.exit(0 if all(properties.values()) and found == (["break_down"] if development else []) else 1)


def readelf(binary):
    command = ["readelf", "--wide", "--file-header", "--program-headers", "--dynamic", binary]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout


def hardening(text):
    """Returns each protection and whether the headers of the binary show it."""
    lines = [line.split() for line in text.splitlines()]
    segments = [(line[0], "".join(line[6:-1])) for line in lines if len(line) > 7 and line[1].startswith("0x")]
    dynamic = [line for line in lines if line and line[0].startswith("0x")]
    tags = {line[1].strip("()") for line in dynamic if len(line) > 1}
    words = {word for line in dynamic for word in line}
    now = "(BIND_NOW)" in words or "BIND_NOW" in words or "NOW" in words
    stack = [flags for kind, flags in segments if kind == "GNU_STACK"]
    return {
        "PIE": any(line[:2] == ["Type:", "DYN"] for line in lines) and "PIE" in words,
        "full RELRO": any(kind == "GNU_RELRO" for kind, _ in segments) and now,
        "bound at the start": now,
        "stack not executable": stack == ["RW"],
        "nothing both written and run": not any("W" in flags and "E" in flags for _, flags in segments),
        "code never relocated": "TEXTREL" not in tags and "TEXTREL" not in words,
    }


if __name__ == "__main__":
    main()
