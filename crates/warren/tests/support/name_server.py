"""A DNS server that returns the same addresses for every name, or no name: prints "ready" once it answers.

Usage: name_server.py PORT [IPV4]...    without addresses, no name exists
"""

import socket
import struct
import sys

ADDRESSES = [socket.inet_aton(address) for address in sys.argv[2:]]
A = 1

server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("::", int(sys.argv[1])))
print("ready")
while True:
    query, client = server.recvfrom(512)
    question = query[12 : query.index(b"\0", 12) + 5]
    answers = ADDRESSES if question[-4:-2] == struct.pack("!H", A) else []
    flags = 0x8580 if ADDRESSES else 0x8583
    reply = struct.pack("!2sHHHHH", query[:2], flags, 1, len(answers), 0, 0) + question
    for address in answers:
        reply += struct.pack("!HHHIH", 0xC00C, A, 1, 60, 4) + address
    server.sendto(reply, client)
