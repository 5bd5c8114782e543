"""The log of a broker under real load, killed twice, and the broker's own state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from harness.broker import Broker
from harness.drill import SEED, Drill
from harness.fixtures import make_broker

from cli.logs.source import find_location
from cli.logs.source_flags import SourceFlags
from cli.settings.settings import load_settings
from cli.spark.claimed_states import claims_of_brokers, claims_of_projections
from cli.spark.log_location import Found, _access
from projections.audit.audit_outcome import BROKER, PROJECTIONS, StateClaim
from projections.audit.rule_table import Rule
from spark.jobs.pipeline import audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.drill, pytest.mark.timeout(600)]
__all__ = ["make_broker"]


async def gathered(broker: Broker) -> tuple[dict[str, str], list[StateClaim]]:
    """How the log is read, and what the broker and its projections say of the state."""
    given = {"data_dir": broker.data_dir}
    async with contextlib.AsyncExitStack() as stack:
        place = await find_location(stack, load_settings(given, {}, None), SourceFlags(given))
        client = await place.connect(stack)
        [stream] = await place.streams(client)
        found = Found(
            {**_access(place.access), "stream": stream}, [await place.open(client, stream)]
        )
        told = (await claims_of_brokers(found)).rows + (await claims_of_projections(found)).rows
        return dict(found.options), told


def test_a_killed_broker_violated_no_guarantee(
    make_broker: Callable[..., Broker], spark: SparkSession
) -> None:
    broker = make_broker()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    drill.strike(lambda: broker.restart(kill=True))
    # While clients publish, come and go, and some wills are due.
    options, claims = asyncio.run(gathered(broker))
    drill.strike(lambda: broker.restart(kill=True))
    drill.judge()
    last, more = asyncio.run(gathered(broker))
    outcome = audit(Log(spark, last), [*claims, *more])
    broker.stop()
    assert outcome.violations == ()
    assert outcome.kept
    assert options == last
    assert {one.where for one in outcome.compared} == {BROKER, PROJECTIONS}
    checked = {result.rule: result.checked for result in outcome.rules}
    assert checked[Rule.UNDELIVERED] > 100, checked
    assert min(latency.qos for latency in outcome.latencies) == 1
