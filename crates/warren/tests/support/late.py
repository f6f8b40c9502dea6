"""Forwards the datagrams that an nft rule drops on a link, 5 to 20 ms late: late.py DEVICE dport|sport BELOW [MILLISECONDS]

With MILLISECONDS, all datagrams are forwarded that much later, and the selected ones another 5 ms. A packet socket sees packets
before the device's ingress rules do. Script and rule select the same datagrams: IPv4 UDP to or from port 443 with one byte of the
payload below BELOW. Encryption makes that byte random.
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

device, port, below = sys.argv[1:4]
milliseconds = [int(argument) for argument in sys.argv[4:]]
port_at = {"sport": 0, "dport": 2}[port]

# Protocol 0, so that the socket receives nothing before it is bound to the device.
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
tap.bind((device, EVERY_PROTOCOL))
tap.setblocking(False)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
print("listening", flush=True)


def delay(packet, address):
    """How much later a packet is forwarded, in seconds. None if the packet is not forwarded."""
    if address[2] == socket.PACKET_OUTGOING or packet[0] >> 4 != 4 or packet[9] != UDP:
        return None
    udp = packet[(packet[0] & 15) * 4 :]
    if udp[port_at : port_at + 2] != PORT:
        return None
    is_selected = len(udp) > BYTE_OF_UDP and udp[BYTE_OF_UDP] < int(below)
    if milliseconds:
        return (milliseconds[0] + 5 * is_selected) / 1000
    return random.uniform(0.005, 0.020) if is_selected else None


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
    late_by = delay(packet, address)
    if late_by is not None:
        heapq.heappush(waiting, (time.monotonic() + late_by, packet))
