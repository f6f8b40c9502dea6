"""A client that proves its key and then breaks a rule of QUIC or of the control stream, each rule in its own connection.

    liar.py INVITATION

Each lie starts once the exit has answered on that connection. The exit must close it with the expected code, or keep
answering where that is expected. Prints the result of each lie, and ends with 1 at the first unexpected one.
"""

import os
import select
import sys

import warren
from quic import APPLICATION, Closed, Connection, varint

PROTOCOL, INTERNAL, FLOW, STREAM_LIMIT, STREAM_STATE, FRAME, ID_LIMIT, CRYPTO = 0x0A, 0x01, 0x03, 0x04, 0x05, 0x07, 0x09, 0x0D
MALFORMED, OUT_OF_ORDER, BAD_NAME, BAD_NONCE, BAD_PREFIX, BAD_INDEX = 0x101, 0x103, 0x104, 0x105, 0x106, 0x107
LIVES = None


def main():
    endpoint, exit_key, _, invite_token = warren.read_invite(sys.argv[1])
    address = (endpoint.rsplit(":", 1)[0].strip("[]"), int(endpoint.rsplit(":", 1)[1]))
    seed = os.urandom(32)

    def connect():
        connection = Liar(address, seed, [exit_key], lambda first_id: warren.token([exit_key], first_id))
        connection.connect()
        return connection

    first = connect()
    first.write(warren.enrol(warren.token_text(invite_token), "liar"))
    first.read(2)
    first.close(0)
    for name, (lie, expected) in (IN_A_SESSION | BEFORE_ONE).items():
        connection = connect()
        if name in IN_A_SESSION:
            connection.write(warren.hello(os.urandom(16), 4, "liar"))
            connection.read(int.from_bytes(connection.read(2), "big"))
        prove_alive(connection)
        found = outcome(connection, lie)
        if found != expected and found not in MAY_ALSO.get(name, ()):
            raise SystemExit(f"{name}: {found} where {expected} is due")
        if found is LIVES:
            connection.close(0)
        print(f"{name}: {'goes on' if found is LIVES else hex(found)}")
    print(f"measured: {len(IN_A_SESSION | BEFORE_ONE)} lies")


class Liar(Connection):
    def say(self, frames):
        """Sends any frames in one packet."""
        self._send(APPLICATION, frames, reliable=[])

    def hear(self):
        """Waits briefly for packets from the exit, and acknowledges them."""
        select.select([self.socket], [], [], 0.05)
        self.receive_waiting()

    def listen_only(self):
        while not self.is_silent():
            self._received(self.socket.recv(65536))
        self.spaces[APPLICATION].owes_ack = False


def outcome(connection, lie):
    """The code with which the exit closes the connection, or LIVES."""
    try:
        lie(connection)
        if lie in ENDLESS:
            prove_alive(connection)
            return LIVES
        connection.run_until(lambda: False)
    except Closed as closed:
        return closed.code


def prove_alive(connection):
    """Sends a reliable frame, and waits until the exit acknowledges it."""
    connection.outgoing[APPLICATION].append(b"\x01")
    connection.run_until(lambda: not connection.spaces[APPLICATION].unacknowledged and not connection.outgoing[APPLICATION])


def say(frames):
    return lambda connection: connection.say(frames)


def stream(identifier, offset, data):
    return b"\x0e" + varint(identifier) + varint(offset) + varint(len(data)) + data


def acknowledge_the_future(connection):
    connection.say(b"\x02" + varint(1 << 20) + varint(0) + varint(0) + varint(0))


def acknowledge_everything(connection):
    """Acknowledges packets that were never received. The exit skips packet numbers to detect this."""
    for _ in range(2_000):
        largest = max(connection.spaces[APPLICATION].received)
        connection.say(b"\x02" + varint(largest) + varint(0) + varint(0) + varint(largest) + b"\x01")
        select.select([connection.socket], [], [], 0.05)
        connection.listen_only()


def scatter_stream(connection):
    """Sends bytes with more gaps between them than the exit keeps track of."""
    for start in range(0, 4_000, 200):
        connection.say(b"".join(stream(0, 2 * (start + number) + 1_001, b"x") for number in range(200)))
        connection.hear()


def scatter_crypto(connection):
    for start in range(0, 4_000, 200):
        connection.say(b"".join(b"\x06" + varint(2 * (start + number) + 1) + b"\x01x" for number in range(200)))
        connection.hear()


def retire(connection):
    """Sends connection IDs that retire each other, and does not acknowledge the answers."""
    for start in range(1, 1_500, 30):
        numbers = range(start, start + 30)
        connection.say(b"".join(b"\x18" + 2 * varint(number) + b"\x08" + os.urandom(24) for number in numbers))
        connection.listen_only()


def retire_many(connection):
    connection.say(b"\x18" + 2 * varint(1_000) + b"\x08" + os.urandom(24))


def number_with_gaps(connection):
    """Skips every second packet number, so that the exit has ten thousand ranges to acknowledge."""
    for number in range(10_000):
        connection.spaces[APPLICATION].next_number += 1
        connection.say(b"\x01")
        if number % 100 == 0:
            connection.listen_only()


def challenge(connection):
    """Sends more challenges than the exit keeps for answering. Each answer has 1,200 bytes and is slow to decrypt here."""
    for _ in range(3):
        connection.say(b"".join(b"\x1a" + os.urandom(8) for _ in range(100)))
        connection.hear()


def messages_without_end(connection):
    """Sends messages of unknown types in pieces, as a newer client may."""
    message = warren.message(100, [(1, os.urandom(3_000))])
    for _ in range(10):
        for start in range(0, len(message), 1_000):
            connection.write(message[start : start + 1_000])
        connection.hear()


def write(*messages):
    def lie(connection):
        for message in messages:
            connection.write(message)

    return lie


NONCE = bytes(16)
HELLO = warren.hello(NONCE, 1, "liar")
ENDLESS = {retire, retire_many, challenge, messages_without_end, number_with_gaps}
IN_A_SESSION = {
    "an acknowledgement of packets that were never sent": (acknowledge_the_future, PROTOCOL),
    "acknowledgements of packets that were never received": (acknowledge_everything, PROTOCOL),
    "a second stream": (say(stream(4, 0, b"x")), STREAM_LIMIT),
    "a stream in one direction": (say(stream(2, 0, b"x")), STREAM_LIMIT),
    "data on the exit's stream": (say(stream(1, 0, b"x")), STREAM_STATE),
    "data beyond the window": (say(stream(0, 1 << 20, b"x")), FLOW),
    "a stream full of gaps": (scatter_stream, INTERNAL),
    "a handshake full of gaps": (scatter_crypto, INTERNAL),
    "a handshake beyond its buffer": (say(b"\x06" + varint(1 << 20) + b"\x01x"), CRYPTO),
    "a frame of an unknown type": (say(b"\x3f"), FRAME),
    "a frame cut short": (say(b"\x06\x00\x20x"), FRAME),
    "a token for the exit": (say(b"\x07\x01x"), PROTOCOL),
    "a HANDSHAKE_DONE from the client": (say(b"\x1e"), PROTOCOL),
    "the retirement of an ID that nobody has": (say(b"\x19\x3f"), PROTOCOL),
    "an ID that retires a thousand others": (retire_many, LIVES),
    "IDs that retire each other, unacknowledged": (retire, LIVES),
    "many challenges at once": (challenge, LIVES),
    "ten thousand ranges to acknowledge": (number_with_gaps, LIVES),
    "messages without end": (messages_without_end, LIVES),
    "a second Hello": (write(HELLO), OUT_OF_ORDER),
    "an Attach of an attached connection": (write(warren.attach(1, NONCE, 0)), OUT_OF_ORDER),
    "a Goodbye without a reason": (write(warren.goodbye(999)), warren.CLIENT_STOPPED),
    "bytes that are no message, in a session": (write(b"\x00\x04\xff\xff\xff\xff"), MALFORMED),
}
# If many arrive together, they may exceed what the exit keeps for answering.
MAY_ALSO = {"IDs that retire each other, unacknowledged": [ID_LIMIT]}
# Lies before a session. An exit waits five seconds for the first message.
BEFORE_ONE = {
    "a Welcome first": (write(warren.message(warren.WELCOME, [(1, 1)])), OUT_OF_ORDER),
    "bytes that are no message": (write(b"\x00\x04\xff\xff\xff\xff"), MALFORMED),
    "a Hello with half a nonce": (write(warren.hello(NONCE[:8], 1, "liar")), BAD_NONCE),
    "a Hello with control characters in the name": (write(warren.hello(NONCE, 1, "a\x1b[2J")), BAD_NAME),
    "a Hello with an invalid prefix": (write(warren.hello(NONCE, 1, "liar", [(b"\x0a\0\0\1", 33)])), BAD_PREFIX),
    "a session that does not exist": (write(warren.attach(1, NONCE, 0)), warren.UNKNOWN_SESSION),
    "a Goodbye first": (write(warren.goodbye(999)), warren.CLIENT_STOPPED),
}
if __name__ == "__main__":
    main()
