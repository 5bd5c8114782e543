"""The sink postgres behind a proxy that cuts the connection: after each packet, no row twice."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from harness.postgres import POSTGRES, Postgres, row_values

from eventstore.format.positions import position
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain
from outbox.sinks.postgres import PostgresOptions, PostgresSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(POSTGRES is None, reason="PostgreSQL is not installed"),
]


async def never(_position: int) -> None:
    raise AssertionError


ABOUT = Destination("db", "n1", 1, 1, 0, 0, never)


class Cable:
    """A proxy; after some packets, both connections are cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.left: int | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self._cut()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers = [writer, back]
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self.left is not None:
                    if not self.left:
                        self.left = None
                        self._cut()
                        return
                    self.left -= 1
                writer.write(data)
                await writer.drain()
        writer.close()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
def database() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def batch(record: int, count: int) -> list[OutboxMessage]:
    return [
        OutboxMessage(
            *(position(record, index), position(record, index), index + 1, 1000, "t"),
            *(b"%d" % index, 1, False, "c"),
        )
        for index in range(count)
    ]


async def test_a_cut_after_each_packet_loses_and_repeats_nothing(
    database: Postgres, tmp_path: Path
) -> None:
    word = tmp_path / "password"
    word.write_text(database.password)
    cable = Cable(database.port)
    async with cable.opened() as port:
        url = database.url.replace(str(database.port), str(port)) + "?sslmode=disable"
        sink = PostgresSink(PostgresOptions(url, timeout=10.0, password_file=word))
        await sink.open(ABOUT)
        cuts, is_cut = 0, True
        while is_cut:  # until a batch needs no more packets than pass
            cable.left, is_cut = cuts, False
            try:
                await sink.send(batch(1 + cuts, 3))
            except TryAgain:
                cuts, is_cut = cuts + 1, True
            cable.left = None
            await sink.send(batch(cuts + (not is_cut), 3))  # the runner sends it again
            await sink.open(ABOUT)
        await sink.close()
    assert cuts > 4
    rows = database.query("SELECT count(*) FROM mqtt_messages GROUP BY record ORDER BY record")
    assert row_values(rows) == ["3"] * (cuts + 1)


async def test_several_sinks_with_one_table(database: Postgres, tmp_path: Path) -> None:
    """They open at once, as those of several logs do, and may have the same messages."""
    word = tmp_path / "password"
    word.write_text(database.password)
    options = PostgresOptions(database.url, password_file=word)
    sinks = [PostgresSink(options) for _ in range(8)]

    async def open_in_time(number: int, sink: PostgresSink) -> None:
        about = replace(ABOUT, name=f"db{number}")
        for _ in range(20):
            with contextlib.suppress(TryAgain):
                await sink.open(about)
                return

    await asyncio.gather(*(open_in_time(*each) for each in enumerate(sinks)))
    await sinks[0].send(batch(1, 3))
    for sink in sinks[1:]:
        with pytest.raises(RefusedMessages):
            await sink.send(batch(1, 3))
        for message in batch(1, 3):  # as the runner halves them
            await sink.send([message])
    for sink in sinks:
        await sink.close()
    assert row_values(database.query("SELECT count(*) FROM mqtt_messages")) == ["3"]
    cursors = database.query("SELECT DISTINCT through FROM foldmq_cursor")
    assert row_values(cursors) == [str(position(1, 2))]
