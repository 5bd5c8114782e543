"""Conditional append behind a known end of the log: of several nodes that try, one leads."""

import asyncio
from typing import Any

import nats.errors
import orjson
import pytest
from harness.waiting import happens
from numberedlog import STREAM, SUBJECT, client_of, record, writing
from numberedlog import append_behind as behind

from eventstore.errors import Fenced
from eventstore.format.records import decode_record
from eventstore.log.jetstream_log import Appended
from eventstore.log.record_reader import LogTail, read_tail
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.jetstream import WRONG_LAST_SEQUENCE
from eventstore.nats.log_stream import ensure_stream
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system


async def begun(nc: Any, count: int) -> list[LogTail]:
    """A log with this many records, as writers store them: the ends that it had."""
    await ensure_stream(nc, STREAM, [SUBJECT])
    ends = [await read_tail(nc, STREAM, SUBJECT)]
    for number in range(count):
        data = record(ends[-1].link, str(number))
        assert await behind(nc, ends[-1], data) is Appended.STORED
        ends.append(LogTail.of(decode_record(number + 1, data)))
    return ends


async def test_it_is_stored_behind_the_end_and_nowhere_else(nc: DirectClient) -> None:
    *_, early, tail = await begun(nc, 2)
    data = record(tail.link, "next")
    late = LogTail(3, tail.link)
    assert await behind(nc, early, data) is Appended.REFUSED
    assert await behind(nc, late, data) is Appended.REFUSED
    assert await behind(nc, tail, data) is Appended.STORED
    assert await read_tail(nc, STREAM, SUBJECT) == LogTail.of(decode_record(3, data))


async def test_of_many_that_try_at_once_one_is_stored(nc: DirectClient) -> None:
    *_, tail = await begun(nc, 1)
    tries = [behind(nc, tail, record(tail.link, str(number))) for number in range(20)]
    found = await asyncio.gather(*tries)
    assert sorted(one.name for one in found) == ["REFUSED"] * 19 + ["STORED"]


async def test_the_previous_writer_is_fenced(server: EmbeddedServer) -> None:
    async with writing(server) as own, client_of(server) as other:
        own.put(2)
        await own.settled()
        tail = await read_tail(other, STREAM, SUBJECT)
        assert await behind(other, tail, record(tail.link, "other")) is Appended.STORED
        own.put(2)
        await happens(lambda: own.fatal)
        assert isinstance(own.fatal[0], Fenced)
        assert own.sink.numbers == [0, 1]


class Answering:
    """A connection on which appends are answered, or stored, as a test says."""

    def __init__(self, nc: Any, *answers: Any) -> None:
        self._nc = nc
        self._answers = list(answers)
        self.new_inbox = nc.new_inbox
        self.api_prefix = nc.api_prefix

    async def request(self, subject: str, data: bytes, timeout: float, **more: Any) -> Any:  # noqa: ASYNC109 - as in nats-py
        if subject != SUBJECT or not self._answers:
            return await self._nc.request(subject, data, timeout=timeout, **more)
        answer = self._answers.pop(0)
        if answer == "lost":
            raise nats.errors.TimeoutError
        if answer == "stored, not heard":
            await self._nc.request(subject, data, timeout=timeout, **more)
            raise nats.errors.TimeoutError
        if answer == "other":
            await self._nc.request(subject, record(b"\0" * 32, "other"), timeout=timeout)
            raise nats.errors.NoRespondersError
        return type("Reply", (), {"data": orjson.dumps(answer)})


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        (["stored, not heard"], Appended.STORED),
        (["lost"], Appended.STORED),
        (["lost", "stored, not heard"], Appended.STORED),
        (["other"], Appended.REFUSED),
        (["lost", "lost", "lost"], Appended.UNKNOWN),
        ([{"error": {"err_code": WRONG_LAST_SEQUENCE}}], Appended.REFUSED),
        ([{"error": {"err_code": 10077}}] * 3, Appended.UNKNOWN),
        ([{"stream": STREAM, "seq": 7}], Appended.REFUSED),
    ],
    ids=str,
)
async def test_the_result_of_an_append_is_determined(
    nc: DirectClient, answers: list[Any], outcome: Appended
) -> None:
    *_, tail = await begun(nc, 1)
    data = record(tail.link, "next")
    assert await behind(Answering(nc, *answers), tail, data) is outcome
