"""A TLS 1.3 client handshake with raw public keys, as docs/wire-protocol.md requires: messages in, messages and secrets out."""

import hashlib
import hmac
import os

from primitives import expand_label, extract, public_key, sign, verifies, x25519

CLIENT_HELLO, SERVER_HELLO, ENCRYPTED_EXTENSIONS, CERTIFICATE, CERTIFICATE_REQUEST, CERTIFICATE_VERIFY, FINISHED = 1, 2, 8, 11, 13, 15, 20
SPKI = bytes.fromhex("302a300506032b6570032100")
ED25519 = 0x0807
X25519 = 0x001D
AES_128_GCM = 0x1301
RAW_PUBLIC_KEY = 2
ALPN = b"h3"


def vector(size, content):
    return len(content).to_bytes(size, "big") + content


def read_vector(size, data):
    end = size + int.from_bytes(data[:size], "big")
    if len(data) < end:
        raise ValueError("cut short")
    return data[size:end], data[end:]


def extensions_of(data):
    found, rest = {}, read_vector(2, data)[0]
    while rest:
        kind, (content, rest) = int.from_bytes(rest[:2], "big"), read_vector(2, rest[2:])
        found[kind] = content
    return found


class Handshake:
    """`start` returns the ClientHello. `take` expects the exit's handshake messages in order."""

    def __init__(self, seed, exit_keys, transport_parameters):
        self.seed, self.exit_keys, self.parameters = seed, exit_keys, transport_parameters
        self.private = os.urandom(32)
        self.transcript = b""
        self.secrets = {}
        self.exit_parameters = None
        self.exit_key = None
        self.request_context = None

    def start(self):
        extensions = [
            (43, vector(1, b"\x03\x04")),
            (10, vector(2, X25519.to_bytes(2, "big"))),
            (13, vector(2, ED25519.to_bytes(2, "big"))),
            (51, vector(2, X25519.to_bytes(2, "big") + vector(2, x25519(self.private)))),
            (16, vector(2, vector(1, ALPN))),
            (19, vector(1, bytes([RAW_PUBLIC_KEY]))),
            (20, vector(1, bytes([RAW_PUBLIC_KEY]))),
            (0x39, self.parameters),
        ]
        body = b"\x03\x03" + os.urandom(32) + vector(1, b"") + vector(2, AES_128_GCM.to_bytes(2, "big")) + vector(1, b"\0")
        body += vector(2, b"".join(kind.to_bytes(2, "big") + vector(2, content) for kind, content in extensions))
        return self._say(CLIENT_HELLO, body)

    def take(self, message):
        """Processes one message of the exit. Returns the client's last flight after a valid Finished."""
        kind, body = message[0], message[4:]
        if kind == SERVER_HELLO:
            self.transcript += message
            self._server_hello(body)
        elif kind == ENCRYPTED_EXTENSIONS:
            self.transcript += message
            found = extensions_of(body)
            assert found[16] == vector(2, vector(1, ALPN)), "the exit chooses the one protocol"
            assert found[19] == found[20] == bytes([RAW_PUBLIC_KEY]), "both sides have raw public keys"
            self.exit_parameters = found[0x39]
        elif kind == CERTIFICATE_REQUEST:
            self.transcript += message
            self.request_context, rest = read_vector(1, body)
            assert ED25519.to_bytes(2, "big") in extensions_of(rest)[13]
        elif kind == CERTIFICATE:
            self.transcript += message
            _, rest = read_vector(1, body)
            spki, _ = read_vector(3, read_vector(3, rest)[0])
            assert spki.startswith(SPKI) and len(spki) == len(SPKI) + 32, "the exit shows a raw Ed25519 key"
            self.exit_key = spki[len(SPKI) :]
            assert self.exit_key in self.exit_keys, "the exit has a key that is pinned"
        elif kind == CERTIFICATE_VERIFY:
            assert int.from_bytes(body[:2], "big") == ED25519
            signature, _ = read_vector(2, body[2:])
            assert verifies(self.exit_key, self._signed(b"server"), signature), "the exit holds its key"
            self.transcript += message
        elif kind == FINISHED:
            assert hmac.compare_digest(body, self._finished(self.secrets["handshake", "exit"]))
            self.transcript += message
            return self._answer()
        else:
            raise ValueError(f"message {kind} is not part of a handshake")
        return b""

    def _server_hello(self, body):
        _, rest = read_vector(1, body[34:])
        assert int.from_bytes(rest[:2], "big") == AES_128_GCM
        found = extensions_of(rest[3:])
        assert found[43] == b"\x03\x04" and found[51][:2] == X25519.to_bytes(2, "big")
        shared = x25519(self.private, read_vector(2, found[51][2:])[0])
        empty = hashlib.sha256(b"").digest()
        early = extract(bytes(32), bytes(32))
        secret = extract(expand_label(early, b"derived", empty, 32), shared)
        self._derive("handshake", secret, b"hs")
        self.master = extract(expand_label(secret, b"derived", empty, 32), bytes(32))

    def _answer(self):
        self._derive("application", self.master, b"ap")
        own = SPKI + public_key(self.seed)
        flight = self._say(CERTIFICATE, vector(1, self.request_context) + vector(3, vector(3, own) + vector(2, b"")))
        signature = sign(self.seed, self._signed(b"client"))
        flight += self._say(CERTIFICATE_VERIFY, ED25519.to_bytes(2, "big") + vector(2, signature))
        return flight + self._say(FINISHED, self._finished(self.secrets["handshake", "client"]))

    def _derive(self, level, secret, label):
        for side, letter in (("client", b"c "), ("exit", b"s ")):
            self.secrets[level, side] = expand_label(secret, letter + label + b" traffic", self._hash(), 32)

    def _signed(self, side):
        return b" " * 64 + b"TLS 1.3, " + side + b" CertificateVerify\0" + self._hash()

    def _finished(self, secret):
        return hmac.digest(expand_label(secret, b"finished", b"", 32), self._hash(), "sha256")

    def _hash(self):
        return hashlib.sha256(self.transcript).digest()

    def _say(self, kind, body):
        message = bytes([kind]) + vector(3, body)
        self.transcript += message
        return message
