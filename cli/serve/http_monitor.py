"""The HTTP server for ``/metrics`` (Prometheus), ``/healthz`` and ``/readyz``.

It runs on the broker's event loop, so a response shows that the loop runs. It answers from before
recovery until the broker has stopped. It never blocks the loop: metrics are written in slices. Each
connection gets one response within a few seconds.

A request under another host name (see ``cli.common.allowed_hosts``) gets neither metrics nor
reasons, but still health and readiness: they reveal nothing to a foreign web page, and a health
check that failed because of a host name would restart a healthy broker.
"""

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import structlog

from cli.common.allowed_hosts import Hosts
from cli.common.units import Address
from cli.serve.http_server import HttpServer, Request, Response
from cli.serve.metrics_text import CONTENT_TYPE, metric_texts, process_texts
from cli.settings.settings import Settings
from cli.settings.socket_binding import ListenError, raise_unless_default
from eventstore.display import escaped
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from actors.inspection.broker_inspection import BrokerInspection
    from cli.serve.cluster_member import ClusterMember
    from cli.serve.partitioned_node import EdgeState

_log = structlog.get_logger("foldmq")

LONGEST = 10.0
"""Maximum duration of a connection in seconds."""
_SLICE = 0.0005
"""Seconds of writing metrics before other tasks run."""
_TIMEOUT = 5.0
"""Seconds to wait for the broker's status."""
_REFUSAL_EVERY = 60.0
"""Seconds between log lines about a host name that is not allowed."""
_INDEX = b"foldmq: /metrics for Prometheus, /healthz, /readyz\n"


class HttpMonitor:
    """The HTTP server; the service sets the broker when it exists, and when it listens."""

    def __init__(self) -> None:
        """Start in the state of a starting broker."""
        self.inspection: BrokerInspection | None = None
        self.listening = False
        """Whether clients can connect."""
        self.member: ClusterMember | EdgeState | None = None
        """The node in its cluster; None: there is no cluster."""
        self._hosts = Hosts([])
        self._refusal_told = -_REFUSAL_EVERY

    async def serve(self, stack: contextlib.AsyncExitStack, settings: Settings) -> Address | None:
        """Serve until ``stack`` closes; return the address, or None.

        Raises ListenError if an explicitly set address is not available.
        """
        if settings.metrics is None:
            return None
        self._hosts = Hosts([settings.metrics], settings.metrics_hosts, literals=True)
        try:
            return await self._listen(stack, settings.metrics)
        except ListenError as error:
            raise_unless_default(settings, "metrics", error)
            return None

    async def _listen(self, stack: contextlib.AsyncExitStack, place: Address) -> Address:
        http = HttpServer(self._answer, LONGEST)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(http.accept, place.host, place.port)
        except OSError as error:
            raise ListenError(place, error, "metrics") from None
        stack.callback(http.close)
        stack.callback(server.close)
        name = server.sockets[0].getsockname()
        return Address(name[0], name[1])

    def not_ready_reasons(self) -> list[str]:
        """Return why the broker is not ready; empty if it is ready."""
        if self.inspection is None:
            if self.member is None:
                return ["starting"]
            waiting = self.member.waiting()
            return [] if self.member.passes_on and not waiting else [waiting or "starting"]
        return self.inspection.node.not_ready_reasons() or (
            [] if self.listening else ["not listening yet"]
        )

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._respond(request)
        except Exception as error:  # noqa: BLE001 - the client and the log get it
            _log.error("monitoring request failed", error=f"{type(error).__name__}: {error}")
            return Response(500, b"failed, see the log of the broker\n")

    async def _respond(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(405, headers=(("Allow", "GET, HEAD"),))
        # A client that sends no Host is not a browser.
        foreign = [host for host in request.hosts if not self._hosts.allows(host)]
        if request.path == "/metrics" and foreign:
            return self._misdirected(foreign[0])
        if request.path == "/metrics":
            return Response(200, await self._metrics(), CONTENT_TYPE)
        if request.path == "/healthz":
            return _json(200, {"alive": True})
        if request.path == "/readyz":
            trouble = self.not_ready_reasons()
            state: dict[str, Any] = {"ready": not trouble, "reasons": [] if foreign else trouble}
            if self.member is not None and not foreign:
                state |= self.member.state
            return _json(503 if trouble else 200, state)
        return Response(200 if request.path == "/" else 404, _INDEX)

    def _misdirected(self, host: str) -> Response:
        now = time.monotonic()
        if now - self._refusal_told >= _REFUSAL_EVERY:
            self._refusal_told = now
            _log.warning(
                "metrics refused: the host name is not in metrics_hosts", host=escaped(host, 80)
            )
        text = (
            b"foldmq: metrics are not served under this host name; use the IP address, or add "
            b"the name to metrics_hosts"
        )
        return Response(421, text)

    async def _metrics(self) -> bytes:
        """Write the metrics in slices."""
        found = await self._status()
        clock = time.perf_counter
        parts: list[str] = []
        began = clock()
        for text in metric_texts(found):
            parts.append(text)
            if clock() - began > _SLICE:
                await asyncio.sleep(0)
                began = clock()
        parts += await asyncio.to_thread(process_texts)
        return "".join(parts).encode()

    async def _status(self) -> dict[str, Any]:
        """Return the broker's status, with the contents of sessions if available."""
        inspection = self.inspection
        ready = not self.not_ready_reasons()
        cluster = self.member.metrics() if self.member is not None else None
        if inspection is None:
            found: dict[str, Any] = {"ready": ready, "cluster": cluster}
            if self.member is not None:
                reload = self.member.reload
                found["reload"] = reload._asdict() if reload is not None else None
                found["certificates"] = self.member.certificates
            return found
        try:
            async with asyncio.timeout(_TIMEOUT):
                found = await inspection.inspector.ask_for("status")
        except (FoldmqError, TimeoutError) as error:
            _log.warning("metrics are incomplete", reason=str(error) or "no reply in time")
            found = inspection.status()
        return {**found, "ready": ready, "cluster": cluster}


def _json(status: int, content: dict[str, Any]) -> Response:
    return Response(status, json.dumps(content).encode(), "application/json; charset=utf-8")
