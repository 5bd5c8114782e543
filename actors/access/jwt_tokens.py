"""JSON Web Tokens as passwords: a token signed by a trusted issuer authenticates its user.

The user's name is a claim of the token. A user name in the CONNECT must be the same; if it is
empty, the name in the token applies. A token must expire (``exp``), and the connection ends then.
"""

from __future__ import annotations

import binascii
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from actors.access.credentials import LATEST_MS, AuthResult, Credentials, Verdict, is_name
from actors.access.fair_queue import SingleFlight
from actors.access.verdict_cache import VerdictCache
from actors.access.workers import Workers

if TYPE_CHECKING:
    from actors.access.jwt_keys import KeySet

MAX_TOKEN: Final = 16 * 1024
MAX_GROUPS: Final = 256
LEEWAY_S: Final = 30
"""Seconds that the issuer's clock may be ahead of the broker's; there is no leeway for expiry."""

_REMEMBERED_BYTES: Final = 16 << 20
_MAX_HEADER: Final = 4096
# Three parts in Base64 without padding; the first begins with a brace.
_SHAPE: Final = re.compile(rb"e[w-z0-9_-][A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """Requirements for tokens."""

    keys: KeySet
    issuer: str | None = None
    """Required value of ``iss``; None: any."""
    audience: tuple[str, ...] = ()
    """``aud`` must contain one of these names; empty: the token must not have ``aud`` (RFC
    7519)."""
    user_claim: str = "sub"
    """Claim with the user's name; ``a.b`` also finds ``b`` in an object ``a``."""
    groups_claim: str = "groups"
    """Claim with the names of the user's groups; it may be missing."""


class BadToken(Exception):  # noqa: N818 - it is not an error of ours
    """An invalid token; the text gives the reason without quoting it."""


class Tokens:
    """Verifies tokens in a thread beside the event loop; ``time_ms`` returns Unix time.

    A valid token is cached until it expires.
    """

    def __init__(
        self, options: TokenOptions, time_ms: Callable[[], int], *, threads: int = 1
    ) -> None:
        self._options = options
        self._time_ms = time_ms
        self._verdicts = VerdictCache(_REMEMBERED_BYTES)
        self._single_flight: SingleFlight[Verdict] = SingleFlight()
        self._workers = Workers(threads)

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict for a client without a token, and for cached tokens."""
        if credentials.password is None:
            return _refused("no token")
        if len(credentials.password) > MAX_TOKEN:
            return _refused("the token is too long")
        key = self._verdicts.key(credentials.username, credentials.password)
        return self._verdicts.get(key, self._time_ms())

    async def check(self, credentials: Credentials) -> Verdict:
        """Verify the signature in a thread, then the claims."""
        verdict = self.check_now(credentials)
        if verdict is not None or credentials.password is None:
            return verdict or _refused("no token")
        token = credentials.password
        key = self._verdicts.key(credentials.username, token)
        verdict = await self._single_flight.do(
            key,
            lambda: self._workers.run(
                credentials.address,
                self._verify,
                credentials.username,
                token,
                rank=credentials.rank,
            ),
        )
        if verdict.accepted:
            self._verdicts.put(key, verdict, verdict.expires_ms, len(token))
        return verdict

    def claimed_user(self, token: bytes) -> str:
        """Return the user claimed by a token, unverified; empty if there is none."""
        return claimed_user(token, self._options.user_claim)

    def close(self) -> None:
        """End the thread once the running checks are done."""
        self._workers.close()

    def _verify(self, username: str | None, token: bytes) -> Verdict:
        try:
            verdict = read_token(token, self._options, self._time_ms())
        except BadToken as error:
            return _refused(str(error))
        if username and username != verdict.user:
            return _refused("the token belongs to another user")
        return verdict


def looks_like_token(password: bytes | None) -> bool:
    """Return whether a password has the form of a signed token, valid or not."""
    return password is not None and _SHAPE.fullmatch(password) is not None


def claimed_user(token: bytes, claim: str) -> str:
    """Return the user in a ``claim`` of a token; the token is not verified.

    Empty if there is no such name or the token cannot be parsed.
    """
    payload = token.split(b".", 2)[1:2] if len(token) <= MAX_TOKEN else []
    try:
        user = _claim(_object(_decoded(b"".join(payload))), claim)
    except BadToken:
        return ""
    return user if is_name(user) else ""


def read_token(token: bytes, options: TokenOptions, now_ms: int) -> Verdict:
    """Return the verdict about a token at Unix time ``now_ms``; raises BadToken."""
    if len(token) > MAX_TOKEN:
        raise BadToken("the token is too long")
    claims = _signed_claims(token, options.keys)
    expires_ms = _check_times(claims, now_ms)
    if options.issuer is not None and claims.get("iss") != options.issuer:
        raise BadToken("the token is from another issuer")
    _check_audience(claims.get("aud"), options.audience)
    user = _claim(claims, options.user_claim)
    if not is_name(user):
        raise BadToken("the token contains no user")
    return Verdict(
        AuthResult.ACCEPTED,
        user,
        groups=_groups(_claim(claims, options.groups_claim)),
        expires_ms=expires_ms,
    )


def _signed_claims(token: bytes, keys: KeySet) -> dict[str, Any]:
    from jwt.api_jws import PyJWS  # only where tokens are used: it loads the cryptography package
    from jwt.exceptions import PyJWTError

    header = _header(token)
    candidates = keys.candidates(header.get("kid"), header["alg"])
    if not candidates:
        raise BadToken("no key has the token's algorithm and key id")
    for candidate in candidates:
        try:
            signed = PyJWS().decode_complete(token, candidate.key, [header["alg"]])
        except (PyJWTError, ValueError, RecursionError):
            continue
        return _object(signed["payload"])
    raise BadToken("the signature is wrong")


def _header(token: bytes) -> dict[str, Any]:
    """Return a token's header; only its key ID is used."""
    part = token.partition(b".")[0]
    if len(part) > _MAX_HEADER or not looks_like_token(token):
        raise BadToken("not a token")
    header = _object(_decoded(part))
    if not isinstance(header.get("alg"), str) or not isinstance(header.get("kid"), str | None):
        raise BadToken("the token's header is wrong")
    # Critical extensions (RFC 7515, section 4.1.11): none is supported.
    if "crit" in header or "b64" in header:
        raise BadToken("the token requires an extension that is not supported")
    return header


def _decoded(part: bytes) -> bytes:
    try:
        return urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise BadToken("not a token") from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise BadToken("not a token") from None
    if not isinstance(content, dict):
        raise BadToken("not a token")
    return content


def _check_times(claims: dict[str, Any], now_ms: int) -> int:
    """Return the expiry in Unix milliseconds; raises BadToken if the token is not valid now."""
    expires = _time_ms(claims, "exp")
    if expires is None:
        raise BadToken("the token never expires")
    if now_ms >= expires:
        raise BadToken("the token has expired")
    for name in ("nbf", "iat"):
        begins = _time_ms(claims, name)
        if begins is not None and now_ms + LEEWAY_S * 1000 < begins:
            raise BadToken("the token is not valid yet")
    return min(expires, LATEST_MS)


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadToken(f"the token's {name} is not a time")
    return int(max(0, min(value * 1000, LATEST_MS)))


def _check_audience(named: object, audiences: tuple[str, ...]) -> None:
    audience = [named] if isinstance(named, str) else [] if named is None else named
    if not isinstance(audience, list):
        raise BadToken("the token's audience is wrong")
    if audiences:
        fits = any(isinstance(name, str) and name in audiences for name in audience)
    else:
        fits = not audience
    if not fits:
        raise BadToken("the token is for another audience")


def _claim(claims: dict[str, Any], name: str) -> object:
    if name in claims:
        return claims[name]
    value: object = claims
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _groups(value: object) -> tuple[str, ...]:
    groups = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS or not all(map(is_name, groups)):
        raise BadToken("the token's groups are not a list of names")
    return tuple(groups)


def _refused(reason: str) -> Verdict:
    return Verdict(AuthResult.BAD_CREDENTIALS, reason=reason)
