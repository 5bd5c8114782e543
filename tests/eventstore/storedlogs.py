"""Logs of numbered records in the store of a data directory."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.waiting import TIMEOUT
from nats.aio.client import Client

from eventstore.datadir import DataDir
from eventstore.encryption import StoreKey
from eventstore.format.event_parsing import Event
from eventstore.format.events import SessionClosed
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
    MessagesCarried,
    SessionSnapshot,
)
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, ChainChecker, encode_record, link_of
from eventstore.log.record_reader import read_records, read_tail
from eventstore.log.watermark import Watermark
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.jetstream import request_stream
from eventstore.nats.log_stream import ensure_stream
from eventstore.server.embedded_server import EmbeddedServer
from projections.state.waiting_queue import waiting

COUNT = 12


def _chained(each: Iterable[tuple[int, Sequence[Any], bytes]], link: bytes) -> list[bytes]:
    """Return records that follow each other, of (number, events, payload)."""
    records: list[bytes] = []
    for number, events, payload in each:
        records.append(
            encode_record(
                previous=link,
                node="n1",
                time_ms=1_700_000_000_000 + number,
                events=events,
                payloads=[payload],
            )
        )
        link = link_of(records[-1])
    return records


def made(count: int = COUNT) -> list[bytes]:
    return _chained(
        (
            (
                number,
                [BrokerStarted(str(number)), SessionClosed("c", "x")],
                b"payload %d" % number * 20,
            )
            for number in range(count)
        ),
        GENESIS,
    )


async def _write(
    folder: Path,
    records: list[bytes],
    noted: int | None,
    first: int,
    log: str,
    key: StoreKey | None,
) -> None:
    with DataDir(folder) as data:
        data.write_private(folder / "node", "n1\n")
        server = EmbeddedServer(data, key=key)
        await server.start()
        client = await connect(
            ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
        )
        await ensure_stream(client, f"FOLDMQ_LOG_{log}", [f"foldmq.log.{log}"])
        await request_stream(client, "", f"STREAM.PURGE.FOLDMQ_LOG_{log}", {"seq": first}, 10)
        for record in records:
            await client.request(f"foldmq.log.{log}", record, timeout=TIMEOUT)
        await disconnect(client)
        await server.stop()
        if noted is not None:
            link = link_of(records[noted - 1]) if noted <= len(records) else GENESIS
            Watermark(folder / "log.mark", f"FOLDMQ_LOG_{log}").write(noted, link)


_KILLED = """
import os, signal, sys
from importlib import import_module
from pathlib import Path
from unittest import mock

place, name, calls, *arguments = sys.argv[1:]
owner = import_module(place)
*parts, last = name.split(".")
for part in parts:
    owner = getattr(owner, part)
original, done = getattr(owner, last), []


def counted(*args, **options):
    done.append(None)
    if len(done) == int(calls):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **options)


from cli.main import main

sys.argv = ["foldmq", *arguments]
with mock.patch.object(owner, last, counted):
    main()
"""


def killed_at(place: str, name: str, calls: int, *arguments: str) -> None:
    """Run a command of foldmq that is killed, as by ``kill -9``, at a call of a function."""
    words = [sys.executable, "-c", _KILLED, place, name, str(calls), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@contextlib.asynccontextmanager
async def opened_for_reading(folder: Path, key: StoreKey | None = None) -> AsyncIterator[Client]:
    with DataDir(folder) as data:
        server = EmbeddedServer(data, key=key)
        await server.start()
        try:
            client = await connect(
                ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
            )
            try:
                yield client
            finally:  # before its server: it would try to reconnect
                await disconnect(client)
        finally:
            await server.stop()


async def _stored(folder: Path, key: StoreKey | None) -> list[bytes]:
    """The links of the records in a directory, in order; the chain is checked."""
    async with opened_for_reading(folder, key) as client:
        tail = await read_tail(client, "FOLDMQ_LOG_n1", "foldmq.log.n1")
        checker, links = ChainChecker(), []
        async for record in read_records(client, "FOLDMQ_LOG_n1", 1, tail.sequence):
            checker.check(record)
            links.append(record.link)
        assert len(links) == tail.sequence
    return links


def write(
    folder: Path,
    records: list[bytes],
    *,
    noted: int | None = None,
    first: int = 1,
    log: str = "n1",
    key: StoreKey | None = None,
) -> list[bytes]:
    """Make a data directory that contains these records; return them."""
    asyncio.run(_write(folder, records, noted, first, log, key))
    return records


def stored(folder: Path, key: StoreKey | None = None) -> list[bytes]:
    return asyncio.run(_stored(folder, key))


def block(folder: Path) -> Path:
    (file,) = folder.rglob("*.blk")
    return file


def flip(folder: Path, record: bytes) -> None:
    """Change a byte in the middle of a stored record."""
    data = bytearray(block(folder).read_bytes())
    data[data.index(record) + len(record) // 2] ^= 0x40
    block(folder).write_bytes(data)


FIRST = 101
LINK = bytes([9]) * 32
NEEDED = position(50, 3)
NEEDY = {
    "generation": 1,
    "subscriptions": [["t", 1]],
    "queues": [[0, 4, [waiting(NEEDED, 1, retain=False)]]],
}
"""A session that needs a message from before the cut."""


def cut_log() -> list[bytes]:
    """Records 101 to 108: a checkpoint in the first, a message carried in 106, the cut in 107."""
    said: dict[int, list[Event]] = {
        101: [
            CheckpointBegun(1),
            SessionSnapshot("needy", NEEDY),
            CheckpointCompleted(1, position(FIRST, 0), 1, 0),
        ],
        106: [MessagesCarried([NEEDED], ["t"], [], 4, 2, 1)],
        107: [LogCut(FIRST, LINK.hex(), 1_700_000_000_000, "keep")],
    }
    return _chained(
        (
            (number, said.get(number, [BrokerStarted(str(number))]), b"..%04d" % number * 20)
            for number in range(FIRST, FIRST + 8)
        ),
        LINK,
    )
