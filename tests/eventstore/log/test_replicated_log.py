"""The log over a NATS cluster of three servers, with a replica on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from harness.nats import PASSWORD, USER
from harness.natscluster import NatsCluster
from numberedlog import STREAM, SUBJECT, client_of, given_up, record, writing

from eventstore.errors import Fenced
from eventstore.format import link_of
from eventstore.log import Appended, LogTail, read_tail
from eventstore.log.conditional_append import append_behind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventstore.server import EmbeddedServer

pytestmark = pytest.mark.system


class _Access:
    """What a client needs to know of the cluster; the fields are those of an embedded server."""

    def __init__(self, cluster: NatsCluster) -> None:
        self.url, self.user, self.password = cluster.members[0].url, USER, PASSWORD


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    cluster = NatsCluster(tmp_path / "nats")
    try:
        cluster.start()
        yield cast("EmbeddedServer", _Access(cluster))
    finally:
        cluster.close()


async def test_a_replaced_writer_leaves_a_log_that_can_be_written(server: EmbeddedServer) -> None:
    """Another node took the place of the first of two large records of the old writer.

    A replicated stream of NATS 2.15.1 for which an append with a wrong
    Nats-Expected-Last-Msg-Id arrives stores nothing ever again.
    """
    async with writing(server, replicas=3) as old:
        old.put(1)
        await old.settled()
        tail = LogTail(old.journal.durable, old.journal.durable_link)
        async with client_of(server) as other:
            successor = record(tail.link, "successor")
            assert await append_behind(other, STREAM, SUBJECT, tail, successor) is Appended.STORED
            old.put(1, padding=32 * 1024)
            old.put(1, padding=32 * 1024)
            assert isinstance(await given_up(old), Fenced)
            assert old.sink.numbers == [0]
            end = LogTail(tail.sequence + 1, link_of(successor))
            assert await read_tail(other, STREAM, SUBJECT) == end
            behind = record(end.link, "behind")
            assert await append_behind(other, STREAM, SUBJECT, end, behind) is Appended.STORED
