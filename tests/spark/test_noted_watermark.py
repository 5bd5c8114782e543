"""The data directory's note of the last record of its log, before Spark reads the log."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.logs import LogBuilder
from harness.nats import PASSWORD, USER, Nats

from cli.spark.log_location import _logs
from eventstore.datadir import DataDir
from eventstore.errors import CorruptLog
from eventstore.format.events import Acked
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import link_of
from eventstore.log.watermark import Watermark
from eventstore.nats.connection import ConnectionOptions
from eventstore.reading.log_location import LogLocation


@pytest.fixture
def log(new_log: Callable[..., LogBuilder], nats: Nats) -> LogBuilder:
    made = new_log()
    made.record(BrokerStarted("1"))
    for number in range(1, 5):
        made.record(Acked("s", [number]))
    return made.store(nats)


@pytest.fixture
def look_at(log: LogBuilder, nats: Nats, tmp_path: Path) -> Callable[[int, bytes], list[int]]:
    """Opens the log when a record was noted as its last one; gives its bounds."""
    access = ConnectionOptions(urls=(nats.url,), user=USER, password=PASSWORD)
    (DataDir(tmp_path).jetstream / "jetstream" / "$G" / "streams" / log.stream).mkdir(parents=True)

    async def logs() -> list[int]:
        place = LogLocation(access, "here", live=False, named=log.stream, datadir=DataDir(tmp_path))
        async with contextlib.AsyncExitStack() as stack:
            (found,) = await _logs(place, await place.connect(stack))
            return [found.first, found.last]

    def look(sequence: int, link: bytes) -> list[int]:
        Watermark(tmp_path / "log.mark", log.stream).write(sequence, link)
        return asyncio.run(logs())

    return look


def test_the_log_that_was_noted(
    log: LogBuilder, look_at: Callable[[int, bytes], list[int]]
) -> None:
    for sequence in (1, 4, 5):
        assert look_at(sequence, link_of(log.records[sequence - 1])) == [1, 5]


def test_a_log_that_was_rewritten(look_at: Callable[[int, bytes], list[int]]) -> None:
    """Its chain is whole and it is as long, but it is not the one that was acknowledged."""
    with pytest.raises(CorruptLog, match=r"record 4 .*is not the one that was acknowledged"):
        look_at(4, bytes(32))


def test_a_log_that_is_too_short(look_at: Callable[[int, bytes], list[int]]) -> None:
    with pytest.raises(CorruptLog, match="ends before it"):
        look_at(6, bytes(32))


def test_damage_is_left_to_the_reader(
    log: LogBuilder, look_at: Callable[[int, bytes], list[int]], nats: Nats
) -> None:
    log.record(Acked("s", [9]))
    log.damage(6)
    log.store(nats)
    assert look_at(6, bytes(32)) == [1, 6]
