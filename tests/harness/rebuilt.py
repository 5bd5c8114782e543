"""A recovered broker: its state, its log, and the tables that Spark rebuilds from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from cli.logs.source import find_location
from cli.logs.source_flags import SourceFlags
from cli.settings.settings import load_settings
from cli.spark.claimed_states import claims_of_brokers
from cli.spark.log_location import Found, _access
from eventstore.format.node_events import BrokerStarted
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from harness.broker import Broker
from harness.state_rows import Row, assert_same, rebuilt_rows, state_rows, will_payloads
from projections.audit.audit_outcome import StateClaim
from projections.past.replay import Replay
from projections.state.digests import retained_digest, session_digest
from projections.state.node_state import NodeState
from spark.jobs.jobs import JOBS
from spark.jobs.recovery_job import RecoveryOutcome, recovery_check
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Gathered(NamedTuple):
    options: Mapping[str, str]
    """For the source of Spark."""
    claims: list[StateClaim]
    last: int
    """The last record."""
    crash: int
    """The last record before the last start."""
    then: dict[str, list[Row]]
    """The state there."""
    state: NodeState
    """The state now."""


def check_recovered(broker: Broker, spark: SparkSession) -> RecoveryOutcome:
    """Asserts that a broker which runs, without clients, recovered as its log demands.

    Its own state, the replayed one and the one that Spark rebuilds are the same, now and as of
    the crash.
    """
    found = asyncio.run(_gathered(broker))
    log = Log(spark, found.options).until(found.last)
    outcome = recovery_check(log, found.claims)
    wrong = [f"{one.at}: {one.session}: {one.what}" for one in outcome.violations]
    assert outcome.kept, "\n".join(wrong)
    live = {(one.kind, one.name): one.digest for one in found.claims if one.digest is not None}
    assert live == _digests(found.state)
    assert found.then["sessions"], "there was nothing to recover"
    for job in JOBS:
        assert_same(rebuilt_rows(log.until(found.crash), job), found.then[job])
    return outcome


def _digests(state: NodeState) -> dict[tuple[str, str], str | None]:
    names, retained = state.sessions.names(), state.retained.all()
    return {
        **{("session", name): session_digest(state, name) for name in names},
        **{("retained", one.topic): retained_digest(one) for one in retained},
    }


async def _gathered(broker: Broker) -> _Gathered:
    """Asks the broker, and folds its log up to where it ends then."""
    given: dict[str, object] = {"data_dir": broker.data_dir}
    async with contextlib.AsyncExitStack() as stack:
        place = await find_location(stack, load_settings(given, {}, None), SourceFlags(given))
        client = await place.connect(stack)
        [stream] = await place.streams(client)
        source = await place.open(client, stream)
        found = Found({**_access(place.access), "stream": stream}, [source])
        claims = (await claims_of_brokers(found)).rows
        last = (await source.bounds())[1]
        crash = await _last_start(source, last) - 1
        replay = Replay(source, last)
        await replay.to(LogPoint(crash))
        payloads = dict(
            [pair async for one in source.records(1, crash) for pair in will_payloads(one)]
        )
        then = state_rows(claims[0].node, replay.state, payloads)
        await replay.to(LogPoint(last))
        return _Gathered(found.options, claims, last, crash, then, replay.state)


async def _last_start(source: LogSource, last: int) -> int:
    """The record with the last start."""
    found = 0
    async for record in source.records(1, last):
        if any(isinstance(event, BrokerStarted) for _, event in record.events()):
            found = record.sequence
    return found
