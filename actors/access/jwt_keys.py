"""The keys for verifying tokens, and the algorithms of each of them.

The algorithms depend on the key only, never on the token: a public key cannot be used as an HMAC
secret, and no key allows "none" (RFC 8725, section 3.1).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509 import load_pem_x509_certificate

from eventstore.edited_files import skip_mark
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE: Final = 1 << 20
MAX_KEYS: Final = 100
MIN_SECRET: Final = 32
"""Bytes."""
MIN_RSA: Final = 2048
"""Bits (RFC 7518, section 3.3)."""

_HMAC: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Minimum bytes of a secret by algorithm: those of the hash (RFC 7518, section 3.2)."""
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final = {
    "secp256r1": frozenset({"ES256"}),
    "secp384r1": frozenset({"ES384"}),
    "secp521r1": frozenset({"ES512"}),
    "secp256k1": frozenset({"ES256K"}),
}
_EDWARDS: Final = frozenset({"EdDSA"})
_KNOWN: Final = _RSA.union(_EDWARDS, _HMAC, *_CURVES.values())
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,60})-----.*?-----END \1-----", re.DOTALL)


class TokenKeyError(FoldmqError):
    """A key file that cannot be read, or contains no usable key."""

    exit_code = 78  # EX_CONFIG of sysexits.h, as in eventstore.errors


class BadKeys(Exception):  # noqa: N818 - named for what it is about
    """Keys that cannot be read or used; the text gives the reason without quoting them."""


class Key(NamedTuple):
    """One key."""

    kid: str | None
    """Key ID, by which a token may refer to the key."""
    key: Any
    """The key for the JWT library: a public key object, or the bytes of a secret."""
    algorithms: frozenset[str]


class KeySet(NamedTuple):
    """All keys that verify tokens."""

    keys: tuple[Key, ...]

    def candidates(self, kid: object, algorithm: object) -> list[Key]:
        """Return the keys that may have signed a token with this header."""
        named = [key for key in self.keys if kid is not None and key.kid == kid]
        unnamed = [key for key in self.keys if kid is None or key.kid is None]
        return [key for key in named or unnamed if algorithm in key.algorithms]


def load_keys(path: Path) -> KeySet:
    """Read public keys from PEM (one or more keys or certificates) or a JWKS.

    A secret shared with the issuer must be a key of kind ``oct`` in a JWKS: the content of no other
    file is used as a secret.

    Raises TokenKeyError with the file and the error.
    """
    data = _read(path)
    try:
        return parse_keys(data)
    except BadKeys as error:
        raise TokenKeyError(f"{path}: {error}") from None


def parse_keys(data: bytes) -> KeySet:
    """Return the keys of a PEM file or JWKS; raises BadKeys."""
    keys = _from_jwks(data) if data.lstrip().startswith(b"{") else _from_pem(data)
    if len(keys) > MAX_KEYS:
        raise BadKeys(f"contains {len(keys)} keys, at most {MAX_KEYS} are allowed")
    return KeySet(tuple(keys))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = skip_mark(file.read(MAX_FILE + 1))
    except OSError as error:
        raise TokenKeyError(f"{path}: cannot read keys for tokens: {error.strerror}") from None
    if len(data) > MAX_FILE:
        raise TokenKeyError(f"{path}: is larger than {MAX_FILE >> 20} MiB")
    return data


def _from_pem(data: bytes) -> list[Key]:
    keys: list[Key] = []
    for block in _PEM.finditer(data):
        kind = block[1].decode("ascii")
        if "PRIVATE" in kind:
            raise BadKeys(
                "contains a private key, with which anyone can create tokens; "
                "use the public key (openssl pkey -pubout)"
            )
        try:
            if kind == "CERTIFICATE":
                key: Any = load_pem_x509_certificate(block[0]).public_key()
            else:
                key = serialization.load_pem_public_key(block[0])
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise BadKeys(f"key {len(keys) + 1} ({kind}) cannot be read") from None
        keys.append(Key(None, key, _algorithms(key, f"key {len(keys) + 1}")))
    if not keys:
        raise BadKeys("contains neither a public key in PEM nor a JWKS")
    return keys


def _from_jwks(data: bytes) -> list[Key]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadKeys(f"is not JSON: {error}") from None
    entries = document.get("keys")
    if not isinstance(entries, list):
        raise BadKeys('is not a JWKS: it lacks the list "keys"')
    keys = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise BadKeys(f"key {number} is not a JSON object")
        # Unknown kinds and keys for other purposes must be ignored (RFC 7517, section 5).
        if entry.get("kty") in ("RSA", "EC", "OKP", "oct") and entry.get("use", "sig") == "sig":
            key = _from_jwk(entry, f"key {number}")
            if key is not None:
                keys.append(key)
    if not keys:
        raise BadKeys("contains no key that can verify signatures")
    return keys


def _from_jwk(entry: dict[str, Any], which: str) -> Key | None:
    kid, named = entry.get("kid"), entry.get("alg")
    if not isinstance(kid, str | None) or not isinstance(named, str | None):
        raise BadKeys(f'{which}: "kid" and "alg" must be text')
    if "d" in entry:
        raise BadKeys(f"{which} is a private key, with which anyone can create tokens")
    if named is not None and named not in _KNOWN:
        return None  # for another use, such as encryption
    try:
        key = jwt.PyJWK({name: value for name, value in entry.items() if name != "alg"}).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, UnsupportedAlgorithm):
        raise BadKeys(f"{which} ({entry['kty']}) cannot be read") from None
    allowed = _algorithms(key, which)
    if named is not None:
        if named not in allowed:
            raise BadKeys(f'{which}: "alg" does not fit a key of kind {entry["kty"]}')
        allowed = frozenset({named})
    return Key(kid, key, allowed)


def _algorithms(key: object, which: str) -> frozenset[str]:
    """Return the algorithms of a key; raises BadKeys for a weak or unsuitable key."""
    if isinstance(key, bytes):
        if len(key) < MIN_SECRET:
            raise BadKeys(f"{which} has {len(key)} bytes, it needs {MIN_SECRET}")
        return frozenset(name for name, least in _HMAC.items() if len(key) >= least)
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA:
            raise BadKeys(f"{which} has {key.key_size} bits, it needs {MIN_RSA}")
        return _RSA
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return _CURVES[key.curve.name]
    if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return _EDWARDS
    raise BadKeys(f"{which} is of a kind that cannot sign tokens")
