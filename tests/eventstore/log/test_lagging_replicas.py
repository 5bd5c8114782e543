"""Answers of a lagging replica, and of a replaced leader, do not count as damage."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from harness.waiting import happens
from nats.aio.client import Client
from numberedlog import STREAM, SUBJECT, Writing, api, filled, given_up, writing

from eventstore.errors import CorruptLog, Fenced, LogUnavailable
from eventstore.log import log_writer
from eventstore.log.log_writer import WaitTimes, wait_times
from eventstore.log.record_reader import read_records, read_some, read_tail
from eventstore.nats.direct_client import DirectClient
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system


@pytest_asyncio.fixture
async def own(server: EmbeddedServer) -> AsyncIterator[Writing]:
    async with writing(server) as made:
        yield made


class Behind:
    """Makes direct gets of a connection those of a replica that ends before a sequence."""

    def __init__(self, nc: Client, monkeypatch: pytest.MonkeyPatch, lacks: int) -> None:
        self.refused = 0
        """Direct gets that were answered with 404."""
        self._lacks = lacks
        request, publish = nc.request, nc.publish

        async def asked(subject: str, body: bytes = b"", **options: Any) -> Any:
            return await request(subject, self._changed(subject, body), **options)

        async def published(subject: str, body: bytes = b"", **options: Any) -> None:
            await publish(subject, self._changed(subject, body), **options)

        monkeypatch.setattr(nc, "request", asked)
        monkeypatch.setattr(nc, "publish", published)

    def _changed(self, subject: str, body: bytes) -> bytes:
        """Ask for what no replica has, in place of what this one lacks."""
        if ".DIRECT.GET." not in subject:
            return body
        wanted = json.loads(body)
        if wanted["seq"] >= self._lacks:
            self.refused += 1
            wanted["seq"] += 1000
        elif "batch" in wanted:
            wanted["batch"] = min(wanted["batch"], self._lacks - wanted["seq"])
        return json.dumps(wanted).encode()


@pytest.mark.parametrize("lacks", [1, 3, 5])
async def test_a_lagging_replica_is_not_damage(
    nc: DirectClient, monkeypatch: pytest.MonkeyPatch, lacks: int
) -> None:
    await filled(nc, [1] * 5)
    expected = [one.link async for one in read_records(nc, STREAM, 1, 5)]
    behind = Behind(nc, monkeypatch, lacks)
    assert [one.link async for one in read_records(nc, STREAM, 1, 5)] == expected
    (only,) = await read_some(nc, STREAM, [5])
    assert only.link == expected[-1]
    assert (await read_tail(nc, STREAM, SUBJECT)).link == expected[-1]
    assert behind.refused >= 3


async def test_records_that_the_leader_lacks_are_missing(
    nc: DirectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(nc, [1] * 5)
    await api(nc, f"STREAM.MSG.DELETE.{STREAM}", {"seq": 4})
    Behind(nc, monkeypatch, 3)
    found = [one.sequence async for one in read_records(nc, STREAM, 1, 5)]
    assert found == [1, 2, 3, 5]
    with pytest.raises(CorruptLog, match="record 4 is not in stream"):
        await read_some(nc, STREAM, [4])


@pytest.mark.parametrize("place", [7, None])
async def test_an_acknowledgement_with_another_sequence_is_rejected(
    own: Writing, place: int | None
) -> None:
    own.put(2)
    await own.settled()
    writer = own.writer
    own.put(2)
    writer._on_reply("inbox.0.2", json.dumps({"stream": STREAM, "seq": place}).encode())
    assert isinstance(await given_up(own), Fenced)
    assert own.sink.numbers == [0, 1]


async def test_acknowledgements_that_come_again_change_nothing(own: Writing) -> None:
    writer = own.writer
    for sequence in (1, 2):
        own.put(1)
        await own.settled()
        for again in (sequence, 1):
            writer._on_reply(f"inbox.0.{again}", json.dumps({"seq": again}).encode())
    own.put(2)
    await own.settled()
    assert own.sink.numbers == [0, 1, 2, 3]
    assert await own.stored() == [0, 1, 2, 3]


def test_replicas_leave_time_for_an_election() -> None:
    """It takes up to 9 s from the death of a leader, and 12 s is what may be waited."""
    waits = wait_times(3)
    assert waits.look_most + waits.retry_most + waits.room <= 2
    assert waits.ack + log_writer._WATCH_EVERY + waits.look <= 5
    assert wait_times(1).server is None


async def test_one_answer_that_is_behind_does_not_end_the_broker(
    own: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_info, looks = log_writer.read_info, []

    async def old_leader(*of: Any) -> dict[str, Any]:
        info = await read_info(*of)
        looks.append(info["state"]["last_seq"])
        if len(looks) in (1, 2):
            info["state"]["last_seq"] = 0
        return info

    own.put(3)
    await own.settled()
    monkeypatch.setattr(log_writer, "read_info", old_leader)
    monkeypatch.setattr(log_writer, "_INSPECT_EVERY", 0.2)
    monkeypatch.setattr(log_writer, "VERDICT_EVERY", 0.05)
    await happens(lambda: len(looks) > 4)
    assert own.fatal == []
    own.put(1)
    await own.settled()


@pytest.mark.parametrize("answers", [1, 2])
async def test_answers_of_a_leader_that_was_replaced(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """One that was cut off answers as before for a moment when it is back."""
    monkeypatch.setattr(log_writer, "VERDICT_EVERY", 0.05)
    async with writing(server, replicas=3) as made:
        made.put(1)
        await made.settled()
        old = await read_tail(made.nc, STREAM, SUBJECT)
        made.put(1)
        await made.settled()
        read_now, looks = log_writer.read_tail, []

        async def old_leader(*of: Any) -> Any:
            looks.append(of)
            return old if len(looks) <= answers else await read_now(*of)

        monkeypatch.setattr(log_writer, "read_tail", old_leader)
        made.log.connection_lost()
        made.put(1)
        await made.settled()
        assert made.sink.numbers == [0, 1, 2]
        assert len(looks) == answers + 1


async def test_a_server_that_answers_nothing_is_left(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be cut off from the others, and the connection to it does not show that."""
    async with writing(server, replicas=3) as made:
        made.writer.waits = WaitTimes(0.12, 0.05, 0.05, retry_most=0.25, room=0.1, server=0.1)
        left = asyncio.Event()
        read_now, change = log_writer.read_tail, made.nc.change_server

        async def cut_off(*of: Any) -> Any:
            if left.is_set():
                return await read_now(*of)
            raise LogUnavailable("stream does not answer")

        async def changed() -> None:
            left.set()
            await change()

        monkeypatch.setattr(log_writer, "read_tail", cut_off)
        monkeypatch.setattr(made.nc, "change_server", changed)
        made.log.connection_lost()
        made.put(3)
        await made.settled()
        assert left.is_set()
        assert made.sink.numbers == [0, 1, 2]


async def test_no_record_is_sent_to_a_server_that_is_too_old(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reconnect it may be any of the cluster."""
    async with writing(server, replicas=3) as made:
        writer = made.writer
        with monkeypatch.context() as old:
            old.setattr(type(made.nc), "connected_server_version", "2.14.6")
            made.log.connection_lost()
            made.put(1)
            await happens(lambda: "is version 2.14.6" in (writer.outage or ""))
            assert made.sink.numbers == []
        await made.settled()
        assert made.sink.numbers == [0]
