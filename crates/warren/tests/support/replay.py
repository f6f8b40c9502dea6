"""Records the frames to UDP port 443 that leave by a link, and sends them again.

Usage: replay.py keep DEVICE COUNT FILE     records until there are COUNT frames
       replay.py send DEVICE TIMES FILE     sends all of them, TIMES times
"""

import pickle
import socket
import sys
import time

OUTGOING = 4  # PACKET_OUTGOING, linux/if_packet.h
EVERYTHING = 0x0003  # ETH_P_ALL, linux/if_ether.h


def main():
    what, device, count, path = sys.argv[1:]
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    link.bind((device, 0))
    if what == "keep":
        frames = []
        print("listens", flush=True)
        while len(frames) < int(count):
            frame, address = link.recvfrom(65_535)
            is_udp = frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP
            if address[2] == OUTGOING and is_udp and frame[36:38] == (443).to_bytes(2, "big"):
                # Clears the checksum, which no device would complete. IPv4 allows UDP without a checksum.
                frames.append(frame[:40] + b"\0\0" + frame[42:])
        with open(path, "wb") as file:
            pickle.dump(frames, file)
    else:
        with open(path, "rb") as file:
            frames = pickle.load(file)
        for number, frame in enumerate(frames * int(count)):
            link.send(frame)
            if number % 20 == 0:
                time.sleep(0.001)


main()
