"""The tables that Spark rebuilds equal the broker's own fold, at the end and at any point.

All logs are read in one go, each as a node of its own: logs of the real broker under random
clients and crashes (``tests/simulation``), random events, and golden logs; whole, and cut.
``FOLDMQ_SEEDS=300`` takes more of them, as ``make drills`` does.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from brokenlogs import Story, at, delivered, published, snapshot
from foldedlogs import FoldedLog, golden, moments, random_log, simulated, simulated_shares
from harness.nats import Nats, access
from harness.spark_plans import compiled
from harness.state_rows import Row, assert_same, rebuilt_rows

from eventstore.errors import CutOff
from eventstore.format.events import Acked, WillArmed
from eventstore.format.node_events import (
    BrokerStopped,
    CheckpointBegun,
    CheckpointCompleted,
    MessagesCarried,
    RetainedSnapshot,
)
from eventstore.format.positions import MAX_INDEX, position
from spark.jobs.jobs import JOBS, rebuild
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEEDS = range(max(2, int(os.environ.get("FOLDMQ_SEEDS", "0")) // 30))
GOLDEN = Path(__file__).parents[1] / "eventstore" / "golden"
WHOLE = ["v1"]
"""Golden logs that have the payloads of all their messages."""


@pytest.fixture(scope="module")
def logs(nats: Nats) -> list[FoldedLog]:
    made = [one for seed in SEEDS for one in simulated(seed, f"sim{seed}")]
    made += [one for seed in SEEDS for one in simulated_shares(seed, f"shares{seed}")]
    made += [one for seed in range(2 * len(SEEDS)) for one in random_log(seed, f"rnd{seed}")]
    made += [golden(GOLDEN / f"{name}.records", f"golden-{name}") for name in WHOLE]
    copied = next(one for one in made if one.first > 1)
    copied.log.stream = f"COPY_OF_{copied.node}"
    for one in made:
        one.store(nats)
    assert any(one.first > 1 for one in made if one.node.startswith("sim")), "none was cut"
    return made


@pytest.fixture(
    scope="module",
    params=["at the end", pytest.param("at a moment", marks=pytest.mark.long)],
)
def looked_at(request: pytest.FixtureRequest, logs: list[FoldedLog]) -> list[FoldedLog]:
    if request.param == "at the end":
        return logs
    chance = random.Random(5)
    return [FoldedLog(one.log, one.first, some_moment(one, chance)) for one in logs]


def some_moment(log: FoldedLog, chance: random.Random) -> int:
    """A position at which the state can be known: of a record, or in the middle of one."""
    known = log.known_from()
    sequence = chance.randint(max(known, log.log.last - 60), log.log.last)
    indexes = [index for index, _ in log.record(sequence).events()] if sequence > known else []
    return position(sequence, chance.choice([MAX_INDEX, *indexes]))


@pytest.fixture(scope="module")
def opened_logs(looked_at: list[FoldedLog], nats: Nats, spark: SparkSession) -> Iterator[Log]:
    """Whole logs are read with compiled plans."""
    options = access(nats)
    streams = ",".join(one.log.stream for one in looked_at)
    log = Log(spark, {**options, "stream": streams, "until": moments(looked_at)})
    whole = all(one.until is None for one in looked_at)
    with compiled(spark) if whole else contextlib.nullcontext():
        yield log


@pytest.fixture(scope="module")
def expected(looked_at: list[FoldedLog]) -> dict[str, list[Row]]:
    rows = defaultdict(list)
    for one in looked_at:
        for job, some in one.rows().items():
            rows[job] += some
    return rows


@pytest.mark.parametrize("job", JOBS)
def test_the_rebuilt_state_equals_the_folded_one(
    opened_logs: Log, expected: dict[str, list[Row]], job: str
) -> None:
    assert expected[job], "nothing to compare"
    assert_same(rebuilt_rows(opened_logs, job), expected[job])


def test_a_payload_that_was_carried_later_is_found(opened: Callable[..., Log], nats: Nats) -> None:
    """Between a checkpoint and the cut before it, payloads of before it are repeated."""
    story = Story("carried-later")(WillArmed("s", "w", 1, False, 3, 0), payloads=1)
    story(
        CheckpointBegun(1),
        snapshot(story, "p"),
        snapshot(story, "s"),
        CheckpointCompleted(1, at(3), 2, 0),
    )
    story(BrokerStopped())(MessagesCarried([at(2)], ["w"], [], 3, 0, 1), payloads=1)
    story.log.store(nats).cut(nats, 3)
    (row,) = rebuild(opened(story.log, until="4"), "wills").collect()
    assert (row["session"], row["size"], row["payload"]) == ("s", 3, b"000")


@pytest.fixture(scope="module")
def within_events(nats: Nats) -> list[FoldedLog]:
    """One log, read up to each entry of an event of several, as of a checkpoint."""
    found = []
    for sequence, index in [(2, 0), (2, 2), (3, 1), (4, 0), (4, 1), (5, 0), (5, 3)]:
        story = Story(f"within{sequence}-{index}")
        story(published("t", "w/a", "w/b", session="p", qos=1, retain=True), payloads=3)
        story(published("t", "w/a", session="p", qos=2, retain=True, pid=7), payloads=2)
        story(delivered(at(2, 0), at(2, 1), at(2, 2)), Acked("s", [1, 2, 3]))
        retained = RetainedSnapshot(["t", "w/a", "w/b"], [1] * 3, [[at(2), 3, 1]], 3, 0, 3, None)
        story(CheckpointBegun(1), retained, payloads=3)
        story.log.store(nats)
        found.append(FoldedLog(story.log, until=position(sequence, index)))
    return found


@pytest.mark.parametrize("job", ["retained", "pending"])
def test_an_event_takes_effect_as_a_whole(
    within_events: list[FoldedLog], nats: Nats, spark: SparkSession, job: str
) -> None:
    """As in `foldmq replay`: at a position within an event all of its messages count."""
    streams = ",".join(one.log.stream for one in within_events)
    given = {"stream": streams, "until": moments(within_events)}
    log = Log(spark, {**access(nats), **given})
    expected = [row for one in within_events for row in one.rows()[job]]
    assert expected
    assert_same(rebuilt_rows(log, job), expected)


def test_no_state_within_the_turn_of_the_first_checkpoint(
    opened: Callable[..., Log], nats: Nats
) -> None:
    """A turn of several records takes effect with its last one, and so does its checkpoint."""
    story = Story("first-turn")(CheckpointBegun(1))
    completed = CheckpointCompleted(1, at(2), 2, 0)
    story.log.turn([snapshot(story, "p"), snapshot(story, "s"), completed], [BrokerStopped()])
    story.log.store(nats).cut(nats, 2)
    with pytest.raises(CutOff, match="states can be rebuilt from record 4 on"):
        rebuild(opened(story.log, until="3"), "sessions")
    assert rebuild(opened(story.log, until="4"), "sessions").count() == 2
