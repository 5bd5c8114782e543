"""The log over a real NATS server that is killed, paused, cut off and tampered with."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness.waiting import TIMEOUT, happens
from nats.errors import AuthorizationError
from numberedlog import (
    STREAM,
    SUBJECT,
    Writing,
    api,
    client_of,
    filled,
    given_up,
    record,
    writing,
)

from eventstore.datadir import DataDir
from eventstore.errors import CorruptLog, EventStoreError, Fenced, LogUnavailable, LostLog, NodeBusy
from eventstore.format.records import GENESIS, ChainChecker, link_of
from eventstore.log import jetstream_log, log_writer, record_reader
from eventstore.log.jetstream_log import EventLog
from eventstore.log.keyed_store import KeyedStore
from eventstore.log.record_reader import read_records, read_some, read_tail
from eventstore.log.watermark import Watermark
from eventstore.nats import jetstream, log_stream
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.log_stream import ensure_stream, lock_node
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system


@pytest_asyncio.fixture
async def own(server: EmbeddedServer) -> AsyncIterator[Writing]:
    async with writing(server) as made:
        yield made


# ------------------------------------------------------------------ writing


async def test_appended_records_are_acknowledged_and_read_back(own: Writing) -> None:
    for _ in range(50):
        own.put(4)
        await asyncio.sleep(0)
    await own.settled()
    assert own.sink.numbers == list(range(200))
    assert await own.stored() == list(range(200))


async def test_a_restart_continues_the_log(server: EmbeddedServer) -> None:
    async with writing(server) as first:
        first.put(3)
        await first.settled()
    async with writing(server) as second:
        assert second.journal.durable == 1
        second.next = 3
        second.put(2)
        await second.settled()
        assert await second.stored() == [0, 1, 2, 3, 4]


async def test_a_turn_over_several_records(server: EmbeddedServer) -> None:
    async with writing(server, max_record=5000) as own:
        own.put(20, padding=1000)
        await own.settled()
        assert own.sink.numbers == list(range(20))
        assert await own.stored() == list(range(20))
        records = [record async for record in own.log.read(1, own.journal.durable)]
    assert [record.part for record in records] == list(range(len(records)))
    assert [record.last for record in records] == [False] * (len(records) - 1) + [True]


@pytest.mark.parametrize("times", [1, 3])
async def test_server_killed_with_records_in_flight(
    own: Writing, server: EmbeddedServer, times: int
) -> None:
    """All that was appended is there once, whatever of it had been stored before the kill."""
    for _ in range(times):
        await own.load(0.2)
        pid = server.pid
        own.put(3)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await own.load(0.1)
        await happens(lambda: server.pid not in (None, pid))  # noqa: B023 - awaited at once
    await own.settled()
    assert own.sink.numbers == list(range(own.next))
    assert await own.stored() == list(range(own.next))


async def test_connection_cut(own: Writing) -> None:
    for _ in range(3):
        await own.load(0.1)
        transport = own.nc._transport
        assert transport is not None
        own.put(3)
        transport._io_writer.transport.abort()  # type: ignore[attr-defined] # nats-py's TCP one
        await own.load(0.1)
    await own.settled()
    assert own.sink.numbers == list(range(own.next))
    assert await own.stored() == list(range(own.next))


async def test_server_paused(own: Writing, server: EmbeddedServer) -> None:
    """No answer comes: appends are looked into and repeated, and stored once all the same."""
    own.writer.waits.ack = 0.5
    await own.load(0.1)
    await own.settled()
    assert server.pid is not None
    before = own.next
    os.kill(server.pid, signal.SIGSTOP)
    try:
        # A process continues for a moment until a signal arrives.
        status = Path(f"/proc/{server.pid}/stat")
        await happens(lambda: not status.exists() or status.read_text().rsplit(") ")[-1][0] == "T")
        await own.load(0.3)
        writer = own.writer
        await happens(lambda: writer.outage)
        assert writer.outage == "no answer from JetStream for more than 0.5 s"
        await asyncio.sleep(0.3)
        assert own.sink.numbers == list(range(before)), "nothing is acknowledged meanwhile"
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await own.settled()
    await happens(lambda: writer.outage is None)
    assert own.sink.numbers == list(range(own.next))
    assert await own.stored() == list(range(own.next))


async def test_missing_answers(own: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is stored but its acknowledgement is lost."""
    own.writer.waits.ack = 0.2
    writer = own.writer
    with monkeypatch.context() as deaf:
        deaf.setattr(writer, "_committed", lambda _sequence: None)
        own.put(3)
        await happens(lambda: writer.outage)
    own.put(3)
    await own.settled()
    assert own.sink.numbers == list(range(6))
    assert await own.stored() == list(range(6))


# --------------------------------------------- what can never be put right


async def test_second_writer_is_fenced_off(server: EmbeddedServer, own: Writing) -> None:
    own.put(3)
    await own.settled()
    async with writing(server) as other:
        other.put(2)
        await other.settled()
        own.put(2)
        error = await given_up(own)
        assert isinstance(error, Fenced)
        assert own.sink.numbers == [0, 1, 2]
        other.put(2)
        await other.settled()
        assert await other.stored() == [0, 1, 2, 0, 1, 2, 3]


async def test_two_writers_at_once(server: EmbeddedServer, own: Writing) -> None:
    """Whichever writer loses, records acknowledged by either exist."""
    async with writing(server) as other:
        other.next = 1000
        own.put(3)
        other.put(3)
        await happens(lambda: own.fatal or other.fatal)
        loser, winner = (own, other) if own.fatal else (other, own)
        assert isinstance(await given_up(loser), Fenced)
        await winner.settled()
        stored = await winner.stored()
        assert sorted(stored) == sorted(own.sink.numbers + other.sink.numbers)


async def test_stream_deleted_while_in_use(own: Writing) -> None:
    own.put(3)
    await own.settled()
    await api(own.nc, f"STREAM.DELETE.{STREAM}")
    own.put(3)
    assert isinstance(await given_up(own), LostLog)
    assert own.sink.numbers == [0, 1, 2]


async def test_stream_deleted_and_created_again(own: Writing) -> None:
    for _ in range(3):
        own.put()
        await own.settled()
    await api(own.nc, f"STREAM.DELETE.{STREAM}")
    await ensure_stream(own.nc, STREAM, [SUBJECT])
    own.put(3)
    error = await given_up(own)
    assert isinstance(error, CorruptLog)
    assert error.sequence == 1


async def test_another_log_of_the_same_length(own: Writing) -> None:
    """An append would be accepted, and the log would be no chain."""
    own.put()
    await own.settled()
    await api(own.nc, f"STREAM.DELETE.{STREAM}")
    await ensure_stream(own.nc, STREAM, [SUBJECT])
    await own.nc.request(SUBJECT, record(GENESIS, "other"), timeout=TIMEOUT)
    own.log.connection_lost()
    error = await given_up(own)
    assert str(error).startswith("the log is damaged: record 1 is not the one that was stored")


async def test_stream_emptied_while_in_use(own: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends still succeed, because the last sequence stays: the log must be checked."""
    monkeypatch.setattr(log_writer, "_INSPECT_EVERY", 0.2)
    monkeypatch.setattr(log_writer, "VERDICT_EVERY", 0.05)
    own.put(3)
    await own.settled()
    await api(own.nc, f"STREAM.PURGE.{STREAM}")
    error = await given_up(own)
    assert isinstance(error, CorruptLog)
    assert error.sequence == 1


async def test_stream_deleted_while_nothing_is_written(
    own: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_INSPECT_EVERY", 0.2)
    monkeypatch.setattr(log_writer, "VERDICT_EVERY", 0.05)
    own.put(3)
    await own.settled()
    await api(own.nc, f"STREAM.DELETE.{STREAM}")
    assert isinstance(await given_up(own), LostLog)


async def test_connection_closed_for_good(own: Writing) -> None:
    own.put(3)
    await own.settled()
    await own.nc.close()
    error = await given_up(own)
    assert "closed the connection permanently" in str(error)


async def test_a_revoked_access_is_named(own: Writing) -> None:
    own.put(3)
    await own.settled()
    own.nc._err = AuthorizationError()
    await own.nc.close()
    assert str(await given_up(own)).endswith("permanently: the server rejects our credentials")


# ------------------------------------------------------------------ reading


async def test_an_empty_stream_ends_at_the_beginning(nc: DirectClient) -> None:
    await filled(nc, [])
    tail = await read_tail(nc, STREAM, SUBJECT)
    assert (tail.sequence, tail.link) == (0, GENESIS)
    assert [one async for one in read_records(nc, STREAM, 1, 10)] == []


async def test_an_emptied_stream_is_not_a_new_one(nc: DirectClient) -> None:
    await filled(nc, [1, 1])
    await api(nc, f"STREAM.PURGE.{STREAM}")
    with pytest.raises(CorruptLog, match="record 1 is gone with all others"):
        await read_tail(nc, STREAM, SUBJECT)


async def test_large_records_are_read_in_order(nc: DirectClient) -> None:
    mib = 1 << 20
    sizes = [10, 20 * mib, 10, 3 * mib, 12 * mib, 9 * mib, 10]
    made = await filled(nc, sizes)
    found = [one async for one in read_records(nc, STREAM, 1, 7)]
    assert [len(one.payload) for one in found] == sizes
    assert [one.link for one in found] == [link_of(data) for data in made]
    some = await read_some(nc, STREAM, [2, 4, 5])
    assert {2, 4, 5} <= {one.sequence for one in some}


async def test_more_records_than_one_batch(
    nc: DirectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_reader, "_BATCH_MESSAGES", 50)
    await filled(nc, [1] * 120)
    found = [one.sequence async for one in read_records(nc, STREAM, 3, 119)]
    assert found == list(range(3, 120))
    assert [one.sequence async for one in read_records(nc, STREAM, 120, 120)] == [120]


async def test_gaps_are_skipped_by_reading_and_found_by_the_chain(nc: DirectClient) -> None:
    await filled(nc, [1] * 6)
    for sequence in (3, 6):
        await api(nc, f"STREAM.MSG.DELETE.{STREAM}", {"seq": sequence})
    found = [one async for one in read_records(nc, STREAM, 1, 6)]
    assert [one.sequence for one in found] == [1, 2, 4, 5]
    checker = ChainChecker()
    checker.check(found[0])
    checker.check(found[1])
    with pytest.raises(CorruptLog, match="record 3 is missing"):
        checker.check(found[2])


@pytest.mark.parametrize("wanted", [[3], [2, 3], [1, 4, 6]])
async def test_requested_records_that_are_missing(nc: DirectClient, wanted: list[int]) -> None:
    await filled(nc, [1] * 6)
    for sequence in (3, 6):
        await api(nc, f"STREAM.MSG.DELETE.{STREAM}", {"seq": sequence})
    with pytest.raises(CorruptLog) as caught:
        await read_some(nc, STREAM, wanted)
    assert caught.value.sequence in (3, 6)


async def test_some_records_far_apart(nc: DirectClient) -> None:
    await filled(nc, [1] * 30)
    some = await read_some(nc, STREAM, [30, 2, 4, 17, 2])
    assert {2, 4, 17, 30} <= {one.sequence for one in some}
    assert len(some) == len({one.sequence for one in some})
    assert await read_some(nc, STREAM, []) == []


async def test_an_invalid_record_is_named(nc: DirectClient) -> None:
    await filled(nc, [1, 1])
    await nc.request(SUBJECT, b"something else", timeout=TIMEOUT)
    for read in (read_some(nc, STREAM, [3]), read_tail(nc, STREAM, SUBJECT)):
        with pytest.raises(CorruptLog, match="record 3 is not a foldmq record"):
            await read


async def test_a_stream_that_is_not_there(nc: DirectClient) -> None:
    with pytest.raises(LostLog, match="existed before and is missing"):
        await read_tail(nc, STREAM, SUBJECT)
    with pytest.raises(LogUnavailable):
        await read_some(nc, STREAM, [1])
    with pytest.raises(LogUnavailable, match="answers 503"):
        [one async for one in read_records(nc, STREAM, 1, 3)]


async def test_reading_while_the_server_is_away(
    datadir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "REQUEST_SECONDS", 0.1)
    server = EmbeddedServer(datadir)
    await server.start()
    async with client_of(server) as nc:
        await filled(nc, [1, 1])
        await server.stop()
        for read in (read_some(nc, STREAM, [1, 2]), read_some(nc, STREAM, [1])):
            with pytest.raises(LogUnavailable):
                await read


async def test_reading_on_a_closed_connection(nc: DirectClient) -> None:
    await filled(nc, [1, 1])
    store = KeyedStore(nc, "STATE", "state.")
    await store.open()
    reading = store.read()
    await nc.close()
    for read in (read_some(nc, STREAM, [1, 2]), read_some(nc, STREAM, [1]), anext(reading)):
        with pytest.raises(LogUnavailable):
            await read


async def test_the_log_must_reach_its_watermark(server: EmbeddedServer, tmp_path: Path) -> None:
    mark = Watermark(tmp_path / "log.mark", STREAM)
    async with writing(server, watermark=mark) as own:
        own.put()
        await own.settled()
        mark.write(own.journal.durable, own.journal.durable_link)
        assert (await own.log.tail()).sequence == 1
        mark.write(5, GENESIS)
        with pytest.raises(CorruptLog, match="had reached record 5"):
            await own.log.tail()


# ------------------------------------------------------------------- limits


async def test_no_event_is_larger_than_the_server_takes(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir, max_payload=64 * 1024)
    await server.start()
    try:
        async with writing(server, max_record=32 * 1024) as own:
            largest = own.journal.max_event
            assert 60 * 1024 < largest < 64 * 1024
            own.put(1, padding=largest - 1000)
            own.put(5, padding=10_000)
            await own.settled()
            with pytest.raises(EventStoreError, match="does not fit into a record"):
                own.put(1, padding=largest)
            own.put(1)
            await own.settled()
    finally:
        await server.stop()


# -------------------------------------------------------- one broker per node


async def test_a_node_is_locked_once(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "_ANSWER_SECONDS", 20)
    async with client_of(server) as second:
        async with client_of(server) as first:
            await lock_node(first, "n1", "here")
            await lock_node(first, "n2", "here")
            with pytest.raises(NodeBusy, match=rf"node n1 already runs .*process {os.getpid()}"):
                await lock_node(second, "n1", "here")
            monkeypatch.setattr(log_stream, "_ANSWER_SECONDS", 0.2)
        await lock_node(second, "n1", "here")


async def test_an_answer_of_another_replica_counts(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "_ANSWER_SECONDS", 20)
    async with client_of(server) as first, client_of(server) as second:

        async def answer(message: Any) -> None:
            await message.respond(b"?")

        await first.subscribe("foldmq.node.n1", cb=answer)
        await first.flush()
        with pytest.raises(NodeBusy, match="a broker that does not name its process"):
            await lock_node(second, "n1", "here")


async def test_a_broker_that_does_not_answer_is_not_waited_for(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "_ANSWER_SECONDS", 0.2)
    async with client_of(server) as first, client_of(server) as second:

        async def ignore(_message: Any) -> None:
            return

        await first.subscribe("foldmq.node.n1", cb=ignore)
        await first.flush()
        await lock_node(second, "n1", "here")


async def test_a_log_that_begins_while_it_is_looked_at(
    nc: DirectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of a new cluster asks for the bounds before another node leads for the first time."""
    await ensure_stream(nc, STREAM, [SUBJECT])

    async def ask(*arguments: Any) -> tuple[int, int]:
        found = await jetstream.read_bounds(*arguments)
        await nc.request(SUBJECT, record(GENESIS, "first"), timeout=TIMEOUT)
        return found

    monkeypatch.setattr(jetstream_log, "read_bounds", ask)
    projections = KeyedStore(nc, "STATE", "state.")
    log = EventLog(nc, STREAM, SUBJECT, projections=projections)
    assert (await log.tail()).sequence == 1
    assert log.first == 1
