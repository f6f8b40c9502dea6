"""Forwards datagrams 5 to 20 ms late that an nft rule drops on a link: late.py DEVICE dport|sport BELOW

A packet socket sees packets before the device's ingress rules do. Script and rule select the same datagrams: IPv4 UDP to or
from port 443 with one byte of the payload below BELOW. Encryption makes that byte random.
"""

import heapq
import random
import select
import socket
import sys
import time

PORT = (443).to_bytes(2, "big")
BYTE_OF_UDP = 40
EVERY_PROTOCOL = 3
UDP = 17

device, port, below = sys.argv[1:]
port_at = {"sport": 0, "dport": 2}[port]

# Protocol 0, so that the socket receives nothing before it is bound to the device.
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
tap.bind((device, EVERY_PROTOCOL))
tap.setblocking(False)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
print("listening", flush=True)


def is_taken(packet, address):
    if address[2] == socket.PACKET_OUTGOING or packet[0] >> 4 != 4 or packet[9] != UDP:
        return False
    udp = packet[(packet[0] & 15) * 4 :]
    return udp[port_at : port_at + 2] == PORT and len(udp) > BYTE_OF_UDP and udp[BYTE_OF_UDP] < int(below)


waiting = []
while True:
    now = time.monotonic()
    while waiting and waiting[0][0] <= now:
        packet = heapq.heappop(waiting)[1]
        raw.sendto(packet, (socket.inet_ntoa(packet[16:20]), 0))
    select.select([tap], [], [], waiting[0][0] - now if waiting else None)
    try:
        packet, address = tap.recvfrom(65_535)
    except BlockingIOError:
        continue
    if is_taken(packet, address):
        heapq.heappush(waiting, (time.monotonic() + random.uniform(0.005, 0.020), packet))
