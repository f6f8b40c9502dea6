"""The part of QUIC version 1 that a client of docs/wire-protocol.md needs: one connection over its own socket.

There is no congestion control and no migration, because little is sent, over a link between two namespaces. Keys change
when the exit changes them, first after ten to a thousand packets.
"""

import os
import select
import socket
import time

from primitives import Aes, Gcm, expand_label, extract
from tls import Handshake

SALT = bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a")
INITIAL, HANDSHAKE, APPLICATION = 0, 2, 1
PATIENCE = 30
AGAIN = 0.5


def varint(value):
    for size, bits in ((1, 0), (2, 1), (4, 2), (8, 3)):
        if value < 1 << (8 * size - 2):
            return (value | bits << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(value)


def read_varint(data):
    size = 1 << (data[0] >> 6)
    return int.from_bytes(data[:size], "big") & ((1 << (8 * size - 2)) - 1), data[size:]


class Closed(Exception):
    """The exit has closed the connection, with this code."""

    def __init__(self, code, is_application):
        super().__init__(f"closed with {'application' if is_application else 'transport'} code {code}")
        self.code, self.is_application = code, is_application


class Keys:
    def __init__(self, secret, header=None):
        self.secret = secret
        self.gcm = Gcm(expand_label(secret, b"quic key", b"", 16))
        self.iv = expand_label(secret, b"quic iv", b"", 12)
        self.header = header or Aes(expand_label(secret, b"quic hp", b"", 16))

    def next(self):
        """The keys after a key update, which keeps the header protection key (RFC 9001 section 6.1)."""
        return Keys(expand_label(self.secret, b"quic ku", b"", 32), self.header)

    def nonce(self, number):
        return bytes(a ^ b for a, b in zip(self.iv, number.to_bytes(12, "big")))


class Space:
    """One packet number space: keys, received packet numbers, and unacknowledged packets."""

    def __init__(self):
        self.own = self.peer = None
        self.phase = 0
        self.next_number = 0
        self.received = set()
        self.owes_ack = False
        self.unacknowledged = {}
        self.crypto_sent = 0
        self.crypto = {}
        self.crypto_read = 0


class Connection:
    def __init__(self, address, seed, exit_keys, token_of):
        """`token_of` makes the token of the first connection ID."""
        family = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0][0]
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.connect(address)
        self.destination, self.source = os.urandom(20), os.urandom(8)
        self.first_destination, self.token = self.destination, token_of(self.destination)
        self.spaces = {INITIAL: Space(), HANDSHAKE: Space(), APPLICATION: Space()}
        initial = extract(SALT, self.destination)
        for side, label in (("own", b"client in"), ("peer", b"server in")):
            setattr(self.spaces[INITIAL], side, Keys(expand_label(initial, label, b"", 32)))
        self.tls = Handshake(seed, exit_keys, self._parameters())
        self.handshake_bytes = b""
        self.undecided = []
        self.outgoing = {INITIAL: [], HANDSHAKE: [], APPLICATION: []}
        self.is_confirmed = False
        self.stream, self.stream_read, self.stream_sent = {}, 0, 0
        self.datagrams = []
        self._crypto(INITIAL, self.tls.start())

    def connect(self):
        self.run_until(lambda: self.is_confirmed)

    def write(self, data):
        """Sends on stream 0, the first that a client may open."""
        frame = b"\x0e\x00" + varint(self.stream_sent) + varint(len(data)) + data
        self.stream_sent += len(data)
        self.outgoing[APPLICATION].append(frame)
        self.send_waiting()

    def read(self, length):
        """Reads `length` bytes of stream 0."""
        self.run_until(lambda: len(self._readable()) >= length)
        data = self._readable()[:length]
        self.stream_read += length
        return data

    def send_datagram(self, data):
        self._send(APPLICATION, b"\x31" + varint(len(data)) + data, reliable=[])

    def receive_datagram(self):
        self.run_until(lambda: self.datagrams)
        return self.datagrams.pop(0)

    def close(self, code):
        self._send(APPLICATION, b"\x1d" + varint(code) + varint(0), reliable=[])
        self.socket.close()

    def receive_waiting(self):
        """Processes the datagrams that have arrived, and answers them."""
        while not self.is_silent():
            self._received(self.socket.recv(65536))
        self.send_waiting()

    def is_silent(self):
        """Whether no datagram from the exit is waiting."""
        return not select.select([self.socket], [], [], 0)[0]

    def run_until(self, done):
        end = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > end:
                raise SystemExit("the exit does not answer")
            self.send_waiting()
            if select.select([self.socket], [], [], AGAIN)[0]:
                self._received(self.socket.recv(65536))
            else:
                self._send_again()

    def _parameters(self):
        numbers = {0x01: 24_000, 0x04: 1 << 20, 0x05: 1 << 16, 0x20: 65_535}
        text = b"".join(varint(kind) + varint(len(varint(value))) + varint(value) for kind, value in numbers.items())
        return text + varint(0x0F) + varint(len(self.source)) + self.source

    # Sending.

    def _crypto(self, level, data):
        space = self.spaces[level]
        self.outgoing[level].append(b"\x06" + varint(space.crypto_sent) + varint(len(data)) + data)
        space.crypto_sent += len(data)

    def send_waiting(self):
        """Sends pending frames and acknowledgements."""
        for level, space in self.spaces.items():
            if space.own and (self.outgoing[level] or space.owes_ack):
                frames, self.outgoing[level] = self.outgoing[level], []
                ack = self._ack(space) if space.received else b""
                space.owes_ack = False
                self._send(level, ack + b"".join(frames), frames)

    def _send_again(self):
        for level, space in self.spaces.items():
            frames = [frame for sent in space.unacknowledged.values() for frame in sent]
            space.unacknowledged.clear()
            self.outgoing[level] += frames
        if not any(self.outgoing.values()):
            level = APPLICATION if self.spaces[APPLICATION].own else HANDSHAKE if self.spaces[HANDSHAKE].own else INITIAL
            self.outgoing[level].append(b"\x01")

    def _send(self, level, payload, reliable):
        space = self.spaces[level]
        number, space.next_number = space.next_number, space.next_number + 1
        if reliable:
            space.unacknowledged[number] = reliable
        payload += bytes(max(4 - len(payload), 0))
        if level == APPLICATION:
            head = bytes([0x41 | space.phase << 2]) + self.destination
        else:
            head = bytes([0xC1 | level << 4]) + b"\0\0\0\1"
            head += bytes([len(self.destination)]) + self.destination + bytes([len(self.source)]) + self.source
        if level == INITIAL:
            head += varint(len(self.token)) + self.token
            # 1,200 bytes with the length, the packet number and the tag.
            payload += bytes(max(1200 - len(head) - 2 - 2 - Gcm.TAG - len(payload), 0))
        if level != APPLICATION:
            head += (0x4000 | 2 + len(payload) + Gcm.TAG).to_bytes(2, "big")
        plain = head + (number & 0xFFFF).to_bytes(2, "big")
        sealed = space.own.gcm.seal(space.own.nonce(number), plain, payload)
        mask = space.own.header.block(sealed[2:18])
        first = plain[0] ^ (mask[0] & (0x1F if level == APPLICATION else 0x0F))
        shown = bytes(a ^ b for a, b in zip(plain[-2:], mask[1:3]))
        self.socket.send(bytes([first]) + plain[1:-2] + shown + sealed)

    @staticmethod
    def _ack(space):
        ranges = []
        for number in sorted(space.received, reverse=True):
            if ranges and ranges[-1][0] == number + 1:
                ranges[-1][0] = number
            else:
                ranges.append([number, number])
        ranges = ranges[:16]
        frame = b"\x02" + varint(ranges[0][1]) + varint(0) + varint(len(ranges) - 1) + varint(ranges[0][1] - ranges[0][0])
        for before, after in zip(ranges, ranges[1:]):
            frame += varint(before[0] - after[1] - 2) + varint(after[1] - after[0])
        return frame

    # Receiving.

    def _received(self, datagram):
        while datagram:
            if datagram[0] & 0x80 == 0:
                return self._packet(APPLICATION, datagram, 1 + len(self.source))
            if datagram[1:5] != b"\0\0\0\1":
                return None
            level, rest = datagram[0] >> 4 & 3, datagram[5:]
            rest = rest[1 + rest[0] :]
            source, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
            if level == INITIAL:
                length, rest = read_varint(rest)
                rest = rest[length:]
            length, rest = read_varint(rest)
            start = len(datagram) - len(rest)
            if level in (INITIAL, HANDSHAKE):
                self._packet(level, datagram[: start + length], start, source)
            datagram = datagram[start + length :]
        return None

    def _packet(self, level, packet, start, source=None):
        space = self.spaces[level]
        if space.peer is None:
            # The packet arrived before the handshake messages that bring its keys.
            self.undecided.append((level, packet, start, source))
            return
        mask = space.peer.header.block(packet[start + 4 : start + 20])
        first = packet[0] ^ (mask[0] & (0x1F if level == APPLICATION else 0x0F))
        size = (first & 3) + 1
        shown = bytes(a ^ b for a, b in zip(packet[start : start + size], mask[1:]))
        number = self._whole_number(space, int.from_bytes(shown, "big"), 8 * size)
        head = bytes([first]) + packet[1:start] + shown
        is_updated = level == APPLICATION and first >> 2 & 1 != space.phase
        peer = space.peer.next() if is_updated else space.peer
        payload = peer.gcm.open(peer.nonce(number), head, packet[start + size :])
        if payload is None or number in space.received:
            return
        if is_updated:
            space.peer, space.own, space.phase = peer, space.own.next(), 1 - space.phase
        space.received.add(number)
        if source is not None:
            self.destination = source
        self._frames(level, space, payload)

    @staticmethod
    def _whole_number(space, shown, bits):
        expected = max(space.received, default=-1) + 1
        candidate = expected & -(1 << bits) | shown
        if candidate <= expected - (1 << bits - 1):
            return candidate + (1 << bits)
        if candidate > expected + (1 << bits - 1) and candidate >= 1 << bits:
            return candidate - (1 << bits)
        return candidate

    def _frames(self, level, space, data):
        while data:
            kind, data = read_varint(data)
            if kind not in (0x00, 0x02, 0x03, 0x1C, 0x1D):
                space.owes_ack = True
            if kind in (0x00, 0x01):
                continue
            if kind in (0x02, 0x03):
                data = self._acknowledged(space, kind, data)
            elif kind == 0x06:
                offset, data = read_varint(data)
                length, data = read_varint(data)
                space.crypto[offset], data = data[:length], data[length:]
                self._handshake(level, space)
            elif 0x08 <= kind <= 0x0F:
                data = self._stream(kind, data)
            elif kind in (0x30, 0x31):
                length, data = read_varint(data) if kind == 0x31 else (len(data), data)
                self.datagrams.append(data[:length])
                data = data[length:]
            elif kind == 0x18:
                _, data = read_varint(data)
                _, data = read_varint(data)
                data = data[1 + data[0] + 16 :]
            elif kind == 0x07:
                length, data = read_varint(data)
                data = data[length:]
            elif kind in (0x1A, 0x1B):
                data = data[8:]
            elif kind == 0x1E:
                self.is_confirmed = True
            elif kind in (0x1C, 0x1D):
                raise Closed(read_varint(data)[0], kind == 0x1D)
            else:
                for _ in range({0x04: 3, 0x05: 2, 0x11: 2, 0x15: 2}.get(kind, 1)):
                    _, data = read_varint(data)

    def _acknowledged(self, space, kind, data):
        largest, data = read_varint(data)
        _, data = read_varint(data)
        count, data = read_varint(data)
        length, data = read_varint(data)
        low = largest - length
        acknowledged = [(low, largest)]
        for _ in range(count):
            gap, data = read_varint(data)
            length, data = read_varint(data)
            high = low - gap - 2
            low = high - length
            acknowledged.append((low, high))
        for _ in range(3 if kind == 0x03 else 0):
            _, data = read_varint(data)
        for number in list(space.unacknowledged):
            if any(low <= number <= high for low, high in acknowledged):
                del space.unacknowledged[number]
        return data

    def _handshake(self, level, space):
        while True:
            rest = joined(space.crypto, space.crypto_read)
            if len(rest) < 4 or len(rest) < 4 + int.from_bytes(rest[1:4], "big"):
                return
            message = rest[: 4 + int.from_bytes(rest[1:4], "big")]
            space.crypto_read += len(message)
            if level == APPLICATION:
                raise ValueError("the exit sends session tickets, which it must not")
            flight = self.tls.take(message)
            for name, target in (("handshake", HANDSHAKE), ("application", APPLICATION)):
                if (name, "exit") in self.tls.secrets and self.spaces[target].peer is None:
                    self.spaces[target].own = Keys(self.tls.secrets[name, "client"])
                    self.spaces[target].peer = Keys(self.tls.secrets[name, "exit"])
                    waiting, self.undecided = self.undecided, []
                    for packet in waiting:
                        self._packet(*packet)
            if flight:
                self._check_parameters()
                self._crypto(HANDSHAKE, flight)
                # From here on no Initial is sent or expected (RFC 9001 section 4.9.1).
                self.spaces[INITIAL].own, self.spaces[INITIAL].unacknowledged = None, {}

    def _check_parameters(self):
        found, rest = {}, self.tls.exit_parameters
        while rest:
            kind, rest = read_varint(rest)
            length, rest = read_varint(rest)
            found[kind], rest = rest[:length], rest[length:]
        assert found[0x00] == self.first_destination, "the exit repeats the first connection ID"
        assert found[0x0F] == self.destination, "and its own"
        assert read_varint(found[0x20])[0] >= 1200, "the exit takes datagrams"

    def _stream(self, kind, data):
        identifier, data = read_varint(data)
        offset, data = read_varint(data) if kind & 4 else (0, data)
        length, data = read_varint(data) if kind & 2 else (len(data), data)
        assert identifier == 0, "the exit opens no stream"
        self.stream[offset] = data[:length]
        return data[length:]

    def _readable(self):
        return joined(self.stream, self.stream_read)


def joined(pieces, start):
    """The bytes from `start` up to the first gap."""
    data = b""
    for offset in sorted(pieces):
        piece = pieces[offset]
        end = start + len(data)
        if offset <= end < offset + len(piece):
            data += piece[end - offset :]
    return data
