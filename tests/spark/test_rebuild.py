"""What Spark rebuilds from logs is what the broker's own fold says, at the end and at any moment.

All logs are read in one go, each as a node of its own: by the real broker under random clients and
crashes (``tests/simulation``), and of random events; whole, and cut at checkpoints.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from foldedlogs import (
    FoldedLog,
    Row,
    moments,
    pending_rows,
    queue_rows,
    random_log,
    retained_rows,
    session_rows,
    simulated,
    will_rows,
)
from harness.nats import PASSWORD, USER

from eventstore.positions import MAX_INDEX, position
from spark.log import Log
from spark.rebuild import JOBS, rebuild

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.nats import Nats
    from pyspark.sql import DataFrame, SparkSession

    from projections.node import NodeState

pytestmark = pytest.mark.timeout(600)
SEEDS = range(4)
Logs = tuple[list[FoldedLog], Log]


@pytest.fixture(scope="module")
def logs(nats: Nats) -> list[FoldedLog]:
    made = [one for seed in SEEDS for one in simulated(seed, f"sim{seed}")]
    made += [one for seed in range(2 * len(SEEDS)) for one in random_log(seed, f"rnd{seed}")]
    for one in made:
        one.store(nats)
    assert any(one.first > 1 for one in made if one.node.startswith("sim")), "none was cut"
    return made


@pytest.fixture(scope="module", params=["at the end", "at a moment"])
def opened_logs(
    request: pytest.FixtureRequest, logs: list[FoldedLog], nats: Nats, spark: SparkSession
) -> Logs:
    if request.param == "at a moment":
        chance = random.Random(5)
        logs = [FoldedLog(one.log, one.first, some_moment(one, chance)) for one in logs]
    options = {"nats": nats.url, "user": USER, "password": PASSWORD}
    streams = ",".join(one.log.stream for one in logs)
    return logs, Log(spark, {**options, "stream": streams, "until": moments(logs)})


def some_moment(log: FoldedLog, chance: random.Random) -> int:
    """A position at which the state can be known: of a record, or in the middle of one."""
    known = log.known_from()
    sequence = chance.randint(max(known, log.log.last - 60), log.log.last)
    indexes = [index for index, _ in log.record(sequence).events()] if sequence > known else []
    return position(sequence, chance.choice([MAX_INDEX, *indexes]))


def rows(table: DataFrame, *columns: str) -> list[Row]:
    return [tuple(_plain(value) for value in row) for row in table.select(*columns).collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, tuple | list):
        return tuple(_plain(one) for one in value)
    return value


def expected(logs: Sequence[FoldedLog], of: Callable[[str, NodeState], Iterable[Row]]) -> list[Row]:
    return [row for log in logs for row in of(log.node, log.fold())]


def assert_same(found: Iterable[Row], wanted: Iterable[Row]) -> None:
    found, wanted = Counter(found), Counter(wanted)
    assert wanted, "nothing to compare"
    assert not found - wanted
    assert not wanted - found


def test_sessions(opened_logs: Logs) -> None:
    logs, log = opened_logs
    found = rows(
        rebuild(log, "sessions"), "node", "session", "connected", "clean", "generation", "user",
        "last_packet_id", "inflight", "releasing", "inbound", "queued", "queued_bytes", "will",
        "digest", "state",
    )  # fmt: skip
    assert_same(found, expected(logs, session_rows))


def test_retained(opened_logs: Logs) -> None:
    logs, log = opened_logs
    found = rows(
        rebuild(log, "retained"), "node", "topic", "qos", "ref", "size", "payload", "digest"
    )
    assert_same(found, expected(logs, retained_rows))


def test_pending(opened_logs: Logs) -> None:
    logs, log = opened_logs
    table = rebuild(log, "pending")
    columns = ["node", "session", "direction", "packet_id", "state", "qos", "ref", "filter"]
    out = table.where("direction = 'out'").selectExpr(*columns, "unix_millis(since) as since")
    received = table.where("direction = 'in'")
    found = rows(out, *columns, "since") + rows(received, *columns)
    assert_same(found, expected(logs, pending_rows))


def test_queues(opened_logs: Logs) -> None:
    logs, log = opened_logs
    found = rows(
        rebuild(log, "queues"), "node", "session", "filter", "qos", "active", "queued",
        "queued_bytes", "oldest", "newest", "messages",
    )  # fmt: skip
    spread = [(*row[:-1], tuple(each(row[-1]))) for row in found]
    assert_same(spread, expected(logs, queue_rows))


def each(runs: Iterable[Row]) -> Iterable[Row]:
    for first, count, step, qos, retain in runs:
        yield from ((first + number * step, qos, retain) for number in range(count))


def test_wills(opened_logs: Logs) -> None:
    logs, log = opened_logs
    found = rows(
        rebuild(log, "wills"), "node", "session", "topic", "qos", "retain", "ref", "size", "payload"
    )
    wanted = [row for one in logs for row in will_rows(one, one.fold())]
    assert_same(found, wanted)


def test_there_is_a_job_for_each_projection() -> None:
    assert JOBS == ("sessions", "retained", "pending", "queues", "wills")
