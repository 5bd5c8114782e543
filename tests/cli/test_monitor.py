"""The HTTP server for operators, in the process of the test: access, requests, time limits."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from harness.anonymous import Anonymous
from structlog.testing import capture_logs

from actors.broker.broker import Broker
from actors.kernel.clock import SystemClock
from actors.limits.broker_options import BrokerOptions
from cli.common.units import Address
from cli.serve import monitor_answers as module
from cli.serve.http_monitor import HttpMonitor
from cli.serve.monitor_answers import MAX_CONNECTIONS
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings
from cli.settings.socket_binding import ListenError
from eventstore.errors import LogUnavailable

pytestmark = pytest.mark.system


@contextlib.asynccontextmanager
async def serving(
    monitor: HttpMonitor | None = None, **settings: object
) -> AsyncIterator[tuple[HttpMonitor, int]]:
    """A monitor on a free port."""
    monitor = monitor or HttpMonitor()
    async with contextlib.AsyncExitStack() as stack:
        place = await monitor.serve(
            stack, load_settings({"metrics": "127.0.0.1:0", **settings}, {})
        )
        assert place is not None
        yield monitor, place.port


class Answer:
    """An HTTP answer, taken apart."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value for name, value in (x.split(": ", 1) for x in lines)}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def exchange(port: int, request: bytes) -> bytes:
    """Everything that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def get(port: int, path: str, method: str = "GET", host: str | None = "127.0.0.1") -> Answer:
    named = "" if host is None else f"Host: {host}\r\n"
    request = f"{method} {path} HTTP/1.{0 if host is None else 1}\r\n{named}\r\n"
    return Answer(await exchange(port, request.encode()))


def not_ready(reasons: Callable[[], list[str]]) -> Any:
    """A broker that says why it is not ready."""
    return SimpleNamespace(node=SimpleNamespace(not_ready_reasons=reasons))


class _NoLog:
    """A log that does not answer yet."""

    first = 1
    projections: Any = None

    async def size(self) -> int:
        raise LogUnavailable("not there yet")


async def test_a_broker_that_is_starting_is_alive_and_not_ready() -> None:
    async with serving() as (_, port):
        assert (await get(port, "/healthz")).status == 200
        ready = await get(port, "/readyz")
        assert (ready.status, ready.json) == (503, {"ready": False, "reasons": ["starting"]})
        metrics = await get(port, "/metrics")
        assert metrics.status == 200
        assert "foldmq_ready 0.0" in metrics.body.decode().splitlines()
        assert b"process_resident_memory_bytes" in metrics.body


async def test_a_broker_that_recovers_is_alive_and_not_ready() -> None:
    async with serving() as (monitor, port):
        log = cast("Any", _NoLog())
        broker = Broker(BrokerOptions(node="n"), log, Anonymous(), SystemClock())
        monitor.inspection = broker.inspection
        assert (await get(port, "/healthz")).status == 200
        ready = await get(port, "/readyz")
        assert (ready.status, ready.json["reasons"]) == (503, ["recovering"])
        lines = (await get(port, "/metrics")).body.decode().splitlines()
        assert "foldmq_ready 0.0" in lines
        assert "foldmq_connections 0.0" in lines
        # What is not known yet is not there, rather than nought.
        assert not any(line.startswith("foldmq_log_writable") for line in lines)


async def test_a_broker_that_does_not_listen_yet_is_not_ready() -> None:
    async with serving() as (monitor, port):
        trouble: list[str] = []
        monitor.inspection = not_ready(lambda: trouble)
        assert (await get(port, "/readyz")).json["reasons"] == ["not listening yet"]
        monitor.listening = True
        ready = await get(port, "/readyz")
        assert (ready.status, ready.json) == (200, {"ready": True, "reasons": []})
        trouble[:] = ["stopping", "the log cannot be written: \x1b[2J"]
        ready = await get(port, "/readyz")
        assert (ready.status, ready.json["reasons"]) == (503, trouble)
        assert b"\x1b" not in ready.body


async def test_only_get_and_head_are_answered() -> None:
    async with serving() as (_, port):
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
            answer = await get(port, "/healthz", method)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD"), method
        head = await get(port, "/metrics", "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["content-length"]) > 100


@pytest.mark.parametrize(
    "path",
    [
        "/metrics/",
        "//metrics",
        "/../metrics",
        "/%6detrics",
        "/metrics%00",
        "/METRICS",
        "/metrics/../healthz",
        "/x",
        "/etc/passwd",
    ],
)
async def test_nothing_else_is_found(path: str) -> None:
    async with serving() as (_, port):
        assert (await get(port, path)).status == 404


async def test_a_query_changes_nothing() -> None:
    async with serving() as (_, port):
        assert (await get(port, "/healthz?x=1")).status == 200
        assert (await get(port, "/")).status == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:18831", True),
        ("localhost", True),
        ("[::1]:18831", True),
        ("10.1.2.3:18831", True),  # of a container, or of what forwards the port
        ("[2001:db8::1]", True),
        ("foldmq:18831", True),  # in metrics_hosts
        ("Broker.Example.Com", True),
        (None, True),  # no browser leaves it out
        ("evil.example", False),
        ("evil.example:18831", False),
        ("127.0.0.1.evil.example", False),
        ("foldmq.evil.example", False),
        ("user@127.0.0.1", False),
        ("", False),
    ],
)
async def test_metrics_are_served_only_under_allowed_names(
    host: str | None, *, allowed: bool
) -> None:
    """A browser that a foreign page sends here names that page's host."""
    names = ["foldmq", "broker.example.com"]
    async with serving(metrics_hosts=names) as (_, port):
        metrics = await get(port, "/metrics", host=host)
        assert metrics.status == (200 if allowed else 421)
        assert (b"foldmq_ready" in metrics.body) == allowed
        assert (b"metrics_hosts" in metrics.body) == (not allowed)
        # Health checks do not depend on names; the reasons are only for allowed names.
        assert (await get(port, "/healthz", host=host)).status == 200
        ready = await get(port, "/readyz", host=host)
        reasons = ["starting"] if allowed else []
        assert (ready.status, ready.json) == (503, {"ready": False, "reasons": reasons})


async def test_the_name_in_the_setting_is_allowed() -> None:
    async with serving(metrics="localhost:0") as (_, port):
        assert (await get(port, "/metrics", host="LOCALHOST:1")).status == 200
        assert (await get(port, "/metrics", host="other")).status == 421


async def test_a_second_host_does_not_hide_the_first() -> None:
    async with serving() as (_, port):
        for hosts in (("evil.example", "127.0.0.1"), ("127.0.0.1", "evil.example")):
            lines = "".join(f"Host: {host}\r\n" for host in hosts)
            data = await exchange(port, f"GET /metrics HTTP/1.1\r\n{lines}\r\n".encode())
            assert Answer(data).status in (400, 421)


async def test_refused_host_names_are_logged_at_a_limited_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as (_, port):
        with capture_logs() as lines:
            monkeypatch.setattr(module, "_log", structlog.get_logger("foldmq"))
            for number in range(20):
                assert (await get(port, "/metrics", host=f"evil{number}")).status == 421
    assert [(line["log_level"], line["host"]) for line in lines] == [("warning", "evil0")]


@pytest.mark.parametrize("names", [["a:1"], ["a b"], [""], ["http://a"], ["*"], "a,b:1"])
def test_names_that_cannot_be_allowed(names: object) -> None:
    with pytest.raises(ConfigError, match=r"metrics.hosts = .*host names without a port"):
        load_settings({"metrics_hosts": names}, {})


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"NONSENSE / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 10_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nx",
    ],
)
async def test_malformed_requests_are_refused_and_not_logged(
    request_: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.5)
    async with serving() as (_, port):
        data = await exchange(port, request_)
        assert data == b"" or 400 <= Answer(data).status < 500
        assert b"Traceback" not in data
        assert (await get(port, "/healthz")).status == 200
    assert capsys.readouterr().err == ""


async def test_each_connection_gets_one_answer() -> None:
    async with serving() as (_, port):
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n"
        data = await exchange(port, request * 3)
        assert data.count(b"HTTP/1.1 200") == 1
        assert Answer(data).headers["connection"] == "close"


async def test_connections_that_say_nothing_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.2)
    async with serving() as (_, port):
        for silence in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"):
            # Comes back when the server closes; nothing else would end it.
            assert await exchange(port, silence) == b""


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 3600.0)
    async with serving() as (_, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        assert await exchange(port, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
        reader, writer = idle[0]
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert Answer(await reader.read()).status == 200
        data = b""
        while not data:  # the place of the one that was answered becomes free
            data = await exchange(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert Answer(data).status == 200
        for _, writer in idle:
            writer.close()


async def test_a_client_that_does_not_read_the_answer_blocks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.2)
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await writer.drain()
        assert (await get(port, "/metrics")).status == 200
        del reader
        writer.close()


async def test_a_failure_is_an_answer_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise ValueError("no")

    async with serving() as (monitor, port):
        monitor.inspection = not_ready(fail)
        with capture_logs() as lines:
            structlog.get_logger("foldmq")
            monkeypatch.setattr(module, "_log", structlog.get_logger("foldmq"))
            answer = await get(port, "/readyz")
        assert answer.status == 500
        assert b"ValueError" not in answer.body
        assert lines == [
            {
                "event": "monitoring request failed",
                "error": "ValueError: no",
                "log_level": "error",
            }
        ]


def with_metrics_at(place: Address, *, asked_for: bool) -> Settings:
    settings = load_settings({}, {})
    return Settings.model_construct(
        {"metrics"} if asked_for else set(), **{**settings.model_dump(), "metrics": place}
    )


async def test_a_taken_address_ends_the_start_only_if_it_was_configured() -> None:
    async with serving() as (_, port), contextlib.AsyncExitStack() as stack:
        place = Address("127.0.0.1", port)
        assert await HttpMonitor().serve(stack, with_metrics_at(place, asked_for=False)) is None
        with pytest.raises(ListenError) as caught:
            await HttpMonitor().serve(stack, with_metrics_at(place, asked_for=True))
        assert caught.value.exit_code == 69
        assert str(caught.value) == (
            f"cannot listen on 127.0.0.1:{port} (--metrics): another program is listening there; "
            "stop it or choose another --metrics"
        )


async def test_off_is_off() -> None:
    async with contextlib.AsyncExitStack() as stack:
        assert await HttpMonitor().serve(stack, load_settings({"metrics": "off"}, {})) is None
