"""SCRAM-SHA-256 (RFC 5802, RFC 7677): keys, and the messages of the server's side.

The server computes two HMACs and a hash for each login, and needs no thread for it: only the client
and ``foldmq passwd`` compute the iterations. Preparing a name that is not ASCII costs more, about 8
microseconds per character, so the length of names is limited.

There is no channel binding: a client that requires it (``p=``) is refused; a client that supports
it but sees that the server does not offer it (``y``) is treated like one that does not support it
(``n``), see RFC 5802, section 6. ``c=`` must repeat that flag, so that an attacker in between
cannot change it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import stringprep
import unicodedata
from typing import Final, NamedTuple

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 15_000
"""Iterations of new keys. A client computes them at each login; RFC 7677 requires 4,096."""
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 10_000_000
SALT_SIZE: Final = 16
"""Bytes of a new salt."""

_DIGEST: Final = 32
_SALTS: Final = range(8, 65)
_NONCE: Final = 18
"""Random bytes of the server's part of the nonce."""
_LONGEST: Final = 256
"""Maximum characters of a client's user name, and of its nonce."""
_KEYS = re.compile(
    r"SCRAM-SHA-256\$([1-9][0-9]{0,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)",
    re.ASCII,
)
_FIRST = re.compile(r"(n|y|p=[^,]*),(?:a=([^,]*))?,(n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)((?:,.*)?))")
_FINAL = re.compile(r"(c=([^,]*),r=([^,]+)(?:,.*)?),p=([^,]*)")
_EXTENSIONS = re.compile(r"(?:,[A-Za-z]=[^,]+)*")


_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)
"""The tables of characters that SASLprep prohibits."""


class ScramError(Exception):
    """A refused message of the client; the text gives the reason without quoting it."""


class ScramKeys(NamedTuple):
    """The keys that a server stores for a password: enough to verify it, not enough to log in."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def saslprep(text: str) -> str:
    """Return a user name or password in the form in which it is compared (RFC 4013).

    Raises ValueError for prohibited characters. Characters that Unicode 3.2 does not assign are
    unchanged, in stored names and in names from clients.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    normal = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(table(char) for char in normal for table in _PROHIBITED):
        raise ValueError("it contains characters that SASLprep prohibits")
    if any(map(stringprep.in_table_d1, normal)) and (
        any(map(stringprep.in_table_d2, normal))
        or not (stringprep.in_table_d1(normal[0]) and stringprep.in_table_d1(normal[-1]))
    ):
        raise ValueError("it mixes right-to-left and left-to-right text")
    return normal


def derive_keys(password: bytes, iterations: int = ITERATIONS, salt: bytes = b"") -> ScramKeys:
    """Return keys of a password, by default with a new random salt.

    Raises ValueError for a password that SCRAM cannot represent.
    """
    try:
        prepared = saslprep(password.decode("utf-8")).encode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if not prepared:
        raise ValueError("it is empty after SASLprep")
    salt = salt or os.urandom(SALT_SIZE)
    salted = hashlib.pbkdf2_hmac("sha256", prepared, salt, iterations)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    return ScramKeys(iterations, salt, stored_key, hmac.digest(salted, b"Server Key", "sha256"))


def render_keys(keys: ScramKeys) -> str:
    """Return keys as text, in the format of PostgreSQL."""
    salt, stored, server = (base64.b64encode(part).decode("ascii") for part in keys[1:])
    return f"{SCRAM_SHA_256}${keys.iterations}:{salt}${stored}:{server}"


def parse_scram_keys(text: str) -> ScramKeys | None:
    """Return the keys in a text of :func:`render_keys`; None if they are invalid."""
    match = _KEYS.fullmatch(text)
    if match is None:
        return None
    iterations = int(match[1])
    try:
        salt, stored, server = (
            base64.b64decode(part, validate=True) for part in match.groups()[1:]
        )
    except binascii.Error:
        return None
    fits = len(salt) in _SALTS and len(stored) == len(server) == _DIGEST
    if not fits or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        return None
    return ScramKeys(iterations, salt, stored, server)


class DummyKeys:
    """Keys for users without keys, always the same for a name.

    No password matches them. Their salt depends on ``secret``: if that outlives the process, an
    unknown name always gets the same salt, like a known one.
    """

    def __init__(
        self, secret: bytes, iterations: int = ITERATIONS, salt_size: int = SALT_SIZE
    ) -> None:
        self._secret = hashlib.sha256(secret).digest()
        self._iterations = iterations
        self._salt_size = salt_size

    def keys(self, name: str) -> ScramKeys:
        """Return the keys of a name."""
        raw = name.encode("utf-8", "surrogatepass")
        salt = hashlib.blake2b(raw, key=self._secret, person=b"salt").digest()
        keys = hashlib.blake2b(raw, key=self._secret, person=b"keys").digest()
        # No client key with this hash is known.
        return ScramKeys(self._iterations, salt[: self._salt_size], keys[:32], keys[32:])


class ClientFirst(NamedTuple):
    """The first message of a client."""

    user: str
    header: bytes
    """Channel binding flag and authorization identity, which the last message must repeat."""
    bare: bytes
    """The message without the header."""
    nonce: str


def read_client_first(data: bytes) -> ClientFirst:
    """Read the first message of a client; raises ScramError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ScramError("the first SCRAM message is not UTF-8 text") from None
    match = _FIRST.fullmatch(text)
    if match is None or not _EXTENSIONS.fullmatch(match[6]) or "\0" in text:
        # A mandatory extension (m=) would precede the name.
        raise ScramError("the first SCRAM message is malformed")
    flag, identity, bare, name, nonce = match.groups()[:5]
    if flag.startswith("p"):
        raise ScramError("the client requires channel binding")
    if len(nonce) > _LONGEST or len(name) > _LONGEST:
        raise ScramError(f"the client's nonce or name is longer than {_LONGEST} characters")
    user = _unescaped(name)
    if identity and _unescaped(identity) != user:
        raise ScramError("the client wants to act as another user")
    header = text[: match.start(3)]
    return ClientFirst(user, header.encode("utf-8"), bare.encode("utf-8"), nonce)


def _unescaped(name: str) -> str:
    """Return a name with comma and equals sign unescaped."""
    if not name or re.search("=(?!2C|3D)", name):
        raise ScramError("the user name of the first SCRAM message is malformed")
    return name.replace("=2C", ",").replace("=3D", "=")


class ScramExchange:
    """State of a login between the first and the last message of the client.

    ``nonce`` is the server's part of the nonce, by default a random one.
    """

    __slots__ = ("_first", "_keys", "_nonce", "challenge")

    def __init__(self, first: ClientFirst, keys: ScramKeys, nonce: str = "") -> None:
        self._first = first
        self._keys = keys
        made = nonce or base64.b64encode(os.urandom(_NONCE)).decode("ascii")
        self._nonce = (first.nonce + made).encode("ascii")
        salt = base64.b64encode(keys.salt)
        self.challenge = b"r=%b,s=%b,i=%d" % (self._nonce, salt, keys.iterations)
        """The server's first message."""

    def verify(self, data: bytes) -> bytes:
        """Verify the client's last message; return the server's.

        Raises ScramError.
        """
        match = _FINAL.fullmatch(data.decode("latin-1"))
        if match is None:
            raise ScramError("the last SCRAM message is malformed")
        without_proof, binding, nonce, proof = (group.encode("latin-1") for group in match.groups())
        if _unpacked(binding) != self._first.header:
            raise ScramError("the channel bindings of the SCRAM messages differ")
        if not hmac.compare_digest(nonce, self._nonce):
            raise ScramError("the last SCRAM message has another nonce")
        message = b",".join((self._first.bare, self.challenge, without_proof))
        signature = hmac.digest(self._keys.stored_key, message, "sha256")
        client_proof = _unpacked(proof)
        if len(client_proof) != _DIGEST:
            raise ScramError("the last SCRAM message is malformed")
        client_key = bytes(
            byte ^ other for byte, other in zip(client_proof, signature, strict=True)
        )
        digest = hashlib.sha256(client_key).digest()
        if not hmac.compare_digest(digest, self._keys.stored_key):
            raise ScramError("wrong user name or password")
        return b"v=" + base64.b64encode(hmac.digest(self._keys.server_key, message, "sha256"))


def _unpacked(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("the last SCRAM message is malformed") from None
