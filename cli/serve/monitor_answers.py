"""The responses of the monitoring port: ``/metrics`` (Prometheus), ``/healthz`` and ``/readyz``.

They never block the loop: metrics are written in slices. Each connection gets one response within a
few seconds.

A request under another host name (see ``cli.common.allowed_hosts``) gets neither metrics nor
reasons, but still health and readiness: they reveal nothing to a foreign web page, and a health
check that failed because of a host name would restart a healthy broker.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from actors.inspection.status_metrics import METRICS
from cli.common.allowed_hosts import Hosts
from cli.serve.http_monitor import HttpMonitor
from eventstore import metric_types
from eventstore.display import escaped
from eventstore.metric_types import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def families(status: Status) -> Iterator[Metric]:
    """Yield the metrics of a status one by one, without those that are unknown yet."""
    for metric in METRICS:
        reading = metric.reading(status)
        if reading is not None:
            yield _family(metric, reading)


def process_families() -> list[Metric]:
    """Return the standard metrics of a process: memory, processor time, open files.

    Reads files and lists all open ones: not for the event loop.
    """
    return list(ProcessCollector(registry=None).collect())


def text(family: Metric) -> bytes:
    """Return one metric in Prometheus' text format."""
    return generate_latest(_SingleMetric(family))


class _SingleMetric(Collector):
    """A registry for prometheus_client with one metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        return (self._family,)


def _family(metric: metric_types.Metric, reading: Any) -> Metric:
    if metric.kind == "histogram":
        return HistogramMetricFamily(
            metric.name, metric.help, buckets=_buckets(reading), sum_value=reading["sum"]
        )
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    if not metric.labels:
        return make(metric.name, metric.help, value=reading)
    family = make(metric.name, metric.help, labels=metric.labels)
    for values, number in reading.items():
        family.add_metric(values, number)
    return family


def _buckets(histogram: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return upper bounds with the number of values up to each."""
    bounds = [*(repr(float(bound)) for bound in histogram["bounds"]), "+Inf"]
    return list(zip(bounds, accumulate(histogram["counts"]), strict=True))


_log = structlog.get_logger("foldmq")

MAX_CONNECTIONS = 128
LONGEST = 10.0
"""Maximum duration of a connection in seconds."""
_LONGEST_LINE = 4096
"""Maximum length of the request line and of each header."""
_GRACE = 0.1
"""Seconds for responses at the end; aiohttp waits without limit for 0."""
_SLICE = 0.0005
"""Seconds of writing metrics before other tasks run."""
_REFUSAL_EVERY = 60.0
"""Seconds between log lines about a host name that is not allowed."""
_INDEX = "foldmq: /metrics for Prometheus, /healthz, /readyz\n"

# Malformed HTTP requests do not belong into the broker's log.
_quiet = logging.getLogger("foldmq.http")
_quiet.setLevel(logging.CRITICAL + 1)


class MonitorServer:
    """Answers requests of the monitoring port."""

    def __init__(self, monitor: HttpMonitor, hosts: Hosts) -> None:
        self._monitor = monitor
        self._hosts = hosts
        self._refusal_told = -_REFUSAL_EVERY
        self._http = web.Server(
            self._answer,
            access_log=None,
            logger=_quiet,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
            lingering_time=0,
        )
        self._servers: list[asyncio.Server] = []

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Answer the connections that come at sockets."""
        loop = asyncio.get_running_loop()
        for listener in sockets:
            self._servers.append(await loop.create_server(self._accept, sock=listener))

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._http.connections) >= MAX_CONNECTIONS:
            return _Refusal()
        handler = self._http()
        asyncio.get_running_loop().call_later(LONGEST, _cut, handler)
        return handler

    async def close(self) -> None:
        """Close the sockets and all connections."""
        for server in self._servers:
            server.close()
        for handler in self._http.connections:
            _cut(handler)
        await self._http.shutdown(_GRACE)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._respond(request)
        except Exception as error:  # noqa: BLE001 - the client and the log get it
            _log.error("monitoring request failed", error=f"{type(error).__name__}: {error}")
            response = web.Response(status=500, text="failed, see the log of the broker\n")
        response.headers["Server"] = "foldmq"
        # One response per connection: no idle connection delays the end.
        response.force_close()
        return response

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        path = request.rel_url.raw_path
        # A client that sends no Host is not a browser.
        foreign = [
            host for host in request.headers.getall("Host", []) if not self._hosts.allows(host)
        ]
        if path == "/metrics" and foreign:
            return self._misdirected(foreign[0])
        if path == "/metrics":
            return web.Response(body=await self._metrics(), headers={"Content-Type": CONTENT_TYPE})
        if path == "/healthz":
            return web.json_response({"alive": True})
        if path == "/readyz":
            trouble = self._monitor.not_ready_reasons()
            fields: dict[str, Any] = {"ready": not trouble, "reasons": [] if foreign else trouble}
            if self._monitor.member is not None and not foreign:
                fields |= self._monitor.member.state
            return web.json_response(fields, status=503 if trouble else 200)
        return web.Response(status=200 if path == "/" else 404, text=_INDEX)

    def _misdirected(self, host: str) -> web.Response:
        now = time.monotonic()
        if now - self._refusal_told >= _REFUSAL_EVERY:
            self._refusal_told = now
            _log.warning(
                "metrics refused: the host name is not in metrics_hosts", host=escaped(host, 80)
            )
        text = (
            "foldmq: metrics are not served under this host name; use the IP address, or add "
            "the name to metrics_hosts"
        )
        return web.Response(status=421, text=text)

    async def _metrics(self) -> bytes:
        """Write the metrics in slices."""
        status = await self._monitor.status()
        clock = time.perf_counter
        parts: list[bytes] = []
        began = clock()
        for family in families(status):
            parts.append(text(family))
            if clock() - began > _SLICE:
                await asyncio.sleep(0)
                began = clock()
        parts += map(text, await asyncio.to_thread(process_families))
        return b"".join(parts)


class _Refusal(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection."""
        transport.close()


def _cut(handler: web.RequestHandler) -> None:
    """End a connection, whether or not its response was read."""
    if handler.transport is not None:
        handler.transport.abort()
