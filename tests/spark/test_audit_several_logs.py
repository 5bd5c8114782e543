"""The logs of a broker that has two: what lies between them is judged, with and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.logs import LogBuilder
from harness.nats import Nats, access
from simulation.network import SimClient
from simulation.partitions import PartitionWorld, name_in
from simulation.two_logs import two

from eventstore.format.positions import INDEX_BITS, from_runs
from eventstore.format.records import Record, decode_record
from eventstore.partitions import partition_of
from projections.audit.audit_outcome import Outcome
from projections.audit.rule_table import Rule
from spark.jobs.pipeline import NOTHING, SMALL, audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Raw = dict[str, Any]
A, B = "n-p0", "n-p1"
SHARE = next(f"$share/g{at}/s/#" for at in range(9) if partition_of(f"$share/g{at}/s/#", 2) == 0)
"""Its home is A."""


async def _scenario(here: PartitionWorld, there: PartitionWorld) -> None:
    """A client of A publishes for one of B: at QoS 1 and 2, retained, shared."""
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0), mqtt5=True)
    sender.mqtt5 = False  # what follows is at level 5 already
    await there.connect(name_in(worlds, 1), filters=[("a/#", 2)])
    member = SimClient(there)
    member.send(p.connect(name_in(worlds, 1, "m"), clean=False), p.subscribe(1, (SHARE, 1)))
    await here.go(2)
    property_ = ((p5.MESSAGE_EXPIRY, 1000), (p5.CONTENT_TYPE, "text"))
    sender.send(p5.publish("a/1", b"one", 1, 1, properties=property_))
    await here.go(1)
    sender.send(p5.publish("a/2", b"two", 2, 2))
    await here.go(1)
    sender.send(p.pubrel(2))
    await here.go(1)
    sender.send(p5.publish("r/3", b"kept", 1, 3, retain=True))
    await here.go(1)
    for pid in (4, 5):
        sender.send(p5.publish("a/4", b"%d" % pid, 1, pid))
    await here.go(1)
    sender.send(p5.publish("s/5", b"shared", 1, 6))
    await here.go(2)


@cache
def _histories() -> dict[str, dict[int, bytes]]:
    found: dict[str, dict[int, bytes]] = {}

    async def whole(here: PartitionWorld, there: PartitionWorld) -> None:
        await _scenario(here, there)
        for world in (here, there):
            await world.broker.wait_durable()
            found[world.name] = dict(world.disk.stream.history)

    two(whole)
    return found


def no_session() -> NoReturn:
    pytest.fail("a small log is audited without Spark")


class Tampered:
    """The records of both logs, to be changed."""

    def __init__(self) -> None:
        self.logs = {
            name: [decode_record(at, data) for at, data in sorted(history.items())]
            for name, history in _histories().items()
        }
        for records in self.logs.values():
            for record in records:
                record.raw_events[:] = deepcopy(record.raw_events)

    def find(self, log: str, kind: str, **fields: Any) -> tuple[Record, Raw]:
        """Return the first event of a type with these fields, and its record."""
        for record in self.logs[log]:
            for raw in record.raw_events:
                if raw["e"] == kind and all(raw.get(key) == one for key, one in fields.items()):
                    return record, raw
        raise AssertionError(f"no {kind} with {fields}")

    def copy(self, topic: str) -> tuple[Record, Raw]:
        """Return the copy of a message in B."""
        return self.find(B, "MessagePublished", session=f"$log/{A}", topics=[topic])

    def lose(self, topic: str) -> None:
        """Remove the copy of a message in B, and its deliveries, but not the position."""
        record, _ = self.copy(topic)
        record.raw_events[:] = [one for one in record.raw_events if one["e"] == "Followed"]

    def change(self, topic: str, **fields: Any) -> None:
        """Give the copy of a message in B other values."""
        self.copy(topic)[1].update(fields)

    @contextmanager
    def stored(self, nats: Nats, *names: str) -> Iterator[dict[str, str]]:
        """Store the logs; yield the options of the source for all or some of them."""
        logs = self._build()
        for log in logs:
            log.store(nats)
        try:
            streams = ",".join(f"FOLDMQ_LOG_{name}" for name in names or (A, B))
            yield {**access(nats), "stream": streams}
        finally:
            for log in logs:
                log.remove(nats)

    def _build(self) -> list[LogBuilder]:
        """Build both logs; each position in the other one has the link of its record there."""
        built = {name: LogBuilder(name) for name in self.logs}
        links: dict[tuple[str, int], str] = {}
        while any(built[name].last < len(records) for name, records in self.logs.items()):
            before = len(links)
            for name, records in self.logs.items():
                for record in records[built[name].last :]:
                    followed = [one for one in record.raw_events if one["e"] == "Followed"]
                    places = [(one["log"], one["through"] >> INDEX_BITS) for one in followed]
                    if any(
                        place not in links and place[1] <= len(self.logs[place[0]])
                        for place in places
                    ):
                        break
                    for one, place in zip(followed, places, strict=True):
                        if one["link"] != "another":
                            one["link"] = links.get(place, one["link"])
                    built[name].record(
                        *record.raw_events, payloads=[bytes(record.payload)],
                        time_ms=record.time_ms, part=record.part, last=record.last,
                    )  # fmt: skip
                    data = built[name].records[-1]
                    sequence = record.sequence
                    links[name, sequence] = decode_record(sequence, data).link.hex()
            assert len(links) > before
        return [*built.values()]

    def outcome(self, nats: Nats, session: Any = no_session, limits: Any = SMALL) -> Outcome:
        """Return what an audit of both logs finds."""
        with self.stored(nats) as options:
            return audit(Log(session, options), cluster=False, local=limits)


def taken_twice(logs: Tampered) -> None:
    """At a later position."""
    _, copy = logs.copy("a/2")
    _, other = logs.copy("r/3")
    other["origins"] = copy["origins"]


def two_change_places(logs: Tampered) -> None:
    _, copy = logs.copy("a/4")
    first, second = from_runs(copy["origins"])
    copy["origins"] = [second, first]


def position_steps_back(logs: Tampered) -> None:
    record, _ = logs.copy("a/2")
    followed = next(one for one in record.raw_events if one["e"] == "Followed")
    followed["through"] = 1 << INDEX_BITS


def position_behind_the_end(logs: Tampered) -> None:
    followed = [one for record in logs.logs[B] for one in record.raw_events]
    next(one for one in reversed(followed) if one["e"] == "Followed")["through"] = 999 << INDEX_BITS


def position_of_another_log(logs: Tampered) -> None:
    record, _ = logs.copy("a/1")
    next(one for one in record.raw_events if one["e"] == "Followed")["link"] = "another"


def rename(logs: Tampered, log: str, old: str, new: str) -> None:
    for record in logs.logs[log]:
        for raw in record.raw_events:
            for key in ("session", "member"):
                if raw.get(key) == old:
                    raw[key] = new
            if "sessions" in raw:
                raw["sessions"] = [new if one == old else one for one in raw["sessions"]]


def session_in_the_wrong_log(logs: Tampered) -> None:
    names = [f"c{at}" for at in range(99)]
    here, there = (next(one for one in names if partition_of(one, 2) == at) for at in (0, 1))
    rename(logs, A, here, there)


CASES: dict[str, tuple[Callable[[Tampered], object], Rule, str]] = {
    "lost": (lambda logs: logs.lose("a/1"), Rule.EXCHANGE, "lacks the message"),
    "lost at QoS 2": (lambda logs: logs.lose("a/2"), Rule.EXCHANGE, "lacks the message"),
    "a retained one is lost": (
        lambda logs: logs.lose("r/3"), Rule.EXCHANGE, "which is retained on r/3"
    ),
    "a shared one is lost": (
        lambda logs: logs.lose("s/5"), Rule.EXCHANGE, "which was assigned to $share/"
    ),
    "taken twice": (taken_twice, Rule.EXCHANGE, "was taken before"),
    "taken twice at QoS 2": (
        lambda logs: (taken_twice(logs), logs.change("r/3", qos=2)),
        Rule.EXCHANGE, "did not take effect there since the position before",
    ),
    "two change places": (two_change_places, Rule.EXCHANGE, "which is later"),
    "not of that message": (
        lambda logs: logs.change("a/1", origins=[[3, 1, 1]]), Rule.EXCHANGE, "lacks the message"
    ),
    "a position steps back": (position_steps_back, Rule.EXCHANGE, "follows"),
    "a position behind the end": (
        position_behind_the_end, Rule.EXCHANGE, "but that log ends with record"
    ),
    "a position of another log": (
        position_of_another_log, Rule.EXCHANGE, "but that record is another one"
    ),
    "another topic": (lambda logs: logs.change("a/1", topics=["a/9"]), Rule.COPY, "another topic"),
    "another payload": (lambda logs: logs.change("a/1", sizes=2), Rule.COPY, "another payload"),
    "another QoS": (
        lambda logs: logs.find(A, "MessagePublished", topics=["r/3"])[1].update(qos=0),
        Rule.COPY, "another QoS",
    ),
    "retained without being": (
        lambda logs: logs.change("a/1", retain=True), Rule.COPY, "another RETAIN"
    ),
    "not retained": (
        lambda logs: logs.change("r/3", retain=False), Rule.COPY, "was taken as one that is not"
    ),
    "no properties": (
        lambda logs: logs.change("a/1", blocks=[], block_of=[]), Rule.COPY, "another properties"
    ),
    "a session in the wrong log": (
        session_in_the_wrong_log, Rule.HOME, "but belongs to log n-p1"
    ),
    "a share with two homes": (
        lambda logs: logs.find(B, "Subscribed", session=SHARE)[1].update(options=[64]),
        Rule.HOME, "but its home is log n-p0",
    ),
}  # fmt: skip


def test_both_logs_keep_all_guarantees(nats: Nats) -> None:
    found = Tampered().outcome(nats)
    assert found.violations == ()
    checked = {one.rule: one.checked for one in found.rules}
    assert checked[Rule.EXCHANGE] >= 6
    assert checked[Rule.COPY] >= 6
    assert checked[Rule.HOME] >= 4


@pytest.mark.parametrize("case", CASES)
def test_violations_between_logs_are_found(nats: Nats, case: str) -> None:
    change, rule, what = CASES[case]
    logs = Tampered()
    change(logs)
    violations = [(one.rule, one.what) for one in logs.outcome(nats).violations]
    assert [one for one in violations if one[0] == rule and what in one[1]], violations


@pytest.mark.parametrize("case", ["lost", "another payload", "a session in the wrong log"])
def test_spark_finds_the_same_between_logs(spark: SparkSession, nats: Nats, case: str) -> None:
    logs = Tampered()
    CASES[case][0](logs)
    here = logs.outcome(nats)
    there = logs.outcome(nats, spark, NOTHING)
    assert there.violations == here.violations
    assert there.rules == here.rules
    assert there.notes == here.notes


def test_one_of_two_logs_alone_is_not_compared(nats: Nats) -> None:
    with Tampered().stored(nats, B) as options:
        found = audit(Log(no_session, options), cluster=False, local=SMALL)
    assert found.kept
    assert any("n-p0 is not read" in note for note in found.notes), found.notes


def test_what_is_on_its_way_is_pending(nats: Nats) -> None:
    logs = Tampered()
    record, _ = logs.copy("a/4")
    del logs.logs[B][record.sequence - 1 :]
    followed = [raw for part in logs.logs[A] for raw in part.raw_events if raw["e"] == "Followed"]
    for raw in followed:
        raw["through"] = min(raw["through"], record.sequence - 1 << INDEX_BITS)
    found = logs.outcome(nats)
    assert [one for one in found.violations if one.rule in (Rule.EXCHANGE, Rule.COPY)] == []
    assert any("are still to be taken from n-p0" in note for note in found.notes), found.notes
