"""The HTTP API: messages published over it, in lines of NDJSON and one in each request."""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from bench.brokers.broker_processes import BenchError, Foldmq, cpu_of_all, logged, running
from bench.loads.recovery_loads import SETTLED, work_directory
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import report
from bench.measuring.rows import Row, own_rows
from cli.web.own_token import cookie_of
from cli.web.tokens import TOKENS_FILE, mark_of

TOKENS = 100
"""Tokens that take turns: each may send 100 requests at once, and 20 a second."""
LINES, LINES_AT_ONCE = 200_000, 1000
SINGLY = 6_000
_CONNECTIONS_LINES, _CONNECTIONS_SINGLY = 4, 32
_MESSAGE = {"topic": "bench/0", "payload": "x" * 100}

PUBLISH = (
    Metric("NDJSON", "messages/s", value("lines_per_s"), (Target(20_000, aim=True),)),
    Metric("NDJSON, CPU of all processes", "us/message", value("lines_us")),
    Metric("singly", "messages/s", value("singly_per_s"), (Target(1_500, aim=True),)),
    Metric("singly, CPU of all processes", "us/message", value("singly_us")),
)


class _Page(NamedTuple):
    """Where messages are published."""

    url: str
    pid: int
    secrets: list[str]


def measure_publish(options: argparse.Namespace) -> list[Row]:
    """Measure how many messages the API publishes in a second at QoS 1, with a receipt each."""
    part = 10 if options.quick else 1
    runs: list[dict[str, Any]] = []
    for repetition in range(options.rounds):
        with work_directory(options) as work:
            secrets = _make_tokens(work / "data")
            with running(Foldmq, work) as server:
                ready = logged(server.log, "ready")
                if ready is None or ready["web"] is None:
                    raise BenchError("foldmq serves no API")
                page = _Page(f"{ready['web'].rstrip('/')}/api/v1/messages", server.pid, secrets)
                time.sleep(SETTLED)
                result = asyncio.run(_publish_lines(page, LINES // part))
                result |= asyncio.run(_publish_singly(page, SINGLY // part))
        runs.append(result)
        report("api-publish", f"{repetition + 1}/{options.rounds}", PUBLISH, result)
    return own_rows("api-publish", PUBLISH, runs, quick=options.quick)


def _make_tokens(data: Path) -> list[str]:
    """Write the file of tokens that may publish; return them."""
    data.mkdir(parents=True)
    secrets = [f"bench-token-{number}" for number in range(TOKENS)]
    marks = [mark_of(cookie_of(secret)) for secret in secrets]
    lines = [f"bench{number} publish never {mark}\n" for number, mark in enumerate(marks)]
    (data / TOKENS_FILE).write_text("".join(lines))
    return secrets


async def _publish_lines(page: _Page, messages: int) -> dict[str, Any]:
    line = json.dumps(_MESSAGE).encode() + b"\n"
    body, left = line * LINES_AT_ONCE, iter(range(messages // LINES_AT_ONCE))

    async def send(client: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        headers = {**headers, "Content-Type": "application/x-ndjson"}
        async with client.post(page.url, data=body, headers=headers) as answer:
            receipts = await answer.read()
            if answer.status != 200 or receipts.count(b'"position"') != LINES_AT_ONCE:
                raise BenchError(f"lines were refused: {answer.status}, {receipts[:200]!r}")

    return await _timed(page, "lines", messages, _CONNECTIONS_LINES, left, send)


async def _publish_singly(page: _Page, messages: int) -> dict[str, Any]:
    body = json.dumps(_MESSAGE).encode()

    async def send(client: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        headers = {**headers, "Content-Type": "application/json"}
        async with client.post(page.url, data=body, headers=headers) as answer:
            receipt = await answer.read()
            if answer.status != 201:
                raise BenchError(f"a message was refused: {answer.status}, {receipt!r}")

    left = iter(range(messages))
    return await _timed(page, "singly", messages, _CONNECTIONS_SINGLY, left, send)


async def _timed(
    page: _Page,
    kind: str,
    messages: int,
    connections: int,
    left: Iterator[int],
    send: Callable[[aiohttp.ClientSession, dict[str, str]], Awaitable[None]],
) -> dict[str, Any]:
    """Send a request for each of ``left`` over some connections; return rate and processor time."""
    turns = count()

    async def work(client: aiohttp.ClientSession) -> None:
        for _ in left:
            secret = page.secrets[next(turns) % len(page.secrets)]
            await send(client, {"Authorization": f"Bearer {secret}"})

    async with aiohttp.ClientSession() as client:
        before, started = cpu_of_all(page.pid), time.perf_counter()
        await asyncio.gather(*(work(client) for _ in range(connections)))
        seconds, used = time.perf_counter() - started, cpu_of_all(page.pid) - before
    return {f"{kind}_per_s": messages / seconds, f"{kind}_us": used * 1e6 / messages}


API_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {"api-publish": measure_publish}
"""Loads by name."""
