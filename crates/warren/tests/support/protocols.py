"""Sends payloads over many protocols to an echo, and compares the answers byte for byte.

Usage: protocols.py serve               the echo; prints "ready" once it listens
       protocols.py spoil               the same, but changes one byte of payloads longer than 600 bytes
       protocols.py ask KINDS ADDRESS   sends over these protocols, separated by commas, or over "all" for ADDRESS's IP version;
                                        prints a line for each, and fails if a payload is lost or comes back changed

A payload that does not come back within a second is sent again, at most four times. The first packet of a size may be lost
while the path MTU is learned.
"""

import errno
import os
import selectors
import socket
import struct
import sys
import threading
import time

from partial import total

PORT = 5_400
TRIES = 5
# Below, at and above one packet; the largest are IP fragments.
SIZES = [0, 1, 500, 1_300, 1_400, 1_401, 2_900, 9_000, 40_000]
STREAM = 4_000_000
# For a send with UDP_SEGMENT, which the kernel passes on as one super-packet.
SEGMENT = 1_200
SEGMENTS = 40
SOL_UDP, UDP_SEGMENT = 17, 103
# Unknown options of a type that receivers skip (RFC 8200, section 4.2), in a header of eight bytes.
HOP_BY_HOP = b"\x00\x00\x1e\x04hop!"
DESTINATION = b"\x00\x00\x1e\x04dst!"
IPV4, IPV6 = socket.AF_INET, socket.AF_INET6


def family_of(address):
    return IPV6 if ":" in address else IPV4


def in_esp(data):
    """RFC 4303: SPI and sequence number, followed by opaque data."""
    return struct.pack("!II", 0x1234_5678, 7) + data


def in_ipv4(data):
    """An IPv4 header without a checksum: no host on the path may verify the inner packet."""
    return struct.pack("!BBHHHBBH8s", 0x45, 0, (20 + len(data)) & 0xFFFF, 1, 0, 64, 253, 0, b"\x0a\x09\x00\x01\x0a\x09\x00\x02") + data


def in_gre(data):
    """RFC 2784 with IPv4 inside: Linux's NAT drops GRE packets with fewer than four bytes after the header."""
    return b"\x00\x00\x08\x00" + in_ipv4(data)


def in_ipv6(data):
    return struct.pack("!IHBB16s16s", 6 << 28, len(data), 253, 64, bytes(16), bytes(16)) + data


# By name: protocol number, function that makes a payload from data, IP versions.
RAW = {
    "gre": (47, in_gre, (IPV4, IPV6)),
    "esp": (50, in_esp, (IPV4, IPV6)),
    "ipv4-inside": (4, in_ipv4, (IPV4, IPV6)),
    "ipv6-inside": (41, in_ipv6, (IPV4, IPV6)),
    "experiment": (253, bytes, (IPV4, IPV6)),
}


def raw_socket(family, protocol):
    opened = socket.socket(family, socket.SOCK_RAW, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    return opened


def received(opened, with_header):
    """The payload of one datagram, and its sender."""
    packet, sender = opened.recvfrom(65_535)
    return packet[(packet[0] & 15) * 4 if with_header else 0:], sender


def serve(give_back):
    """Returns each payload after `give_back` has processed it."""
    ready = selectors.DefaultSelector()
    for number, _, families in RAW.values():
        for family in families:
            ready.register(raw_socket(family, number), selectors.EVENT_READ, "raw")
    datagrams = socket.socket(IPV6, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPOPTS, 1)
    datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVDSTOPTS, 1)
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    datagrams.bind(("::", PORT))
    ready.register(datagrams, selectors.EVENT_READ, "datagrams")
    streams = socket.create_server(("::", PORT), family=IPV6, dualstack_ipv6=True)
    ready.register(streams, selectors.EVENT_READ, "streams")
    print("ready", flush=True)
    while True:
        for key, _ in ready.select():
            if key.data == "streams":
                threading.Thread(target=return_stream, args=[key.fileobj.accept()[0], give_back], daemon=True).start()
            elif key.data == "datagrams":
                data, options, _, sender = key.fileobj.recvmsg(65_535, 1_024)
                returned(lambda: key.fileobj.sendmsg([give_back(data)], options, 0, sender))
            else:
                data, sender = received(key.fileobj, key.fileobj.family == IPV4)
                returned(lambda: key.fileobj.sendto(give_back(data), (sender[0], 0)))


def returned(send):
    """Sends. A packet too long for a newly learned path MTU counts as lost."""
    try:
        send()
    except OSError as error:
        if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
            raise


def return_stream(stream, give_back):
    with stream:
        stream.sendall(give_back(b"".join(iter(lambda: stream.recv(1 << 16), b""))))


def spoilt(data):
    return data if len(data) <= 600 else data[:-1] + bytes([data[-1] ^ 0x57])


def ask_until_all_return(opened, payloads, sent, send, receive):
    """Sends each payload until all have come back. Returns the number of retransmissions.

    Adds the payloads to `sent`, because a payload that was sent twice may come back late.
    """
    waiting, again = list(payloads), 0
    sent.update(payloads)
    opened.settimeout(1)
    for attempt in range(TRIES):
        again += len(waiting) if attempt else 0
        send(waiting)
        end = time.monotonic() + 1
        while waiting and time.monotonic() < end:
            try:
                data = receive()
            except TimeoutError:
                break
            except OSError as error:
                # An earlier packet was too long for the path.
                if error.errno != errno.EMSGSIZE:
                    raise
                continue
            if data is None:
                continue
            if data not in sent:
                raise SystemExit(f"{len(data)} bytes came back that nobody had sent: {data[:64].hex()}")
            if data in waiting:
                waiting.remove(data)
        if not waiting:
            return again
    raise SystemExit(f"lost: {len(waiting)} of {len(payloads)} payloads, of {sorted(map(len, waiting))} bytes")


def one_by_one(opened, payloads, send, receive):
    sent = set()
    return sum(ask_until_all_return(opened, [payload], sent, lambda waiting: send(waiting[0]), receive) for payload in payloads)


def ask_raw(address, number, make):
    family = family_of(address)
    with raw_socket(family, number) as opened:
        payloads = [make(os.urandom(size)) for size in SIZES if make is not bytes or size]
        return one_by_one(
            opened,
            payloads,
            lambda payload: returned(lambda: opened.sendto(payload, (address, 0))),
            lambda: received(opened, family == IPV4)[0],
        )


def ask_datagrams(address):
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as opened:
        opened.connect((address, PORT))
        payloads = [os.urandom(size) for size in SIZES]
        return one_by_one(
            opened, payloads, lambda payload: returned(lambda: opened.send(payload)), lambda: opened.recv(65_535)
        )


def ask_segments(address):
    """Sends many datagrams in one system call."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as opened:
        opened.connect((address, PORT))
        opened.setsockopt(SOL_UDP, UDP_SEGMENT, SEGMENT)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        payloads = [os.urandom(SEGMENT) for _ in range(SEGMENTS)]
        return ask_until_all_return(
            opened, payloads, set(), lambda waiting: opened.send(b"".join(waiting)), lambda: opened.recv(65_535)
        )


def ask_with_headers(address, headers):
    """Sends datagrams with extension headers, which must come back too."""
    with socket.socket(IPV6, socket.SOCK_DGRAM) as opened:
        opened.connect((address, PORT))
        for option, value in headers.items():
            opened.setsockopt(socket.IPPROTO_IPV6, option, value)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPOPTS, 1)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVDSTOPTS, 1)

        def receive():
            data, options, _, _ = opened.recvmsg(65_535, 1_024)
            # The kernel writes the first byte, the next-header field.
            came = {kind: value[1:] for _, kind, value in options}
            if came != {option: value[1:] for option, value in headers.items()}:
                raise SystemExit(f"other extension headers came back: {came}")
            return data

        # With connection tracking, Linux reassembles fragments with destination options wrongly and loses them.
        most = max(SIZES) if socket.IPV6_DSTOPTS not in headers else 1_300
        payloads = [os.urandom(size) for size in SIZES if size <= most]
        return one_by_one(opened, payloads, lambda payload: returned(lambda: opened.send(payload)), receive)


def ask_echo(address):
    """Sends ICMP and ICMPv6 echo requests, which the other host's kernel answers."""
    request, reply, number = (8, 0, socket.IPPROTO_ICMP) if family_of(address) == IPV4 else (128, 129, socket.IPPROTO_ICMPV6)
    identifier = 0x5747
    with raw_socket(family_of(address), number) as opened:

        def send(payload):
            packet = struct.pack("!BBHHH", request, 0, 0, identifier, 1) + payload
            if number == socket.IPPROTO_ICMP:
                packet = packet[:2] + struct.pack("!H", ~total(packet) & 0xFFFF) + packet[4:]
            returned(lambda: opened.sendto(packet, (address, 0)))

        def receive():
            packet, _ = received(opened, number == socket.IPPROTO_ICMP)
            is_reply = len(packet) >= 8 and packet[0] == reply and packet[4:6] == struct.pack("!H", identifier)
            return packet[8:] if is_reply else None

        return one_by_one(opened, [os.urandom(size) for size in SIZES], send, receive)


def ask_stream(address):
    """Sends a whole TCP stream, and then receives it back."""
    sent = os.urandom(STREAM)
    with socket.create_connection((address, PORT), timeout=30) as stream:
        stream.sendall(sent)
        stream.shutdown(socket.SHUT_WR)
        if b"".join(iter(lambda: stream.recv(1 << 16), b"")) != sent:
            raise SystemExit("TCP brought other bytes back")
    return 0


def kinds(address):
    found = {"tcp": ask_stream, "udp": ask_datagrams, "udp-segments": ask_segments, "icmp": ask_echo}
    for name, (number, make, families) in RAW.items():
        if family_of(address) in families:
            found[name] = lambda address, number=number, make=make: ask_raw(address, number, make)
    if family_of(address) == IPV6:
        hop, destination = {socket.IPV6_HOPOPTS: HOP_BY_HOP}, {socket.IPV6_DSTOPTS: DESTINATION}
        found["hop-by-hop"] = lambda address: ask_with_headers(address, hop)
        found["destination"] = lambda address: ask_with_headers(address, destination)
        found["both-headers"] = lambda address: ask_with_headers(address, hop | destination)
    return found


def ask(wanted, address):
    for name, asked in kinds(address).items():
        if wanted == "all" or name in wanted.split(","):
            try:
                again = asked(address)
            except SystemExit as problem:
                raise SystemExit(f"{name} to {address}: {problem}") from None
            print(f"{name} to {address}: whole, {again} sent again", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(sys.argv[2], sys.argv[3])
    else:
        serve(spoilt if sys.argv[1] == "spoil" else bytes)
