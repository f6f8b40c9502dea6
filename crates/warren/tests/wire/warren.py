"""Warren's protocol on top of QUIC (docs/wire-protocol.md): initial proof, control messages, invitations, datagrams."""

import base64
import hashlib
import hmac

HELLO, WELCOME, ATTACH, ATTACHED, GOODBYE, ENROL, ENROLLED = range(1, 8)
CLIENT_STOPPED, UNKNOWN_SESSION = 32, 18


def proof(exit_key, first_id):
    return hmac.digest(exit_key, b"warren/1 initial proof" + first_id, "sha256")[:16]


def token(exit_keys, first_id):
    return b"".join(proof(key, first_id) for key in exit_keys[:8])


# Protocol Buffers: a message is a list of field numbers and values. Values that are 0 or empty are left out.


def encode(fields):
    text = b""
    for number, value in fields:
        if isinstance(value, int) and value:
            text += _varint(number << 3) + _varint(value)
        elif isinstance(value, (bytes, str)) and value:
            value = value.encode() if isinstance(value, str) else value
            text += _varint(number << 3 | 2) + _varint(len(value)) + value
        elif isinstance(value, list):
            content = encode(value)
            text += _varint(number << 3 | 2) + _varint(len(content)) + content
    return text


def decode(text):
    """Each field's raw values by field number."""
    found = {}
    while text:
        key, text = _read_varint(text)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, text = _read_varint(text)
        else:
            length, text = _read_varint(text) if kind == 2 else ({1: 8, 5: 4}[kind], text)
            if len(text) < length:
                raise ValueError("cut short")
            value, text = text[:length], text[length:]
        found.setdefault(number, []).append(value)
    return found


def _varint(value):
    text = b""
    while value > 0x7F:
        text += bytes([value & 0x7F | 0x80])
        value >>= 7
    return text + bytes([value])


def _read_varint(text):
    value = 0
    for place in range(10):
        value |= (text[place] & 0x7F) << 7 * place
        if text[place] < 0x80:
            return value, text[place + 1 :]
    raise ValueError("a number that does not end")


def message(kind, fields):
    """A message of the control stream with its length prefix."""
    envelope = encode([(kind, fields)])
    return len(envelope).to_bytes(2, "big") + envelope


def network(address, length):
    return [(1, address), (2, length)]


def hello(nonce, connections, name="", prefixes=()):
    fields = [(1, 1), (3, connections), (4, name), (5, nonce), *((6, network(*prefix)) for prefix in prefixes)]
    return message(HELLO, fields)


def attach(session, attach_token, index):
    return message(ATTACH, [(1, session), (2, attach_token), (3, index)])


def goodbye(reason):
    return message(GOODBYE, [(1, reason)])


def enrol(text, name=""):
    return message(ENROL, [(1, text), (2, name)])


def read_invite(text):
    """Endpoint, key of the exit, name and token of an invitation."""
    prefix, body = text[:8], text[8:]
    assert prefix == "warren1:"
    content = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    content, checksum = content[:-4], content[-4:]
    assert hashlib.sha256(content).digest()[:4] == checksum, "the invitation is damaged"
    found = decode(content)
    return found[1][0].decode(), found[2][0], found[3][0].decode(), found[4][0]


def write_invite(endpoint, exit_key, name, invite_token):
    content = encode([(1, endpoint), (2, exit_key), (3, name), (4, invite_token)])
    text = base64.urlsafe_b64encode(content + hashlib.sha256(content).digest()[:4])
    return "warren1:" + text.decode().rstrip("=")


def token_text(invite_token):
    return base64.urlsafe_b64encode(invite_token).decode().rstrip("=")


# Datagrams.


def packet_datagram(packet, partial=False):
    return bytes([partial]) + packet


def fragments(packet, identifier, count, partial=False):
    """The packet in `count` fragments."""
    bounds = [len(packet) * index // count for index in range(count + 1)]
    head = bytes([0x10 | partial]) + identifier.to_bytes(4, "big") + len(packet).to_bytes(2, "big")
    return [head + start.to_bytes(2, "big") + packet[start:end] for start, end in zip(bounds, bounds[1:])]


def numbered(datagram, lane, number):
    """The packet or fragment with a place in a lane."""
    return bytes([datagram[0] | 0x20]) + datagram[1:] + trailer(lane, number)


def nothing_below(lane, number):
    return b"\x40" + trailer(lane, number)


def trailer(lane, number):
    return (lane << 26 | number).to_bytes(4, "big")


class Receiver:
    """Reassembles packets from a connection's datagrams."""

    def __init__(self):
        self.assemblies = {}

    def take(self, datagram):
        """Returns None until a packet is complete, and then the packet and whether its checksum is partial."""
        kind, flags = datagram[0] >> 4, datagram[0] & 0x0F
        if kind > 1 or flags > 1 or len(datagram) < (2, 10)[kind]:
            raise ValueError("bad_datagram")
        if kind == 0:
            return datagram[1:], bool(flags)
        identifier, total, offset = (int.from_bytes(datagram[a:b], "big") for a, b in ((1, 5), (5, 7), (7, 9)))
        payload = datagram[9:]
        _, pieces = self.assemblies.setdefault(identifier, ((total, flags), {}))
        overlaps = any(start < offset + len(payload) and offset < start + len(piece) for start, piece in pieces.items())
        if self.assemblies[identifier][0] != (total, flags) or overlaps or offset + len(payload) > total or len(payload) >= total:
            del self.assemblies[identifier]
            raise ValueError("bad_fragment")
        pieces[offset] = payload
        if sum(map(len, pieces.values())) < total:
            return None
        del self.assemblies[identifier]
        return b"".join(pieces[start] for start in sorted(pieces)), bool(flags)
