"""The state that a running broker has, compared with what its log says: replayed, and in Spark."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from cli.fold import Replay
from cli.moments import Cut
from cli.settings import load
from cli.source import connect_to, find_place
from cli.sourceflags import SourceFlags
from cli.sparkjobs.claims import of_brokers
from cli.sparkjobs.place import Found, _access
from projections.digests import retained_digest, session_digest
from spark.log import Log
from spark.rebuild import rebuild
from spark.recovery import recovery_check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from harness.broker import Broker
    from projections.node import NodeState
    from spark.audit.outcome import Claim
    from spark.recovery import RecoveryOutcome


def check_recovered(broker: Broker, spark: SparkSession) -> RecoveryOutcome:
    """Asserts that a broker which runs, without clients, recovered as its log demands.

    Its own state, the replayed one and the one that Spark rebuilds must be the same.
    """
    found, claims, state, last = asyncio.run(_gathered(broker))
    log = Log(spark, found.options).until(last)
    outcome = recovery_check(log, claims)
    assert outcome.kept, "\n".join(
        f"{one.at}: {one.session}: {one.what}" for one in outcome.violations
    )
    [node] = outcome.nodes
    assert node.start is not None
    assert node.sessions, "there was nothing to recover"
    replayed = {name: session_digest(state, name) for name in state.sessions.names()}
    retained = {one.topic: retained_digest(one) for one in state.retained.all()}
    live = {
        kind: {one.name: one.digest for one in claims if one.kind == kind}
        for kind in ("session", "retained")
    }
    rebuilt = {
        row["session"]: row["digest"]
        for row in rebuild(log, "sessions").select("session", "digest").collect()
    }
    assert live["session"] == replayed == rebuilt
    rebuilt = {
        row["topic"]: row["digest"]
        for row in rebuild(log, "retained").select("topic", "digest").collect()
    }
    assert live["retained"] == retained == rebuilt
    return outcome


async def _gathered(broker: Broker) -> tuple[Found, list[Claim], NodeState, int]:
    """Asks the broker, and folds its log up to where it ends then."""
    given = {"data_dir": broker.data_dir}
    async with contextlib.AsyncExitStack() as stack:
        place = await find_place(stack, load(given, {}, None), SourceFlags(given))
        client = await connect_to(stack, place)
        [stream] = await place.streams(client)
        source = await place.open(client, stream)
        found = Found({**_access(place.access), "stream": stream}, [source])
        claims = (await of_brokers(found)).rows
        last = (await source.bounds())[1]
        replay = Replay(source, last)
        await replay.to(Cut(last))
        return found, claims, replay.state, last
