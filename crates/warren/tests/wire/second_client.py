"""A second client of the protocol, written from docs/wire-protocol.md alone.

    second_client.py vectors docs/wire-protocol.md
    second_client.py session INVITATION HOST PORT

`session` enrols a new key, opens a session, and sends UDP packets through it to the echo at HOST:PORT, in every way that
datagrams can carry a packet. It then loses a connection, reconnects, and says goodbye. Ends with 1 at the first deviation
from the document.
"""

import os
import select
import socket
import sys
import time

import warren
from primitives import public_key
from quic import Closed, Connection
from tls import ALPN, SPKI


def main():
    what, *arguments = sys.argv[1:]
    {"vectors": vectors, "session": session}[what](*arguments)


def session(invitation, host, port):
    endpoint, exit_key, name, invite_token = warren.read_invite(invitation)
    address = (endpoint.rsplit(":", 1)[0].strip("[]"), int(endpoint.rsplit(":", 1)[1]))
    seed, nonce = os.urandom(32), os.urandom(16)

    def connect(token_of=lambda first_id: warren.token([exit_key], first_id)):
        connection = Connection(address, seed, [exit_key], token_of)
        connection.connect()
        return connection

    # Without a valid proof the exit sends not one byte. The packets leave now, and are checked after everything else.
    strangers = [Connection(address, seed, [exit_key], token_of) for token_of in (lambda _: b"", lambda _: bytes(16))]
    for stranger in strangers:
        stranger.send_waiting()

    first = connect()
    first.write(warren.enrol(warren.token_text(invite_token), "second-client"))
    check(receive(first, warren.ENROLLED)[1] == [name.encode()], "enrolled by the operator's name")
    first.write(warren.hello(nonce, 2, "second-client", [(bytes([192, 168, 7, 0]), 24)]))
    welcome = receive(first, warren.WELCOME)
    own, length = inner_address(welcome)
    check(welcome[8] == [2] and welcome[5][0] >= 1280 and 13 not in welcome, "Welcome has what was asked for, and no prefix that the operator did not set")
    print(f"session {welcome[1][0]}: {socket.inet_ntoa(own)}/{length}, mtu {welcome[5][0]}")

    second = connect()
    second.write(attach(welcome, 1))
    check(receive(second, warren.ATTACHED).get(1) == [1], "the second connection has joined")

    destination = (socket.inet_aton(host), int(port))
    text = os.urandom(700)
    for number, (connection, partial, parts) in enumerate(
        [(first, False, 1), (second, False, 1), (first, True, 1), (second, False, 2), (first, True, 3)]
    ):
        source = (own, 30_000 + number)
        packet = udp(source, destination, text, partial)

        def datagrams(attempt):
            if parts == 1:
                return [warren.packet_datagram(packet, partial)]
            # In any order.
            return reversed(warren.fragments(packet, 100 * number + attempt, parts, partial))

        expect_echo([first, second], connection, datagrams, source, text)

    # Invalid datagrams are dropped, and the connection survives.
    for wrong in (b"\x20x", b"\x02x", b"\x00", b"\x00x", b"\x10\0\0\0\1\0\1\0\0x"):
        first.send_datagram(wrong)
    stolen = bytes([*own[:3], own[3] ^ 1])
    first.send_datagram(warren.packet_datagram(udp((stolen, 30_100), destination, text, False)))

    # Connection 0 is lost, and comes back from another port with the same index. The exit tells the old connection.
    again = connect()
    again.write(attach(welcome, 0))
    check(0 == receive(again, warren.ATTACHED).get(1, [0])[0], "connection 0 is back")
    check(ended(first) == 21, "the old connection 0 is superseded")
    packet = udp((own, 30_200), destination, text, False)
    expect_echo([again, second], again, lambda _: [warren.packet_datagram(packet)], (own, 30_200), text)

    # A token that the exit never issued, on an authenticated connection.
    guess = connect()
    guess.write(warren.attach(welcome[1][0], bytes(16), 0))
    check(ended(guess) == warren.UNKNOWN_SESSION, "a wrong token gets the answer for an unknown session")

    again.write(warren.goodbye(warren.CLIENT_STOPPED))
    check(ended(second) == warren.CLIENT_STOPPED, "the session has ended on all of its connections")
    check(all(stranger.is_silent() for stranger in strangers), "a client without a valid proof gets not one byte")
    print("measured: enrolled, opened and joined, 6 echoes, superseded, said goodbye; no answer without a valid proof")


def receive(connection, kind):
    """The next message, which must be of this kind."""
    length = int.from_bytes(connection.read(2), "big")
    found = warren.decode(connection.read(length))
    check(list(found) == [kind], f"message {kind} is due, and {found} came")
    return warren.decode(found[kind][0])


def ended(connection):
    """The reason with which the exit ends a connection, from the message, from the close, or from both."""
    said = None
    try:
        said = receive(connection, warren.GOODBYE)[1][0]
        connection.run_until(lambda: False)
    except Closed as closed:
        check(closed.is_application, str(closed))
        check(said in (None, closed.code), "message and close agree")
        return closed.code


def attach(welcome, index):
    return warren.attach(welcome[1][0], welcome[2][0], index)


def inner_address(welcome):
    found = warren.decode(welcome[3][0])
    address, length = found[1][0], found[2][0]
    gateway = welcome[11][0]
    mask = -1 << (32 - length)
    number = [int.from_bytes(one, "big") & mask for one in (address, gateway)]
    check(len(address) == 4 and number[0] == number[1] and address != gateway, "the gateway is in the client's network")
    return address, length


def expect_echo(connections, connection, datagrams, source, text):
    """Sends a packet until its echo arrives on any connection."""
    receivers = [warren.Receiver() for _ in connections]
    for attempt in range(30):
        for datagram in datagrams(attempt):
            connection.send_datagram(datagram)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            select.select([one.socket for one in connections], [], [], 0.1)
            for one, receiver in zip(connections, receivers):
                one.receive_waiting()
                while one.datagrams:
                    whole = receiver.take(one.datagrams.pop(0))
                    if whole and is_echo(*whole, source, text):
                        return
    raise SystemExit("no echo came")


def is_echo(packet, partial, source, text):
    if packet[0] >> 4 != 4 or packet[9] != 17 or packet[16:20] != source[0] or int.from_bytes(packet[22:24], "big") != source[1]:
        return False
    check(int.from_bytes(packet[2:4], "big") == len(packet), "the packet is whole")
    check(packet[28:] == text, "the echo is what was sent")
    field = int.from_bytes(packet[26:28], "big")
    check(partial or field == 0 or checksum(pseudo_header(packet) + packet[20:]) in (0, 0xFFFF), "its checksum is right, or said to be partial")
    return True


def udp(source, destination, text, partial):
    """An IPv4 packet with UDP. With `partial`, the checksum field holds a meaningless value."""
    head = source[1].to_bytes(2, "big") + destination[1].to_bytes(2, "big") + (8 + len(text)).to_bytes(2, "big")
    ip = b"\x45\0" + (28 + len(text)).to_bytes(2, "big") + b"\0\0\0\0\x40\x11\0\0" + source[0] + destination[0]
    ip = ip[:10] + checksum(ip).to_bytes(2, "big") + ip[12:]
    field = 0x1234 if partial else checksum(pseudo_header(ip, 8 + len(text)) + head + b"\0\0" + text) or 0xFFFF
    return ip + head + field.to_bytes(2, "big") + text


def pseudo_header(packet, length=None):
    length = len(packet) - 20 if length is None else length
    return packet[12:20] + b"\0\x11" + length.to_bytes(2, "big")


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def vectors(path):
    with open(path, encoding="utf-8") as file:
        found = [line.rstrip("\n") for line in file.read().split("```text\n")[-1].split("```")[0].splitlines()]
    check(found == wanted(), "the document's vectors are those of this client:\n" + "\n".join(wanted()))
    exit_key, nonce = bytes([0x11] * 32), bytes([0xAA] * 16)
    check(warren.read_invite(found[-7].split("-> ")[1]) == ("exit.example.net:443", exit_key, "laptop", nonce), "the invitation is read")
    packet = bytes.fromhex(found[-6].split("packet ")[1].split(" ->")[0])
    receiver = warren.Receiver()
    parts = [bytes.fromhex(line.split("-> ")[1]) for line in found[-5:-3]]
    check(receiver.take(parts[1]) is None and receiver.take(parts[0]) == (packet, True), "fragments are joined")
    print(f"measured: {len(found)} vectors agree")


def wanted():
    key, first_id = bytes([0x11] * 32), bytes(range(20))
    sixteen = bytes([0xAA] * 16)
    welcome = [
        (1, 300),
        (2, bytes([0xBB] * 16)),
        (3, warren.network(bytes([10, 66, 0, 2]), 16)),
        (5, 1380),
        (6, bytes([9, 9, 9, 9])),
        (8, 2),
        (9, 5000),
        (11, bytes([10, 66, 0, 1])),
    ]
    packet = bytes.fromhex("4500001c00000000401100000a420002cb007102753000070008ffff")
    lines = [
        ("proof", f"key {key.hex()} id {first_id.hex()}", warren.proof(key, first_id).hex()),
        ("alpn", "any exit", ALPN.decode()),
        ("certificate", f"key {key.hex()}", (SPKI + key).hex()),
        ("public key", f"seed {sixteen.hex() * 2}", public_key(sixteen * 2).hex()),
        ("hello", "wanted 2 name laptop nonce aa.. prefix 192.168.7.0/24", warren.hello(sixteen, 2, "laptop", [(bytes([192, 168, 7, 0]), 24)]).hex()),
        ("welcome", "session 300 token bb.. 10.66.0.2/16 mtu 1380 dns 9.9.9.9 connections 2 keep-alive 5 s gateway 10.66.0.1", warren.message(warren.WELCOME, welcome).hex()),
        ("attach", "session 300 token bb.. index 1", warren.attach(300, bytes([0xBB] * 16), 1).hex()),
        ("attached", "index 1", warren.message(warren.ATTACHED, [(1, 1)]).hex()),
        ("attached", "index 0", warren.message(warren.ATTACHED, []).hex()),
        ("update", "number 1 dns 9.9.9.9 route 10.0.0.0/8 exit key 11..", warren.message(8, [(1, 1), (2, bytes([9, 9, 9, 9])), (3, warren.network(bytes([10, 0, 0, 0]), 8)), (4, bytes([0x11] * 32))]).hex()),
        ("goodbye", "UNKNOWN_SESSION", warren.goodbye(18).hex()),
        ("goodbye", "VERSION exit 1 client 2", warren.message(warren.GOODBYE, [(1, 4), (2, 1), (3, 2)]).hex()),
        ("enrol", "token aa.. name laptop", warren.enrol(warren.token_text(sixteen), "laptop").hex()),
        ("invitation", "exit.example.net:443 key 1111.. name laptop token aa..", warren.write_invite("exit.example.net:443", key, "laptop", sixteen)),
        ("datagram", f"packet {packet.hex()}", warren.packet_datagram(packet).hex()),
    ]
    lines += [("fragment", f"{part} of 2, id 7, partial checksum", text.hex()) for part, text in enumerate(warren.fragments(packet, 7, 2, True), 1)]
    lines += [
        ("numbered", "the packet, lane 5, number 258", warren.numbered(warren.packet_datagram(packet), 5, 258).hex()),
        ("numbered", "the fragment 2 of 2, lane 63, number 67108863", warren.numbered(warren.fragments(packet, 7, 2, True)[1], 63, 67108863).hex()),
        ("nothing", "below lane 5, number 260", warren.nothing_below(5, 260).hex()),
    ]
    return [f"{kind:<12} {given} -> {text}" for kind, given, text in lines]


def check(holds, sentence):
    if not holds:
        raise SystemExit(f"does not hold: {sentence}")


if __name__ == "__main__":
    main()
