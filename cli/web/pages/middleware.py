"""Middleware of all requests: host, token and role, error pages, headers.

The *grant* of a request determines its permissions; pages get it with :func:`viewer`. A request
that could change something needs the role ``operate``, whatever its path.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from cli.common.allowed_hosts import Hosts
from cli.logs.broker_client import NoLiveBroker
from cli.logs.next_commands import completed
from cli.web.api.access import ApiAccess
from cli.web.api.endpoints import ApiEndpoints
from cli.web.api.jwt_users import JwtUsers
from cli.web.api.operations import BASE
from cli.web.api.problem_types import problem_of
from cli.web.audit_trail import AuditTrail
from cli.web.own_token import cookie_of
from cli.web.pages.responses import Site
from cli.web.tokens import Grant, Tokens
from protocol.errors import FoldmqError

log = structlog.get_logger("foldmq")

_COOKIE_SECONDS = 30 * 86_400
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Safe methods (RFC 9110, 9.2.1)."""
_OPEN = ("/login", "/static/")
"""Paths served without a token."""
_PUBLISHES_ONLY = "A token with the role publish is for the HTTP API only."
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "foldmq",
}


class AccessMiddleware:
    """Admits requests with a valid token, and renders errors as pages."""

    def __init__(
        self,
        site: Site,
        tokens: Tokens,
        trail: AuditTrail,
        hosts: Hosts,
        port: int,
        api_origins: Collection[str] = (),
        api_users: JwtUsers | None = None,
    ) -> None:
        """``api_origins`` may use the API from their pages, ``api_users`` with JSON Web Tokens."""
        self._site = site
        self._tokens = tokens
        self._trail = trail
        self._hosts = hosts
        # A browser sends the cookies of a host to all ports: each broker has its own cookie.
        self._cookie = f"foldmq_web_{port}"
        self.api_access = ApiAccess(tokens, trail, self._cookie, api_origins, api_users)
        self.api: ApiEndpoints | None = None
        """Answers the requests for the API, whose access it checks itself."""

    def install(self, app: web.Application) -> None:
        """Add the middleware."""
        app.middlewares.append(self._pass)
        app.on_response_prepare.append(_add_headers)
        app.router.add_get("/login", self._login)
        app.router.add_post("/login", self._log_in)

    @web.middleware
    async def _pass(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._hosts.allows(request.headers.get("Host", "")):
            text = "This page is not served under this host name.\n"
            return web.Response(status=421, text=text)
        if self.api is not None and request.path.startswith(f"{BASE}/"):
            return await self.api.respond(request, handler)
        if not request.path.startswith(_OPEN):
            token = request.query.get("token")
            if token is not None and request.method == "GET":
                return await self._by_address(request, token)
            cookie = request.cookies.get(self._cookie)
            grant = None if cookie is None else self._tokens.of_cookie(cookie)
            if grant is None or not self._tokens.holds(grant):
                return self._login_required(request, grant, shown=cookie is not None)
            if not grant.role.views:
                return self._site.error(request, 403, _PUBLISHES_ONLY)
            if request.method not in _SAFE and not grant.role.makes_changes:
                self._trail.denied(_address(request), grant)
                sentence = (
                    f"A token with the role {grant.role} cannot make changes: that needs the "
                    "role operate."
                )
                return self._site.error(request, 403, sentence)
            request["grant"] = grant
        return await self._answered(request, handler)

    def _login_required(
        self, request: web.Request, grant: Grant | None, *, shown: bool
    ) -> web.Response:
        """Show the login form; an invalid cookie is removed."""
        if shown and grant is None:
            self._trail.refused(_address(request), None, "wrong_cookie")
        problem = "The token has expired." if grant is not None else None
        response = self._login_page(request, 401, request.raw_path, problem)
        if shown:
            response.del_cookie(self._cookie, httponly=True, samesite="Strict")
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return self._site.error(request, error.status, f"{error.status}: {error.reason}.")
        except NoLiveBroker as error:
            return self._site.away(request, completed(str(error)))
        except FoldmqError as error:
            return self._site.error(request, problem_of(error).status, completed(str(error)))
        except Exception as error:
            log.error("web page: request failed", path=request.path, exc_info=error)  # noqa: TRY400
            what = f"this page cannot be shown: {type(error).__name__}; see the broker's log"
            return self._site.error(request, 500, what)

    async def _by_address(self, request: web.Request, token: str) -> web.Response:
        """Redirect to the URL without the token, which would stay in the browser's history."""
        other_parameters = [(key, value) for key, value in request.query.items() if key != "token"]
        return await self._decide(
            request, token, str(request.rel_url.with_query(other_parameters)), "/"
        )

    async def _login(self, request: web.Request) -> web.Response:
        return self._login_page(request, 200, request.query.get("next", "/"))

    async def _log_in(self, request: web.Request) -> web.Response:
        form = await request.post()
        token, following = form.get("token"), form.get("next")
        following = following if isinstance(following, str) else "/"
        return await self._decide(
            request, token if isinstance(token, str) else "", following, following
        )

    async def _decide(
        self, request: web.Request, token: str, following: str, again: str
    ) -> web.Response:
        """Log in a request with a token and redirect; else show the login form, then ``again``."""
        address = _address(request)
        grant = self._tokens.of_token(token)
        if grant is None:
            self._trail.refused(address, None, "wrong_token")
            return self._login_page(request, 401, again, "This token is not valid.")
        if not self._tokens.holds(grant):
            self._trail.refused(address, grant, "expired")
            return self._login_page(request, 401, again, "The token has expired.")
        if not grant.role.views:
            return self._login_page(request, 403, again, _PUBLISHES_ONLY)
        await self._trail.login(address, grant)
        response = web.Response(status=303, headers={"Location": _local(following)})
        response.set_cookie(
            self._cookie,
            cookie_of(token.strip()),
            max_age=self._tokens.seconds_left(grant, _COOKIE_SECONDS),
            httponly=True,
            samesite="Strict",
        )
        return response

    def _login_page(
        self, request: web.Request, status: int, following: str, problem: str | None = None
    ) -> web.Response:
        file = str(self._tokens.own.file)
        return self._site.page(
            request, "login.html", status, file=file, following=following, problem=problem
        )


def viewer(request: web.Request) -> Grant:
    """Return the permissions of the login for a request."""
    grant: Grant = request["grant"]
    return grant


def _address(request: web.Request) -> str:
    return request.remote or ""


def _local(address: str) -> str:
    """Return a URL path if it belongs to this page, else the first page."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    elsewhere = parts.scheme or parts.netloc or not address.startswith("/")
    if elsewhere or address.startswith("//") or "\\" in address or not address.isprintable():
        return "/"
    return address


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    cached = request.path.startswith("/static/") and response.status in (200, 304)
    # Browsers revalidate static files each time; unchanged ones are not sent again.
    response.headers.setdefault("Cache-Control", "no-cache" if cached else "no-store")
