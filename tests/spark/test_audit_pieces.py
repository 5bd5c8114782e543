"""The parts of an audit that need no Spark."""

import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from brokenlogs import Story, at, delivered, published
from harness.logs import HeldLog, LogBuilder

from eventstore.format.event_parsing import entries
from eventstore.format.events import Acked, Delivered, MessagePublished
from eventstore.format.node_events import BrokerStarted, LogEndUnproven
from eventstore.format.records import GENESIS, decode_record
from projections.audit import audit_engine
from projections.audit.acknowledgement_audit import BUCKETS
from projections.audit.audit_outcome import MAX_VIOLATIONS
from projections.audit.audit_results import (
    RESULT_COLUMNS,
    SLOWEST,
    AuditResults,
    AuditTotals,
    bounded,
    quantile,
)
from projections.audit.chain_check import (
    COUNTS,
    PIECE,
    PROBLEM,
    RATES,
    LogNote,
    LogPiece,
    RecordLink,
    check_link,
    join_pieces,
)
from projections.audit.event_codec import pack_events, packed_item, unpack_events
from projections.audit.fact_buffer import FactBuffer
from projections.audit.facts import EFFECT, EVENTS, NODE, RELEASED, SENT, TOTALS, VIOLATION
from projections.audit.histogram import MIN_MS, RateCounts, interval_ms, merge_rates
from projections.audit.log_summary import BEYOND_ALL, summarize_logs
from projections.audit.rule_table import Rule
from projections.log_proof import statement
from spark.jobs.fact_reading import FactRange
from spark.jobs.fact_schema import fact_batch
from spark.jobs.fact_tables import FactsReader
from spark.tables.options import SourceOptions
from spark.tables.partitions import LogPartition
from spark.tables.stored_log import RecordRange

sys.path.append(str(Path(__file__).parents[1] / "eventstore"))
from collections.abc import Collection, Sequence

from samples import every_event

from eventstore.format.event_parsing import Event

# ------------------------------------------------------------------------------ packing


@pytest.mark.parametrize("event", every_event(), ids=lambda event: type(event).__name__)
def test_packed_events_are_unpacked_unchanged(event: Event) -> None:
    session = getattr(event, "session", None) or "none"
    data = pack_events(
        [packed_item(event, at(3, 4), 1000, 2), packed_item(event, at(3, 5), 1001, 2)]
    )
    (first, second) = unpack_events(session, data)
    assert first[:3] == (at(3, 4), 1000, 2)
    assert second[:3] == (at(3, 5), 1001, 2)
    for _, _, _, found in (first, second):
        assert type(found) is type(event)
        assert orjson.dumps(found) == orjson.dumps(event)
        assert entries(found) == entries(event)


# -------------------------------------------------------------------------------- chain


def link(sequence: int, part: int = 0, *, last: bool = True, **given: Any) -> RecordLink:
    hexed = {"link": f"{sequence:064x}", "previous": f"{sequence - 1:064x}", "starts": False}
    return RecordLink(sequence=sequence, part=part, last=last, **{**hexed, **given})


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        (link(1), link(2), None),
        (link(1, last=False), link(2, 1), None),
        (link(2, 1, last=False), link(3, 2), None),
        (link(1, last=False), link(2, starts=True), None),
        (link(1, link=""), link(2), None),
        (link(1, -1), link(2, 7), None),
        (link(1), link(3), None),
        (link(1), link(2, previous="00"), Rule.CHAIN),
        (link(1, last=False), link(2), Rule.TURN),
        (link(1), link(2, 1), Rule.TURN),
        (link(1, 1, last=False), link(2, 1), Rule.TURN),
    ],
)
def test_records_that_may_follow_each_other(
    one: RecordLink, other: RecordLink, rule: str | None
) -> None:
    assert [found.rule for found in check_link(one, other)] == ([] if rule is None else [rule])


def piece(first: int, last: int, **given: Any) -> LogPiece:
    begin = link(first, previous=GENESIS.hex()) if first == 1 else link(first, **given)
    return LogPiece(begin, link(last), 1000 + first, 1000 + last, last - first + 1, 10, 20, 30)


def test_pieces_are_put_together_in_any_order() -> None:
    pieces = [piece(1, 3), piece(4, 6), piece(7, 9)]
    random.Random(1).shuffle(pieces)
    whole, breaks = join_pieces(pieces)
    assert breaks == []
    assert (whole.first.sequence, whole.last.sequence, whole.records) == (1, 9, 9)
    assert (whole.events, whole.entries, whole.bytes) == (30, 60, 90)
    assert (whole.begins_ms, whole.ends_ms) == (1001, 1009)


@pytest.mark.parametrize("gone", [{2}, {4, 5}, {9}, {3, 7}])
@pytest.mark.parametrize("splits", [(), (3,), (4, 7), (5, 8)])
def test_missing_records_are_reported_once(gone: set[int], splits: tuple[int, ...]) -> None:
    log = LogBuilder("n")
    for _ in range(9):
        log.record(Acked("s", []))
    rows = scanned(log, *splits, gone=gone)
    found = summarize_logs(notes(rows))
    broken = [one.at for _, one in found.breaks]
    assert all(one.rule == Rule.CHAIN for _, one in found.breaks)
    assert min(broken) == at(min(gone)) == found.logs["n"].trusted
    assert {place >> 20 for place in broken} <= gone
    assert found.nodes[0].records == 9 - len(gone)


def test_the_first_record_continues_nothing() -> None:
    (broken,) = join_pieces([LogPiece(link(1, previous="1" * 64), link(1), 0, 0)])[1]
    assert (broken.rule, broken.at) == (Rule.CHAIN, at(1))


# --------------------------------------------------------------------------------- scan


def scanned(
    log: LogBuilder, *splits: int, end: int | None = None, gone: Collection[int] = ()
) -> list[dict[str, Any]]:
    """The facts of a log, scanned in as many tasks as it is split into."""
    rows: list[dict[str, Any]] = []
    for before, last in pairwise([0, *splits, log.last]):
        part = RecordRange(HeldLog(log, gone=gone), before + 1, last, log.last, until=end)
        reader = FactsReader(SourceOptions.read({"archive": "none"}))
        for batch in reader.read(LogPartition([FactRange(part, log.node, MIN_MS)])):
            rows += batch.to_pylist()
    return rows


def of_kind(rows: Sequence[dict[str, Any]], kind: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def notes(rows: Sequence[dict[str, Any]]) -> list[LogNote]:
    return [LogNote.read(row["node"], row["at"], row["data"]) for row in of_kind(rows, NODE)]


def test_a_message_released_in_another_task_is_left_to_a_join() -> None:
    story = Story("n")(published("t", qos=2), payloads=1)
    story.log.record({"e": "Released", "v": 1, "session": "p", "pids": [1], "refs": [at(2)]})
    together, apart = scanned(story.log), scanned(story.log, 2)
    (effect,) = of_kind(together, EFFECT)
    assert (effect["at"], effect["ref"], effect["topic"]) == (at(3), at(2), "t")
    assert not of_kind(together, SENT)
    assert not of_kind(apart, EFFECT)
    (sent,), (released,) = of_kind(apart, SENT), of_kind(apart, RELEASED)
    assert (sent["ref"], sent["topic"]) == (at(2), "t")
    assert (released["at"], released["ref"]) == (at(3), at(2))


def test_events_of_a_session_stay_in_order_and_are_not_lost() -> None:
    story = Story("n")
    for _ in range(50):
        story(published("t", "t", pid=1), payloads=2)
    packed = [row for row in of_kind(scanned(story.log, 10, 30), EVENTS) if row["session"] == "p"]
    assert len(packed) == 3
    places = [at for row in packed for at, *_ in unpack_events("p", row["data"])]
    assert places == sorted(places)
    assert len(places) == 51


@pytest.mark.parametrize(
    "event",
    [
        {"e": "Delivered", "v": 1, "session": "s", "filter": "t", "qos": 1, "pids": [1],
         "refs": [[0, 10**15, 1]], "retain": True, "queued": -1},
        {"e": "Queued", "v": 1, "session": "s", "filter": "t", "qos": 1,
         "refs": [1 << 63], "size": 3, "retain": True},
        {"e": "MessageDropped", "v": 1, "session": "s", "reason": "x", "count": 1,
         "refs": [[5, -7, 1]], "filter": "t", "queued": -1},
        {"e": "MessagePublished", "v": 1, "session": "p", "qos": 1, "retain": False,
         "topics": ["t"], "which": [0, 5], "pids": [1, 2], "sizes": 0, "at": 0, "count": 2},
        {"e": "MessagePublished", "v": 1, "session": "p", "qos": 1, "retain": False,
         "topics": [], "which": [], "pids": [1], "sizes": 0, "at": 0, "count": 1},
        {"e": "RetainedSnapshot", "v": 1, "topics": ["a", "b"], "qos": [1], "refs": [1],
         "sizes": 0, "at": 0, "count": 2, "session": None},
        {"e": "Acked", "v": 1, "session": "s"},
    ],
)  # fmt: skip
def test_an_event_that_cannot_be_is_a_violation_and_costs_no_memory(event: dict[str, Any]) -> None:
    log = LogBuilder("n")
    log.record(BrokerStarted("0.1"), event, Acked("s", [1]))
    (problem,) = (note for note in notes(scanned(log)) if note.about == PROBLEM)
    assert (problem.values["rule"], problem.at) == (Rule.EVENT, at(1, 1))


def test_positions_beyond_the_end_are_ignored() -> None:
    story = Story("n")(published("t"), delivered(at(2)), Acked("s", [1]), payloads=1)
    rows = scanned(story.log, end=at(2, 1))
    (packed,) = (row for row in of_kind(rows, EVENTS) if row["session"] == "s")
    assert [place for place, *_ in unpack_events("s", packed["data"])][-1] == at(2, 1)
    log = summarize_logs(notes(rows)).logs["n"]
    assert log.unsure == at(2)
    assert log.trusted == BEYOND_ALL


def test_a_damaged_record_ends_the_audit_at_the_previous_turn() -> None:
    story = Story("n")
    story(published("t"), payloads=1, last=False)(delivered(at(2)), part=1)(Acked("s", [1]))
    story.log.damage(3)
    found = summarize_logs(notes(scanned(story.log)))
    log = found.logs["n"]
    assert (log.trusted, log.unsure) == (at(3), at(2))
    assert [one.rule for _, one in found.breaks] == [Rule.CHAIN]
    (node,) = found.nodes
    assert node.proven == [(node.begins_ms, time_of(story.log, 2))]
    assert (node.audited_entries, node.entries) == (entries_before(story.log, 3), node.entries)
    assert node.audited_entries < node.entries
    assert "record 3 is damaged or missing, and later ones are not" in statement(node.doubts[0])


def time_of(log: LogBuilder, record: int) -> int:
    return decode_record(record, log.records[record - 1]).time_ms


def entries_before(log: LogBuilder, record: int) -> int:
    """The number of entries in the records before one."""
    return sum(
        entries(event)
        for number in range(1, record)
        for _, event in decode_record(number, log.records[number - 1]).events()
    )


@pytest.mark.parametrize("bad", ["first", "last", "event"])
def test_the_audit_holds_up_to_the_damage(bad: str) -> None:
    """A damaged record at either end has no time: the log has those of the others."""
    log = LogBuilder("n")
    for number in range(4):
        log.record(BrokerStarted(str(number)))
    times = [time_of(log, record) for record in range(1, 5)]
    if bad == "event":
        log = LogBuilder("n")
        for number in range(4):
            unreadable = {"e": "Acked", "v": 1, "session": "s"} if number == 2 else Acked("s", [1])
            log.record(BrokerStarted(str(number)), unreadable, Acked("s", [2]))
    else:
        log.damage(1 if bad == "first" else 4)
    (node,) = summarize_logs(notes(scanned(log))).nodes
    begin, end, proven, audited = {
        "first": (times[1], times[3], [], 0),
        "last": (times[0], times[2], [(times[0], times[2])], 3),
        "event": (times[0], times[3], [(times[0], times[2])], 3 + 3 + 1),
    }[bad]
    assert (node.begins_ms, node.ends_ms) == (begin, end)
    assert (node.proven, node.audited_entries) == (proven, audited)


def test_a_doubt_behind_the_damage_is_not_named_beside_it() -> None:
    log = LogBuilder("n")
    log.record(BrokerStarted("1"))
    log.record(BrokerStarted("1"))
    log.record(BrokerStarted("1"), LogEndUnproven("copy", 2, log.time_ms, 9))
    log.damage(2)
    (node,) = summarize_logs(notes(scanned(log))).nodes
    assert [doubt.reason for doubt in node.doubts] == ["not_audited"]


def test_the_records_of_another_node_are_named() -> None:
    log = LogBuilder("n1")
    log.record(BrokerStarted("1"))
    log.record(BrokerStarted("1"))
    log.node = "n2"
    log.record(BrokerStarted("1"))
    found = summarize_logs(notes(scanned(log)))
    remarks = [one for one in found.remarks if "restored" in one]
    assert remarks == [
        (
            "node n2: its records before 3 are of node n1: the log was restored from a backup as "
            "another node (restore --new-node)"
        )
    ]


def test_facts_are_counted() -> None:
    story = Story("n")
    for _ in range(20):
        story(published("t", "t", "t"), payloads=3)
    rows = scanned(story.log, 7)
    counts = [note.values for note in notes(rows) if note.about == COUNTS]
    assert sum(one.get(str(EFFECT), 0) for one in counts) == 60 == len(of_kind(rows, EFFECT))
    pieces = [LogPiece.read(note.values) for note in notes(rows) if note.about == PIECE]
    assert [(one.records, one.entries) for one in pieces] == [(7, 4 + 18), (14, 42)]
    assert sum(note.values["published"] for note in notes(rows) if note.about == RATES) == 60


def test_long_names_make_small_batches() -> None:
    """A topic may have 64 KiB, and one event may say it for thousands of messages."""
    facts = FactBuffer("n1")
    count, topic = 2000, "t" * 60_000
    numbers = [[number] * count for number in range(7)]
    facts.effects.extend(["s"] * count, *numbers[:5], [topic] * count, *numbers[5:])
    batches = list(facts.rest())
    assert sum(map(len, batches)) == facts.counts[EFFECT] == count
    assert max(fact_batch(facts).nbytes for facts in batches) < 16 << 20


def test_as_many_pieces_as_one_can_hold() -> None:
    """A log in which no record follows the other does not become a note for each."""
    log = LogBuilder("n")
    for _ in range(1500):
        log.record(Acked("s", []))
    shuffled = LogBuilder("n")
    shuffled.records = log.records[::-1]
    pieces = [note for note in notes(scanned(shuffled)) if note.about == PIECE]
    assert 1000 <= len(pieces) <= 1001
    assert sum(note.values["records"] for note in pieces) == 1500


# ------------------------------------------------------------------------------- figures


def test_rates_grow_coarser_and_lose_nothing() -> None:
    rates, chance = RateCounts(), random.Random(2)
    times = [chance.randrange(10**10) for _ in range(20_000)]
    for time_ms in times:
        rates.of(time_ms)[Delivered] += 1
        rates.of(time_ms)[MessagePublished] += 2
    points, length = merge_rates(("n", point) for point in rates.points())
    assert len(points) <= 241
    assert sum(point.delivered for point in points) == 20_000
    assert sum(point.published for point in points) == 40_000
    for point in points:
        inside = sum(point.at_ms <= time_ms < point.at_ms + length for time_ms in times)
        assert point.delivered == inside


@pytest.mark.parametrize(
    ("begins_ms", "ends_ms", "length_ms"),
    [(0, 0, 1000), (0, 239_999, 1000), (0, 240_000, 2000), (5, 10**10, 65_536_000), (9, 0, 1000)],
)
def test_intervals_are_few(begins_ms: int, ends_ms: int, length_ms: int) -> None:
    assert interval_ms(begins_ms, ends_ms) == length_ms


def test_readers_of_one_log_count_in_the_same_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, the driver gets little more than what is shown."""
    log = LogBuilder("of another name", step_ms=3600_000)
    for _ in range(2000):
        log.record(Acked("s", [1]))
    log.stream = "COPY"
    monkeypatch.setattr("spark.jobs.fact_reading.find_logs", lambda _options: [HeldLog(log)])
    reader = FactsReader(SourceOptions.read({"archive": "none", "partitions": "50"}))
    parts = reader.partitions()
    assert len(parts) == 50
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["node"] for row in rows} == {"of another name"}
    told = [note for note in notes(rows) if note.about == RATES]
    assert sum(note.values["completed"] for note in told) == 2000
    assert len(told) < 240 + 50
    points, length = merge_rates((note.node, note.values) for note in told)
    assert 120 <= len(points) <= 241
    assert {note.values["length_ms"] for note in told} == {length}


def test_a_reader_keeps_few_intervals_when_clocks_are_wrong() -> None:
    rates = RateCounts()
    for second in range(100_000):
        rates.of(second * 1000)[Acked] += 1
    points = list(rates.points())
    assert len(points) <= 512
    assert sum(point["completed"] for point in points) == 100_000


def test_rates_of_several_readers_are_added() -> None:
    one, other = RateCounts(), RateCounts()
    one.of(1500)[Acked] += 1
    other.of(1999)[Acked] += 1
    other.of(2000)[Acked] += 1
    told = [("n", point) for rates in (one, other) for point in rates.points()]
    points, length = merge_rates(told)
    assert length == 1000
    assert [(point.at_ms, point.completed) for point in points] == [(1000, 2), (2000, 1)]
    assert merge_rates([]) == ((), 1000)


def latencies(*values_ms: int) -> dict[int, list[int]]:
    buckets = [0] * BUCKETS
    for value in values_ms:
        buckets[value.bit_length()] += 1
    return {1: buckets}


def test_quantiles_are_bounds_of_their_bucket() -> None:
    values = [0, 1, 5, 6, 7, 300]
    ((_, buckets),) = latencies(*values).items()
    assert bounded(quantile(buckets, 0.5), 300) == 7
    assert bounded(quantile(buckets, 0.99), 300) == 300
    assert bounded(quantile(buckets, 0.01), 300) == 0


def rows_of(results: AuditResults) -> list[dict[str, Any]]:
    return [dict(zip(RESULT_COLUMNS, row, strict=True)) for row in results.rest()]


def test_totals_of_tasks_are_put_together() -> None:
    tasks = []
    for task in range(3):
        results = AuditResults()
        for number in range(30):
            longest = task * 100 + number
            results.totals.add_session("n", f"s{longest}", latencies(longest), {1: longest})
        results.totals.counts["expected"] += 5
        tasks.append(results)
    totals = AuditTotals()
    for results in tasks:
        (row,) = rows_of(results)
        assert row["kind"] == TOTALS
        totals.merge(orjson.loads(row["data"]))
    assert totals.counts["expected"] == 15
    (latency,) = audit_engine.latencies(totals)
    assert (sum(latency.counts), latency.max_ms, latency.qos) == (90, 229, 1)
    assert len(latency.bounds_ms) == len(latency.counts)
    slowest = audit_engine.slowest(totals)
    assert [one.max_ms for one in slowest] == list(range(229, 229 - SLOWEST, -1))


def test_violations_that_are_too_many_are_counted() -> None:
    results = AuditResults()
    for number in range(MAX_VIOLATIONS + 50):
        results.violation("order", "n", "s", number, "what")
    results.violation("queue", "n", "s", 1, "what")
    rows = rows_of(results)
    kept = [row["topic"] for row in rows if row["kind"] == VIOLATION]
    assert (kept.count("order"), kept.count("queue")) == (MAX_VIOLATIONS, 1)
    totals = orjson.loads(rows[-1]["data"])
    assert totals["counts"]["wrong order"] == MAX_VIOLATIONS + 50


def test_decoding_is_that_of_the_broker() -> None:
    story = Story("n")(published("t"), delivered(at(2)), payloads=1)
    record = decode_record(2, story.log.records[1])
    packed = [
        event
        for row in of_kind(scanned(story.log), EVENTS)
        for place, _, _, event in unpack_events(row["session"], row["data"])
        if place >= at(2)
    ]
    assert sorted(map(str, packed)) == sorted(str(event) for _, event in record.events())
