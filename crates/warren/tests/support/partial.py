"""Sends packets inside packets, and counts arrivals with correct checksums. The inner checksum is partial, as a kernel leaves it to
a device.

Usage: partial.py send DEVICE SOURCE DESTINATION COUNT    UDP in IPv4 and in IPv6 in turn, inside a packet of the addresses' version
       partial.py count VERSION COUNT SECONDS             prints "ready", then the arrivals with right and with wrong checksums
"""

import socket
import struct
import subprocess
import sys
import time

SOL_PACKET, PACKET_VNET_HDR = 263, 15
NEEDS_CSUM = 1
ETHERNET, UDP = 14, 8
IPV4_INSIDE, IPV6_INSIDE = 4, 41


def total(data):
    """The sum of RFC 1071, not inverted."""
    data += bytes(len(data) % 2)
    added = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while added >> 16:
        added = (added & 0xFFFF) + (added >> 16)
    return added


def packed(address):
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def ip(source, destination, protocol, payload):
    if len(source) == 16:
        return struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + source + destination + payload
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0x4000, 64, protocol, 0) + source + destination
    return header[:10] + struct.pack("!H", ~total(header) & 0xFFFF) + header[12:] + payload


def pseudo_header(source, destination, length):
    return total(source + destination + struct.pack("!HH", socket.IPPROTO_UDP, length))


def partial(source, destination, number):
    """An IP packet with UDP, whose checksum field holds only the pseudo-header's sum, and the UDP header's offset."""
    data = struct.pack("!I", number) + bytes(number * 7 % 251 for _ in range(100 + number % 900))
    length = UDP + len(data)
    udp = struct.pack("!HHHH", 4000, 5000, length, pseudo_header(source, destination, length)) + data
    packet = ip(source, destination, socket.IPPROTO_UDP, udp)
    return packet, len(packet) - len(udp)


def send(device, source, destination, count):
    gateway = next_hop(destination)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as opened:
        opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        opened.bind((device, 0))
        source, destination = packed(source), packed(destination)
        ethernet = gateway + opened.getsockname()[4] + struct.pack("!H", 0x0800 if len(source) == 4 else 0x86DD)
        for number in range(count):
            inside = ("10.9.0.1", "10.9.0.2") if number % 2 else ("fd09::1", "fd09::2")
            inner, udp_at = partial(packed(inside[0]), packed(inside[1]), number)
            outer = ip(source, destination, IPV4_INSIDE if number % 2 else IPV6_INSIDE, inner)
            start = ETHERNET + len(outer) - len(inner) + udp_at
            # struct virtio_net_hdr: flags, GSO type, header length, segment size, checksum start and offset.
            opened.send(struct.pack("<BBHHHH", NEEDS_CSUM, 0, start + UDP, 0, start, 6) + ethernet + outer)
            time.sleep(0.001)


def next_hop(destination):
    """The Ethernet address of the next hop."""
    words = subprocess.check_output(["ip", "route", "get", destination], text=True).split()
    hop = words[words.index("via") + 1] if "via" in words else destination
    subprocess.run(["ping", "-c", "1", "-W", "5", hop], stdout=subprocess.DEVNULL, check=True)
    words = subprocess.check_output(["ip", "neighbour", "show", hop], text=True).split()
    return bytes.fromhex(words[words.index("lladdr") + 1].replace(":", ""))


def count(version, wanted, seconds):
    family = socket.AF_INET if version == "4" else socket.AF_INET6
    opened = [socket.socket(family, socket.SOCK_RAW, protocol) for protocol in (IPV4_INSIDE, IPV6_INSIDE)]
    for each in opened:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        each.setblocking(False)
    print("ready", flush=True)
    right, wrong, end = 0, 0, time.monotonic() + seconds
    while right + wrong < wanted and time.monotonic() < end:
        for each in opened:
            try:
                packet = each.recv(65_535)
            except BlockingIOError:
                time.sleep(0.001)
                continue
            inner = packet[20 if version == "4" else 0:]
            width, begin = (4, 20) if inner[0] >> 4 == 4 else (16, 40)
            addresses = 12 if width == 4 else 8
            source, destination = inner[addresses:addresses + width], inner[addresses + width:addresses + 2 * width]
            udp = inner[begin:]
            is_right = total(udp + bytes(len(udp) % 2) + struct.pack("!H", pseudo_header(source, destination, len(udp)))) == 0xFFFF
            right, wrong = right + is_right, wrong + (not is_right)
    print(f"{right} right, {wrong} wrong")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        count(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
