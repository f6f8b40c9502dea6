"""AES-128-GCM, HKDF, X25519 and Ed25519 in pure Python: slow, not constant-time, and without dependencies.

Written from FIPS 197, NIST SP 800-38D, RFC 5869, RFC 7748 and RFC 8032, for a test.
"""

import hashlib
import hmac


# AES-128 encryption only: GCM and QUIC's header protection do not decrypt blocks.


def _make_sbox():
    sbox, p, q = [0] * 256, 1, 1
    while True:
        p = p ^ (p << 1 & 0xFF) ^ (0x1B if p & 0x80 else 0)
        q ^= q << 1
        q ^= q << 2
        q ^= q << 4
        q &= 0xFF
        q ^= 0x09 if q & 0x80 else 0
        rotated = [(q << turn | q >> (8 - turn)) & 0xFF for turn in (1, 2, 3, 4)]
        sbox[p] = q ^ rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ 0x63
        if p == 1:
            sbox[0] = 0x63
            return sbox


SBOX = _make_sbox()


def _double(byte):
    return (byte << 1 & 0xFF) ^ (0x1B if byte & 0x80 else 0)


class Aes:
    def __init__(self, key):
        words, constant = [list(key[i : i + 4]) for i in range(0, 16, 4)], 1
        for index in range(4, 44):
            word = list(words[index - 1])
            if index % 4 == 0:
                word = [SBOX[byte] for byte in word[1:] + word[:1]]
                word[0] ^= constant
                constant = _double(constant)
            words.append([a ^ b for a, b in zip(word, words[index - 4])])
        self.rounds = [sum(words[i : i + 4], []) for i in range(0, 44, 4)]

    def block(self, block):
        state = [a ^ b for a, b in zip(block, self.rounds[0])]
        for number in range(1, 11):
            state = [SBOX[state[(index + 4 * (index % 4)) % 16]] for index in range(16)]
            if number < 10:
                mixed = []
                for column in range(0, 16, 4):
                    a = state[column : column + 4]
                    every = a[0] ^ a[1] ^ a[2] ^ a[3]
                    mixed += [a[i] ^ every ^ _double(a[i] ^ a[(i + 1) % 4]) for i in range(4)]
                state = mixed
            state = [a ^ b for a, b in zip(state, self.rounds[number])]
        return bytes(state)


class Gcm:
    TAG = 16

    def __init__(self, key):
        self.aes = Aes(key)
        self.hash_key = int.from_bytes(self.aes.block(bytes(16)), "big")

    def seal(self, nonce, data, text):
        sealed = self._counter_mode(nonce, text)
        return sealed + self._tag(nonce, data, sealed)

    def open(self, nonce, data, sealed):
        """The plaintext, or None if the tag is wrong."""
        body, tag = sealed[: -self.TAG], sealed[-self.TAG :]
        if not hmac.compare_digest(tag, self._tag(nonce, data, body)):
            return None
        return self._counter_mode(nonce, body)

    def _counter_mode(self, nonce, text):
        stream = b"".join(self.aes.block(nonce + (2 + i).to_bytes(4, "big")) for i in range((len(text) + 15) // 16))
        return bytes(a ^ b for a, b in zip(text, stream))

    def _tag(self, nonce, data, sealed):
        padded = b"".join(part + bytes(-len(part) % 16) for part in (data, sealed))
        padded += (8 * len(data)).to_bytes(8, "big") + (8 * len(sealed)).to_bytes(8, "big")
        total = 0
        for start in range(0, len(padded), 16):
            total = self._times(total ^ int.from_bytes(padded[start : start + 16], "big"))
        mask = int.from_bytes(self.aes.block(nonce + b"\0\0\0\1"), "big")
        return (total ^ mask).to_bytes(16, "big")

    def _times(self, x):
        product, y = 0, self.hash_key
        for bit in range(127, -1, -1):
            if x >> bit & 1:
                product ^= y
            y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
        return product


def extract(salt, material):
    return hmac.digest(salt, material, "sha256")


def expand_label(secret, label, context, length):
    """HKDF-Expand-Label of RFC 8446 section 7.1, for at most 32 bytes."""
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    return hmac.digest(secret, info + b"\1", "sha256")[:length]


# Curve25519 in Montgomery and Edwards form.

P = 2**255 - 19


def x25519(scalar, point=(9).to_bytes(32, "little")):
    k = int.from_bytes(scalar, "little") & ~7 & (2**254 - 1) | 2**254
    x1 = int.from_bytes(point, "little") & (2**255 - 1)
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for bit in range(254, -1, -1):
        now = k >> bit & 1
        if swap ^ now:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = now
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % P, b * b % P, d * a % P, c * b % P
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def _add(one, two):
    a, b = (one[1] - one[0]) * (two[1] - two[0]) % P, (one[1] + one[0]) * (two[1] + two[0]) % P
    c, d = 2 * one[3] * two[3] * D % P, 2 * one[2] * two[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def _times(scalar, point):
    total = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    return total


def _compress(point):
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decompress(text):
    y = int.from_bytes(text, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or (x * x - square) % P:
        return None
    return (x if x & 1 == sign else P - x, y, 1, (x if x & 1 == sign else P - x) * y % P)


BASE = _decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def _hash(*parts):
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def _private(seed):
    digest = hashlib.sha512(seed).digest()
    return int.from_bytes(digest[:32], "little") & ~7 & (2**254 - 1) | 2**254, digest[32:]


def public_key(seed):
    return _compress(_times(_private(seed)[0], BASE))


def sign(seed, message):
    scalar, prefix = _private(seed)
    public = _compress(_times(scalar, BASE))
    nonce = _hash(prefix, message) % ORDER
    point = _compress(_times(nonce, BASE))
    answer = (nonce + _hash(point, public, message) % ORDER * scalar) % ORDER
    return point + answer.to_bytes(32, "little")


def verifies(public, message, signature):
    key, point, answer = _decompress(public), _decompress(signature[:32]), int.from_bytes(signature[32:], "little")
    if key is None or point is None or answer >= ORDER:
        return False
    challenge = _hash(signature[:32], public, message) % ORDER
    return _compress(_times(answer, BASE)) == _compress(_add(point, _times(challenge, key)))
