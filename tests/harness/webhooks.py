"""A web server that takes CloudEvents, with answers that a test chooses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

import orjson

from harness.broker import free_port


class Post(NamedTuple):
    """A request, as it came."""

    headers: dict[str, str]
    body: bytes
    code: int

    @property
    def events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = orjson.loads(self.body)
        return events

    @property
    def webhook(self) -> str:
        return self.headers["webhook-id"]


class Webhooks:
    """The server; `answer` returns the status of the answer to a request, or 0 for none at all."""

    def __init__(self) -> None:
        self.port = free_port()
        self.posts: list[Post] = []
        self.answer: Callable[[Post], int] = lambda _post: 204
        self.retry_after: str | None = None
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The events of all requests that were answered with success, in order."""
        return [event for post in self.posts if post.code // 100 == 2 for event in post.events]

    @property
    def payloads(self) -> list[Any]:
        """Their data."""
        return [event["data"] for event in self.stored]

    def start(self) -> None:
        hooks = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                post = Post(dict(self.headers), body, 0)
                code = hooks.answer(post)
                hooks.posts.append(post._replace(code=code))
                if not code:
                    self.close_connection = True
                    return
                self.send_response(code)
                if hooks.retry_after is not None:
                    self.send_header("Retry-After", hooks.retry_after)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def is_signed(post: Post, secret: str) -> bool:
    """Return whether one of the signatures of a request was made with a secret."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{post.webhook}.{post.headers['webhook-timestamp']}.".encode() + post.body
    digest = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return f"v1,{digest}" in post.headers["webhook-signature"].split()
