"""Who may use the API: tokens, browsers of the same origin, and pages of listed origins (CORS)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from aiohttp import web

from cli.web.api.problem_types import Forbidden, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Collection

    from cli.web.api.jwt_users import JwtUsers
    from cli.web.audit_trail import AuditTrail
    from cli.web.tokens import Grant, Tokens

_SCHEME: Final = "bearer "
_REQUEST_HEADERS: Final = (
    "Accept, Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID"
)
_ANSWER_HEADERS: Final = (
    "Content-Location, ETag, Foldmq-Position, Link, Location, Retry-After, WWW-Authenticate"
)
JWT_PREFIX: Final = "jwt:"
"""The names of permissions of JSON Web Tokens begin with it, those of other tokens do not."""
_PREFLIGHT_SECONDS: Final = 600
_LONGEST_WAIT: Final = 100 * 86_400
"""Longest time, in seconds, for which a timer waits for the expiry of a token."""


class ApiAccess:
    """Finds the permissions of a request; ``origins`` are those of other pages that may ask."""

    def __init__(
        self,
        tokens: Tokens,
        trail: AuditTrail,
        cookie: str,
        origins: Collection[str] = (),
        users: JwtUsers | None = None,
    ) -> None:
        """``users`` have JSON Web Tokens; None: these are not accepted."""
        self._tokens = tokens
        self._trail = trail
        self._cookie = cookie
        self._origins = frozenset(origins)
        self._users = users

    async def grant(self, request: web.Request) -> Grant:
        """Return the permissions of a request; raises Unauthorized and Forbidden."""
        header = request.headers.get("Authorization")
        if header is None:
            return self._of_browser(request)
        address = request.remote or ""
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthorized("Authorization must be: Bearer TOKEN")
        token = header[len(_SCHEME) :].strip()
        grant = self._tokens.of_token(token)
        if self._users is not None and self._users.is_token(token):
            grant = await self._users.grant(token, address)
        if grant is None:
            self._trail.refused(address, None, "wrong_token")
            raise Unauthorized("the token is not valid")
        if not self._tokens.holds(grant):
            self._trail.refused(address, grant, "expired")
        self.check(grant)
        await self._trail.login(address, grant)
        return grant

    def check(self, grant: Grant) -> None:
        """Raise Unauthorized if permissions have expired."""
        if not self._tokens.holds(grant):
            raise Unauthorized("the token has expired")

    def check_again(self, grant: Grant) -> None:
        """Raise Unauthorized if permissions have expired, or their token was removed."""
        self.check(grant)
        if not grant.name.startswith(JWT_PREFIX) and not self._tokens.has(grant):
            raise Unauthorized("the token is no longer valid")

    def seconds_left(self, grant: Grant) -> float | None:
        """Return after how many seconds permissions have expired; None: they do not."""
        if grant.expires is None:
            return None
        return self._tokens.seconds_left(grant, _LONGEST_WAIT) + 1.0

    def _of_browser(self, request: web.Request) -> Grant:
        """Return the permissions of the page's cookie, for reading by the page itself only."""
        cookie = request.cookies.get(self._cookie)
        grant = None if cookie is None else self._tokens.of_cookie(cookie)
        if grant is None or not self._tokens.holds(grant):
            raise Unauthorized("a token is required: Authorization: Bearer TOKEN")
        site = request.headers.get("Sec-Fetch-Site", "none")
        origin = request.headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
        if request.method not in ("GET", "HEAD") or site not in ("same-origin", "none") or foreign:
            raise Forbidden("the cookie of the web page is only for reading by the page itself")
        return grant

    def preflight(self, request: web.Request) -> web.Response | None:
        """Return the answer to the question of a browser before a request of another origin."""
        asked = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or asked is None or not self._is_listed(request):
            return None
        headers = {
            "Access-Control-Allow-Methods": "GET, HEAD, POST",
            "Access-Control-Allow-Headers": _REQUEST_HEADERS,
            "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
        }
        return web.Response(status=204, headers=headers)

    def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let a page of a listed origin read a response; credentials are never allowed."""
        response.headers["Vary"] = "Accept, Authorization, Cookie, Origin"
        if self._is_listed(request):
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = _ANSWER_HEADERS

    def _is_listed(self, request: web.Request) -> bool:
        return request.headers.get("Origin") in self._origins
