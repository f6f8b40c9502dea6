"""Tries every way out of this host once every 50 ms, from ports 40000 to 40999. Prints a dot for each attempt.

Usage: probe.py SECONDS ADDRESS...    tries every address over TCP, UDP and ICMP, as routed and bound to eth0
"""

import errno
import itertools
import socket
import sys
import time

PORTS = [53, 443, 853, 1337]
EVERY = 0.05
WAYS = [*itertools.product(["tcp", "udp"], PORTS), ("icmp", 0)]
sources = itertools.cycle(range(40_000, 41_000))


def attempt(address, kind, port, device):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    protocol = {"icmp": socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6}.get(kind, 0)
    types = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM, "icmp": socket.SOCK_RAW}
    with socket.socket(family, types[kind], protocol) as sender:
        sender.setblocking(False)
        if device:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        try:
            if kind == "icmp":
                echo = b"\x08\x00\xf7\xff\x00\x00\x00\x00" if family == socket.AF_INET else b"\x80" + bytes(7)
                sender.sendto(echo, (address, 0))
                return
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sender.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", next(sources)))
            sender.connect((address, port))
            if kind == "udp":
                sender.send(b"probe")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return attempt(address, kind, port, device)


def main():
    end = time.monotonic() + float(sys.argv[1])
    targets = list(itertools.product(sys.argv[2:], [None, b"eth0"]))
    while time.monotonic() < end:
        start = time.monotonic()
        for number, (address, device) in enumerate(targets, 1):
            for kind, port in WAYS:
                attempt(address, kind, port, device)
                print(".", end="", flush=True)
            # Spreads the targets over time, so that a short leak is not missed.
            time.sleep(max(0, start + EVERY * number / len(targets) - time.monotonic()))


main()
