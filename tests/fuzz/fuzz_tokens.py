"""Tokens: whatever is presented, and whatever a signed one claims, only valid logins succeed.

The first byte determines the meaning of the rest: a password, the payload of a validly signed
token, its header, a JWKS or keys in PEM, or the answer of the auth callout.
"""

import base64
import hmac
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from actors.access import (
    callout,
    jwt_keys,
    jwt_tokens,
)
from actors.access.credentials import Credentials, Verdict, is_name

SECRET = b"a secret of exactly 32 bytes ..."
KEYS = jwt_keys.parse_keys(
    b'{"keys": [{"kty": "oct", "alg": "HS256", "kid": "k", "k": "%s"}]}'
    % base64.urlsafe_b64encode(SECRET).rstrip(b"=")
)
ANY = jwt_tokens.TokenOptions(keys=KEYS)
STRICT = jwt_tokens.TokenOptions(
    keys=KEYS, issuer="i", audience=("a", "b"), user_claim="u.v", groups_claim="g"
)
NOW_MS = 1_700_000_000_000
HEADER = b'{"alg":"HS256"}'
SHOWN = Credentials("ann", b"x", "c", "192.0.2.1", "tcp")


def one(data: bytes) -> None:
    """Try one input; raises AssertionError if an invalid token is accepted."""
    kind, rest = data[:1], data[1:]
    if kind == b"P":
        _read(_signed(HEADER, rest))
    elif kind == b"H":
        _read(_signed(rest, b'{"sub":"ann","exp":1700000001}'))
    elif kind == b"K":
        _keys(rest)
    elif kind == b"A":
        _answer(rest)
    else:
        _read(data)


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _signed(header: bytes, payload: bytes) -> bytes:
    text = _encoded(header) + b"." + _encoded(payload)
    return text + b"." + _encoded(hmac.digest(SECRET, text, "sha256"))


def _read(token: bytes) -> None:
    claimed = jwt_tokens.claimed_user(token, "sub")
    assert not claimed or is_name(claimed), "a claim is bounded"
    for options in (ANY, STRICT):
        try:
            verdict = jwt_tokens.read_token(token, options, NOW_MS)
        except jwt_tokens.BadToken as error:
            _one_line(error)
            continue
        assert jwt_tokens.looks_like_token(token)
        text, _, signature = token.rpartition(b".")
        assert signature == _encoded(hmac.digest(SECRET, text, "sha256")), "a forged token"
        _accepted(verdict)
        assert verdict.user, "a token has a user"
        assert verdict.expires_ms, "a token expires"


def _one_line(error: Exception) -> None:
    assert str(error).isprintable(), "no terminal obeys a reason"
    assert len(str(error)) < 500


def _accepted(verdict: Verdict) -> None:
    assert verdict.accepted
    assert verdict.user is None or is_name(verdict.user)
    assert len(verdict.groups) <= callout.MAX_ENTRIES
    assert all(isinstance(group, str) and group for group in verdict.groups)
    assert verdict.expires_ms == 0 or verdict.expires_ms > NOW_MS


def _keys(data: bytes) -> None:
    try:
        found = jwt_keys.parse_keys(data)
    except jwt_keys.BadKeys as error:
        _one_line(error)
        return
    assert found.keys
    for key in found.keys:
        assert key.algorithms
        secret = any(name.startswith("HS") for name in key.algorithms)
        assert secret is isinstance(key.key, bytes), "a public key is no secret"
        assert "none" not in key.algorithms


def _answer(data: bytes) -> None:
    try:
        answer = callout.read_answer(data, SHOWN, NOW_MS)
    except callout.BadAnswer as error:
        _one_line(error)
        return
    verdict = answer.verdict
    assert verdict.reason.isprintable()
    if verdict.accepted:
        assert b"true" in data
        _accepted(verdict)
        assert verdict.rules is None or verdict.rules
