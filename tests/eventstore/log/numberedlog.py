"""A journal that writes numbered events to a real stream, and the helpers of its tests."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from harness.waiting import happens
from nats.aio.client import Client

from eventstore.errors import EventStoreError
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import GENESIS, ChainChecker, encode_record, link_of
from eventstore.log.jetstream_log import Appended, EventLog
from eventstore.log.journal import Journal
from eventstore.log.keyed_store import KeyedStore
from eventstore.log.log_writer import LogWriter
from eventstore.log.pending_record import GatedOutput
from eventstore.log.record_reader import LogTail, read_records, read_tail
from eventstore.log.watermark import Watermark
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.log_stream import ensure_stream
from eventstore.server.embedded_server import EmbeddedServer

STREAM, SUBJECT = "FOLDMQ_LOG_a", "foldmq.log.a"


class RealClock:
    def steady_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class Acknowledged:
    """Where effects go: what was acknowledged, in order."""

    def __init__(self) -> None:
        self.waits_for: GatedOutput | None = None
        self.gated = 0
        self.numbers: list[int] = []

    def write(self, data: bytes) -> None:
        self.numbers += [int(word) for word in data.split()]


class Writing:
    """A journal that writes numbered events to a real stream."""

    def __init__(self, nc: DirectClient, journal: Journal, log: EventLog, fatal: list[Any]) -> None:
        self.nc = nc
        self.journal = journal
        self.log = log
        self.fatal = fatal
        self.sink = Acknowledged()
        self.next = 0

    @property
    def writer(self) -> LogWriter:
        assert self.log._writer is not None
        return self.log._writer

    def put(self, count: int = 1, padding: int = 0) -> None:
        """One turn with this many numbered events, each acknowledged by an effect."""
        for _ in range(count):
            body = b"%d " % self.next + b"x" * padding
            event = MessagePublished("c", 1, False, ["t"], [], [1], len(body), 0, 1)
            self.journal.append(event, 1, [body], len(body))
            self.journal.send_when_durable(self.sink, b"%d " % self.next)
            self.next += 1
        self.journal.end_turn()

    async def settled(self) -> None:
        await happens(lambda: self.journal.idle or self.fatal)
        assert self.fatal == []

    async def stored(self) -> list[int]:
        """The numbers in the log; its chain is checked."""
        found, checker = [], ChainChecker()
        tail = await read_tail(self.nc, STREAM, SUBJECT)
        async for record in read_records(self.nc, STREAM, 1, tail.sequence):
            checker.check(record)
            found += [
                int(bytes(record.payload[e.at : e.at + e.sizes]).split()[0])
                for _, e in record.events()
                if isinstance(e, MessagePublished)
            ]
        assert (checker.sequence, checker.link) == (tail.sequence, tail.link)
        return found

    async def load(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.put(3)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def client_of(server: EmbeddedServer, **notices: Any) -> AsyncIterator[DirectClient]:
    options = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    client = await connect(options, **notices)
    try:
        yield client
    finally:
        await disconnect(client)


@asynccontextmanager
async def writing(
    server: EmbeddedServer,
    *,
    watermark: Watermark | None = None,
    replicas: int = 1,
    **options: int,
) -> AsyncIterator[Writing]:
    logs: list[EventLog] = []
    fatal: list[EventStoreError] = []
    async with client_of(
        server, on_disconnect=lambda: [held.connection_lost() for held in logs]
    ) as nc:
        await ensure_stream(nc, STREAM, [SUBJECT])
        log = EventLog(
            nc,
            STREAM,
            SUBJECT,
            projections=KeyedStore(nc, "STATE", "state."),
            watermark=watermark,
            replicas=replicas,
        )
        tail = await log.tail()
        writer = log.writer(RealClock(), fatal.append)
        journal = Journal(
            writer,
            RealClock(),
            node="a",
            sequence=tail.sequence,
            link=tail.link,
            max_record=options.pop("max_record", 1 << 20),
            **options,
        )
        await writer.start(journal)
        logs.append(log)
        try:
            yield Writing(nc, journal, log, fatal)
        finally:
            logs.clear()
            await writer.stop()


async def append_behind(nc: Any, tail: LogTail, data: bytes) -> Appended:
    log = EventLog(nc, STREAM, SUBJECT, projections=KeyedStore(nc, "STATE", "state."))
    return await log.append_behind(tail, data)


async def api(nc: Client, method: str, body: object = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    reply = await nc.request(f"$JS.API.{method}", data, timeout=10)
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


def record(previous: bytes, software: str, payload: bytes = b"") -> bytes:
    return encode_record(
        previous=previous, node="a", time_ms=1, events=[BrokerStarted(software)], payloads=[payload]
    )


async def filled(nc: Client, sizes: list[int]) -> list[bytes]:
    """A stream with records of about these sizes; returns them."""
    await ensure_stream(nc, STREAM, [SUBJECT])
    made, link = [], GENESIS
    for number, size in enumerate(sizes):
        made.append(record(link, str(number), b"x" * size))
        link = link_of(made[-1])
        await nc.publish(SUBJECT, made[-1])
    await happens_in(nc, len(made))
    return made


async def happens_in(nc: Client, count: int) -> None:
    """Wait until the stream has so many records."""
    while (await api(nc, f"STREAM.INFO.{STREAM}"))["state"]["last_seq"] < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def given_up(own: Writing) -> EventStoreError:
    """The error with which writing ends; nothing is acknowledged or reported afterwards."""
    await happens(lambda: own.fatal)
    acknowledged = list(own.sink.numbers)
    own.put(1)
    await asyncio.sleep(0.1)
    (error,) = own.fatal
    assert own.sink.numbers == acknowledged
    assert isinstance(error, EventStoreError)
    return error
