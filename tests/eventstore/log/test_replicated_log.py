"""The log over a NATS cluster of three servers, with a replica on each."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from harness.nats import PASSWORD, USER
from harness.natscluster import NatsCluster
from harness.waiting import happens
from numberedlog import STREAM, SUBJECT, append_behind, client_of, given_up, record, writing

from eventstore.errors import Fenced, LogUnavailable
from eventstore.format.records import decode_record
from eventstore.log import jetstream_log, log_writer
from eventstore.log.jetstream_log import Appended, EventLog
from eventstore.log.keyed_store import KeyedStore
from eventstore.log.record_reader import LogTail, read_tail
from eventstore.nats import jetstream
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.log_stream import ensure_stream
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system


class _Access:
    """What a client needs to know of the cluster; the fields are those of an embedded server."""

    def __init__(self, cluster: NatsCluster) -> None:
        self.url, self.user, self.password = cluster.members[0].url, USER, PASSWORD


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path / "nats") as made:
        yield made


@pytest.fixture
def server(cluster: NatsCluster) -> EmbeddedServer:
    return cast("EmbeddedServer", _Access(cluster))


def urls_from(cluster: NatsCluster, first: int) -> ConnectionOptions:
    members = cluster.members[first:] + cluster.members[:first]
    urls = tuple(member.url for member in members)
    return ConnectionOptions(urls=urls, user=USER, password=PASSWORD)


async def test_a_log_is_read_over_another_server_when_one_is_cut_off(
    cluster: NatsCluster, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to it is intact, and its replica of the first records can be read."""
    monkeypatch.setattr(jetstream_log, "_READ_SECONDS", 0.5)
    async with writing(server, replicas=3) as made:
        made.put(3)
        await made.settled()
        away = next(one for one in cluster.members if one.url != made.nc.connected_url.geturl())
        reader = await connect(urls_from(cluster, cluster.members.index(away)))
        while reader.connected_url.port != away.port:
            await reader.change_server()
            await happens(lambda: reader.is_connected)
        kept = KeyedStore(reader, "STATE", "state.")
        log = EventLog(reader, STREAM, SUBJECT, projections=kept, replicas=3)
        assert (await log.tail()).sequence == made.journal.durable
        cluster.cut_off(away)
        for _ in range(3):
            made.put(1)
            await made.settled()
        last = made.journal.durable
        # A direct get that its replica cannot answer goes to the leader, who does not get it. A
        # server that led JetStream answers for some seconds as if it still did: ask again as a
        # follower does.
        found: list[int] = []
        while len(found) < last:
            with contextlib.suppress(LogUnavailable):
                found += [one.sequence async for one in log.read(len(found) + 1, last)]
        assert found == list(range(1, last + 1))
        assert reader.connected_url.port != away.port
        assert (await log.tail()).sequence == last
        await disconnect(reader)


async def test_the_server_is_kept_while_a_stream_does_not_answer(
    cluster: NatsCluster, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream has no leader: that is the same at every server."""
    monkeypatch.setattr(jetstream, "_PAUSE_SECONDS", (0.01, 0.02))
    async with client_of(server) as nc:
        await ensure_stream(nc, STREAM, [SUBJECT], replicas=3)
        asked = []

        async def leaderless(*of: object) -> tuple[int, int]:
            asked.append(of)
            raise LogUnavailable(f"stream {STREAM}: JetStream system temporarily unavailable")

        kept = KeyedStore(nc, "STATE", "state.")
        log = EventLog(nc, STREAM, SUBJECT, projections=kept, replicas=3)
        with monkeypatch.context() as without:
            without.setattr(jetstream_log, "read_bounds", leaderless)
            with pytest.raises(LogUnavailable):
                await log.tail()
        assert len(asked) > 3
        assert nc.stats["reconnects"] == 0
        assert (await log.tail()).sequence == 0


async def test_a_replaced_writer_leaves_a_log_that_can_be_written(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node took the place of the first of two large records of the old writer.

    A replicated stream of NATS 2.15.1 for which an append with a wrong
    Nats-Expected-Last-Msg-Id arrives stores nothing ever again.
    """
    monkeypatch.setattr(log_writer, "VERDICT_EVERY", 0.05)
    async with writing(server, replicas=3) as old:
        old.put(1)
        await old.settled()
        tail = LogTail(old.journal.durable, old.journal.durable_link)
        async with client_of(server) as other:
            successor = record(tail.link, "successor")
            assert await append_behind(other, tail, successor) is Appended.STORED
            old.put(1, padding=32 * 1024)
            old.put(1, padding=32 * 1024)
            assert isinstance(await given_up(old), Fenced)
            assert old.sink.numbers == [0]
            end = LogTail.of(decode_record(tail.sequence + 1, successor))
            assert await read_tail(other, STREAM, SUBJECT) == end
            behind = record(end.link, "behind")
            assert await append_behind(other, end, behind) is Appended.STORED
