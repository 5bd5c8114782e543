"""Ranges of real logs in NATS, read as the source does, but in this process and at once."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import archives
import pytest
from harness.nats import access
from harness.proxy import Proxy
from pyspark.sql.datasource import EqualTo

import eventstore.nats.jetstream
from eventstore.errors import CutMeanwhile, CutOff, NoLog
from eventstore.format.events import Acked, Completed, MessagePublished, WillFired
from eventstore.format.node_events import BrokerStarted
from eventstore.format.positions import MAX_INDEX, position
from eventstore.format.records import decode_record, link_of
from protocol.errors import FoldmqError
from spark.jobs.archive_job import archive
from spark.jobs.archive_plan import node_folder
from spark.runtime.marked_errors import BadOption, SparkFailure
from spark.tables.columns import ENTRIES
from spark.tables.discovery import find_logs
from spark.tables.log import Log
from spark.tables.options import SourceOptions
from spark.tables.planning import group_ranges, plan_ranges, split_ranges
from spark.tables.pushdown import push_filters
from spark.tables.range_reader import RangeReader
from spark.tables.row_filter import PushedFilters
from spark.tables.stored_log import RecordRange

sys.path.append(str(Path(__file__).parents[1] / "eventstore"))

from randomlogs import Rows, expected, random_log, without
from samples import ALL_PAYLOADS, every_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.logs import LogBuilder
    from harness.nats import Nats

    NewLog = Callable[..., LogBuilder]

GOLDEN = Path(__file__).parents[1] / "eventstore" / "golden"


class InMemory:
    """The records of a log without a server; those that are None are missing."""

    def __init__(
        self, records: Sequence[bytes | None], stream: str = "FOLDMQ_LOG_n1", borders: Any = ()
    ) -> None:
        self.records = records
        self.stream = stream
        self.first, self.last = 1, len(records)
        self.size = sum(len(data or b"") for data in records)
        self.borders = borders

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        for sequence, data in enumerate(self.records[first - 1 : last], first):
            if data is not None:
                yield sequence, data

    def link_before(self, sequence: int) -> bytes | None:
        return None

    def around(self, time_ms: int) -> tuple[int, int]:
        return self.first - 1, self.last

    def explain(self, sequence: int) -> FoldmqError | None:
        return None

    def place(self, sequence: int) -> str:
        return ""


def rows_in_memory(records: Sequence[bytes | None], **given: str) -> Rows:
    options = SourceOptions.read({"nats": "nats://nowhere", **given})
    reading = RangeReader(options.columns, options.pushed, options.mode)
    parts = split_ranges(
        plan_ranges([InMemory(records)], options, options.pushed), options.partitions
    )
    return [row for part in parts for batch in reading.read(part) for row in batch.to_pylist()]


def parts_of(given: dict[str, str]) -> tuple[SourceOptions, list[RecordRange]]:
    options = SourceOptions.read(given)
    return options, split_ranges(
        plan_ranges(find_logs(options), options, options.pushed), options.partitions
    )


def read(server: Nats, *logs: LogBuilder, **given: str) -> Rows:
    """The rows of some logs, without what is null in them."""
    for log in logs:
        log.store(server)
    streams = ",".join(log.stream for log in logs)
    options, parts = parts_of({**access(server), "stream": streams, **given})
    reading = RangeReader(options.columns, options.pushed, options.mode)
    return [
        {name: value for name, value in row.items() if value is not None}
        for part in parts
        for batch in reading.read(part)
        for row in batch.to_pylist()
    ]


def positions(server: Nats, log: LogBuilder, **given: str) -> list[tuple[int, int]]:
    found = read(server, log, columns="seq,index", **given)
    return [(row["seq"], row["index"]) for row in found]


@pytest.mark.parametrize("partitions", [1, 2, 7, 1000])
def test_any_partitions_give_the_rows_that_eventstore_reads(
    nats: Nats, new_log: NewLog, partitions: int
) -> None:
    log = random_log(new_log(), partitions, 60)
    found = read(nats, log, partitions=str(partitions))
    assert without(found, "time", "json") == expected(log)


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.records")))
def test_golden_logs_are_read(nats: Nats, new_log: NewLog, name: str) -> None:
    log = new_log("golden")
    data = (GOLDEN / f"{name}.records").read_bytes()
    while data:
        size = int.from_bytes(data[:4], "big")
        log.raw(data[4 : 4 + size])
        data = data[4 + size :]
    # its checkpoint has no payloads of its own
    columns = ",".join(name for name in ENTRIES if name not in ("payload", "json", "time"))
    for partitions in ("1", "3"):
        found = read(nats, log, columns=columns, partitions=partitions)
        assert found == without(expected(log), "payload")


def test_every_event_travels_through_nats(nats: Nats, new_log: NewLog) -> None:
    log = new_log()
    log.record(*every_event(), payloads=ALL_PAYLOADS)
    assert without(read(nats, log), "time", "json") == expected(log)


def test_parts_of_a_turn_are_read_in_their_own_partitions(nats: Nats, new_log: NewLog) -> None:
    log = new_log()
    log.turn([WillFired("a")], [WillFired("b")], [WillFired("c")], [WillFired("d")])
    log.record(WillFired("e"))
    log.turn([WillFired("void")], [WillFired("void")], [], whole=False)
    log.record(WillFired("f"))
    for partitions in ("1", "2", "3", "8"):
        found = read(nats, log, columns="seq,session", partitions=partitions)
        assert [row["session"] for row in found] == ["a", "b", "c", "d", "e", "f"]
        marks = read(nats, log, rows="records", columns="seq,void,part,last", partitions=partitions)
        assert [row["seq"] for row in marks if row["void"]] == [6, 7]


def test_a_turn_that_is_not_whole_yet_is_not_there(nats: Nats, new_log: NewLog) -> None:
    log = new_log()
    log.record(WillFired("a"))
    log.turn([WillFired("b")], [WillFired("b")], [], whole=False)
    for partitions in ("1", "3"):
        found = read(nats, log, columns="session", partitions=partitions)
        assert [row["session"] for row in found] == ["a"]


def test_until_ends_within_a_record_and_leaves_out_a_turn_that_ends_behind_it(
    nats: Nats, new_log: NewLog
) -> None:
    log = new_log()
    log.record(Acked("a", [1, 2, 3]), Acked("a", [4, 5]))
    log.turn([Acked("b", [1, 2])], [Acked("b", [3, 4])])
    for partitions in ("1", "3"):
        at = {"partitions": partitions}
        assert positions(nats, log, until="1", **at) == [(1, index) for index in range(5)]
        assert positions(nats, log, until="1.3", **at) == [(1, index) for index in range(4)]
        assert positions(nats, log, until="2.1", **at) == [(1, index) for index in range(5)]
        assert positions(nats, log, until="3.0", **at)[5:] == [(2, 0), (2, 1), (3, 0)]
        void = read(nats, log, rows="records", columns="void,seq", until="2", **at)
        assert [row["void"] for row in void] == [False, True]
    events = read(nats, log, rows="events", columns="index", until="1.3")
    assert [row["index"] for row in events] == [0, 3]
    assert read(nats, log, rows="events", columns="index", until="1.2") == [{"index": 0}]


def test_from_begins_within_a_record_and_within_a_turn(nats: Nats, new_log: NewLog) -> None:
    log = new_log()
    log.record(Acked("a", [1, 2, 3]))
    log.turn([Acked("b", [1, 2])], [Acked("b", [3, 4])])
    assert positions(nats, log, **{"from": "1.2"}) == [(1, 2), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert positions(nats, log, **{"from": "3"}) == [(3, 0), (3, 1)]
    assert positions(nats, log, **{"from": "2.1", "until": "3.0"}) == [(2, 1), (3, 0)]


def test_times_and_positions_of_each_log(nats: Nats, new_log: NewLog) -> None:
    one, two = new_log(begin_ms=1_000_000, step_ms=1000), new_log(begin_ms=1_003_000, step_ms=1000)
    for log in (one, two):
        for _ in range(6):
            log.record(WillFired("a"))
    at = "1970-01-01T00:16:44"
    found = read(nats, one, two, columns="node,seq", until=at)
    assert [(row["node"], row["seq"]) for row in found] == [
        *((one.node, seq) for seq in range(1, 6)), *((two.node, seq) for seq in range(1, 3)),
    ]  # fmt: skip
    found = read(nats, one, two, columns="node,seq", **{"from": at + "+00:00"})
    assert [row["seq"] for row in found] == [5, 6, 2, 3, 4, 5, 6]
    each = f'{{"{one.stream}": "2.0", "{two.stream}": "1"}}'
    found = read(nats, one, two, columns="node,seq", until=each)
    assert [(row["node"], row["seq"]) for row in found] == [
        (one.node, 1), (one.node, 2), (two.node, 1),
    ]  # fmt: skip
    assert read(nats, one, until="1970-01-01") == []


@pytest.mark.parametrize("partitions", ["1", "4"])
def test_a_log_that_was_cut_is_read_from_where_it_begins(
    nats: Nats, new_log: NewLog, partitions: str
) -> None:
    log = random_log(new_log(), 9, 40)
    log.store(nats)
    first = next(
        sequence
        for sequence, data in enumerate(log.records, 1)
        if sequence > 12 and decode_record(sequence, data).part == 0
    )
    log.cut(nats, first)
    found = read(nats, log, partitions=partitions)
    assert without(found, "time", "json") == [row for row in expected(log) if row["seq"] >= first]
    with pytest.raises(CutOff, match=f"begins with record {first}") as caught:
        read(nats, log, until="5.1")
    assert caught.value.exit_code == 66


def test_a_log_without_records_has_no_rows(nats: Nats, new_log: NewLog) -> None:
    assert read(nats, new_log()) == []
    assert read(nats, new_log(), rows="records", until="2026-01-01") == []


def test_filters_of_options_leave_rows_out_and_records_unread(nats: Nats, new_log: NewLog) -> None:
    log = random_log(new_log(), 3, 50)
    log.record(Completed("z", [1]), WillFired("b"), Acked('a,"b"\u20ac\x00', [3]))
    whole = read(nats, log)
    for given, kept in (
        ({"types": "WillFired"}, lambda row: row["type"] == "WillFired"),
        ({"types": "WillFired, Acked"}, lambda row: row["type"] in ("WillFired", "Acked")),
        ({"sessions": "b"}, lambda row: row.get("session") == "b"),
        ({"sessions": '["a,\\"b\\"\u20ac\\u0000"]'}, lambda row: row["seq"] == log.last
            and row["index"] == 2),
        ({"sessions": "b", "types": "Acked"}, lambda row: row.get("session") == "b"
            and row["type"] == "Acked"),
        ({"sessions": "nobody"}, lambda _row: False),
    ):  # fmt: skip
        found = read(nats, log, partitions="4", **given)
        assert found == [row for row in whole if kept(row)]
    kept = [row for row in read(nats, log, rows="events") if row.get("session") == "b"]
    assert read(nats, log, rows="events", sessions="b") == kept


def damaged(log: LogBuilder) -> LogBuilder:
    """Records 1 to 9, of which the fourth has another byte than it was written with."""
    for number in range(9):
        log.record(Acked("a", [number, number + 1]))
    log.damage(4)
    return log


@pytest.mark.parametrize("partitions", ["1", "3", "9"])
@pytest.mark.parametrize("grain", ["entries", "events", "records"])
def test_a_damaged_record_fails_the_job_with_log_and_record(
    nats: Nats, new_log: NewLog, partitions: str, grain: str
) -> None:
    log = damaged(new_log())
    with pytest.raises(SparkFailure) as caught:
        read(nats, log, rows=grain, partitions=partitions)
    assert f"log {log.stream}: the log is damaged: record 4 has a wrong checksum" in str(
        caught.value
    )
    assert caught.value.exit_code == 65
    assert "records up to" not in str(caught.value), "who read from there on does not know"


@pytest.mark.parametrize("partitions", ["1", "3", "9"])
def test_a_damaged_record_is_a_row_or_is_left_out_if_asked(
    nats: Nats, new_log: NewLog, partitions: str
) -> None:
    log = damaged(new_log())
    some = {"columns": "node,seq,index,type,damage", "partitions": partitions}
    rows = read(nats, log, **some, mode="permissive")
    assert [row["seq"] for row in rows if row["seq"] != 4] == [
        number for number in (1, 2, 3, 5, 6, 7, 8, 9) for _ in range(2)
    ]
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    told = {"node": log.node, "seq": 4, "index": 0, "damage": "has a wrong checksum"}
    assert [row for row in rows if "damage" in row] == [told]
    rest = read(nats, log, **some, mode="DROPMALFORMED")
    assert rest == [row for row in rows if "damage" not in row]
    raw = read(nats, log, rows="records", mode="PERMISSIVE", partitions=partitions)
    assert [row["data"] for row in raw] == log.records
    assert {row["seq"]: row.get("damage") for row in raw}[4] == "has a wrong checksum"


def test_records_that_are_missing_or_follow_no_other_are_damage(
    nats: Nats, new_log: NewLog
) -> None:
    log = new_log()
    for number in range(8):
        log.record(Acked("a", [number]))
    other = new_log()
    other.record(BrokerStarted("1"))
    log.records[6] = other.records[0]  # of another log: right by itself, but out of the chain
    log.store(nats)
    log.lose(nats, [3, 4])
    for partitions in ("1", "2", "4"):
        found = read(nats, log, rows="records", columns="seq,link,damage", mode="PERMISSIVE",
                     partitions=partitions)  # fmt: skip
        told = {row["seq"]: row["damage"] for row in found if "damage" in row}
        assert told[3] in (
            "and all up to 4 are missing or cannot be read",
            "is missing or cannot be read",
        )
        assert told[7] == "does not continue record 6"
        assert told[8] == "does not continue record 7"
        assert {row["seq"]: row.get("link") for row in found}[7] == link_of(log.records[6]).hex()
        entries = read(nats, log, columns="seq,type", mode="PERMISSIVE", partitions=partitions)
        assert [row["seq"] for row in entries if "type" in row] == [1, 2, 5, 6]
        with pytest.raises(SparkFailure, match="record 3"):
            read(nats, log, columns="seq,type", partitions=partitions)


def test_the_first_record_of_a_partition_continues_the_previous_one(
    nats: Nats, new_log: NewLog
) -> None:
    log, other = new_log(), new_log()
    for one in (log, other):
        for number in range(6):
            one.record(Acked(one.node, [number]))
    log.records[3:] = other.records[3:]
    with pytest.raises(SparkFailure, match="record 4 does not continue record 3"):
        read(nats, log, partitions="2")


@pytest.mark.parametrize("how", ["link", "garbage"])
def test_a_record_after_a_damaged_one_is_intact_in_any_partition(new_log: NewLog, how: str) -> None:
    log = new_log()
    for number in range(8):
        log.record(Acked("a", [number]))
    if how == "link":
        log.damage(4, 10)  # a byte of what the next one names it by
    else:
        log.records[3] = b"x" * 300
    for partitions in ("1", "2", "8"):
        some = {"columns": "seq,damage", "mode": "PERMISSIVE", "partitions": partitions}
        rows = rows_in_memory(log.records, **some)
        assert [row["seq"] for row in rows] == list(range(1, 9))
        assert [row["seq"] for row in rows if row["damage"] is not None] == [4]
    assert [row["seq"] for row in rows_in_memory(log.records, **{"from": "5"})] == [5, 6, 7, 8]


def test_parts_of_a_turn_whose_last_one_is_damaged_are_rows(new_log: NewLog) -> None:
    log = new_log()
    log.turn([WillFired("a")], [WillFired("b")], [WillFired("lost")])
    log.record(WillFired("c"))
    log.turn([WillFired("void")], [WillFired("lost")], [WillFired("void")], [], whole=False)
    log.record(WillFired("d"))
    log.turn([WillFired("lost")], [WillFired("e")])
    log.turn([WillFired("f")], [WillFired("lost")])
    log.turn([WillFired("lost")], [WillFired("void")], [], whole=False)
    log.record(WillFired("g"))
    log.turn([WillFired("h")], [WillFired("lost")], [], whole=False)
    gone = (3, 6, 9, 12, 13, 17)
    for lost in (None, b"x" * 300):
        records = [lost if seq in gone else data for seq, data in enumerate(log.records, 1)]
        for partitions in ("1", "2", "3", "5", "17"):
            some = {"columns": "seq,session,damage", "partitions": partitions}
            rows = rows_in_memory(records, **some, mode="DROPMALFORMED")
            assert [row["session"] for row in rows] == ["a", "b", "c", "d", "e", "f", "g", "h"]
            told = rows_in_memory(records, **some, mode="PERMISSIVE")
            assert [row for row in told if row["damage"] is None] == rows


@pytest.mark.parametrize("seed", range(4))
def test_damage_leaves_the_same_rows_in_any_partitions(new_log: NewLog, seed: int) -> None:
    chance = random.Random(seed)
    log = random_log(new_log(), seed, 40)
    records: list[bytes | None] = list(log.records)
    for at in chance.sample(range(len(records)), 12):
        records[at] = chance.choice([None, b"", b"x" * 300])
    some = {"columns": "seq,index,session", "mode": "DROPMALFORMED"}
    whole = rows_in_memory(records, **some, partitions="1")
    for partitions in ("2", "3", "7", "20", "1000"):
        assert rows_in_memory(records, **some, partitions=partitions) == whole


def test_an_event_that_cannot_be_read_is_damage_too(nats: Nats, new_log: NewLog) -> None:
    log = new_log()
    log.record(Acked("a", [1]))
    log.record({"session": 5, "pids": [1], "e": "Acked", "v": 1})
    log.record(Acked("a", [2]))
    with pytest.raises(SparkFailure, match=f"log {log.stream}: record 2, entry 0: event Acked"):
        read(nats, log)
    some = {"columns": "seq,session,damage"}
    rows = read(nats, log, **some, mode="PERMISSIVE")
    assert [row["seq"] for row in rows] == [1, 2, 3]
    assert "field session = 5" in rows[1]["damage"]
    assert [row["seq"] for row in read(nats, log, **some, mode="DROPMALFORMED")] == [1, 3]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_a_log_of_a_later_foldmq_is_refused_in_every_mode(
    nats: Nats, new_log: NewLog, mode: str
) -> None:
    log = new_log()
    log.record({"e": "FromTheFuture", "v": 1})
    with pytest.raises(SparkFailure, match="event 'FromTheFuture' version 1 is not known") as told:
        read(nats, log, mode=mode)
    assert told.value.exit_code == 78
    log = new_log()
    log.raw(b"FMQ\x03" + bytes(80))
    with pytest.raises(SparkFailure, match="format 3, this foldmq reads formats 1 to 2") as told:
        read(nats, log, mode=mode)
    assert told.value.exit_code == 78


def test_records_have_the_columns_of_their_frame(nats: Nats, new_log: NewLog) -> None:
    log = new_log()
    log.record(BrokerStarted("1"), Acked("a", [1, 2, 3]))
    log.record(MessagePublished("c", 1, False, ["t"], [], [1], 3, 0, 1), payloads=[b"abc"])
    first, second = read(nats, log, rows="records")
    assert first == {
        "node": log.node, "seq": 1, "time": first["time"], "time_ms": 1_700_000_000_000,
        "steady_ms": 1_700_000_000_000,
        "link": link_of(log.records[0]).hex(), "previous": "0" * 64, "part": 0, "last": True,
        "void": False, "events": 2, "entries": 4, "bytes": len(log.records[0]),
        "data": log.records[0],
    }  # fmt: skip
    assert second["previous"] == first["link"]
    assert second["entries"] == 1
    some = read(nats, log, rows="records", columns="time_ms,node,part,last,void,data")
    assert some == [{name: row[name] for name in some[0]} for row in (first, second)]


def test_which_logs_there_are(nats: Nats, new_log: NewLog) -> None:
    one, two = new_log(), new_log()
    for log in (one, two):
        log.record(WillFired(log.node))
        log.store(nats)
    server = access(nats)

    def nodes(**given: str) -> list[str]:
        _, parts = parts_of({**server, "columns": "node", **given})
        return [part.stored.stream for part in parts]

    assert {one.stream, two.stream} <= set(nodes(stream="*"))
    assert nodes(node=one.node) == [one.stream]
    assert nodes(stream=f"{two.stream},{one.stream}") == sorted([one.stream, two.stream])
    with pytest.raises(BadOption, match="give stream, one or several of"):
        nodes()
    with pytest.raises(NoLog, match="there is no log FOLDMQ_LOG_nobody on NATS at") as caught:
        nodes(node="nobody")
    assert caught.value.exit_code == 66


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        ({"password": "wrong-secret"}, 69, "the server rejects our credentials"),
        (
            {"nats": "nats://x:wrong-secret@127.0.0.1:{port}", "user": "", "password": ""},
            69,
            "the server rejects our credentials",
        ),
        ({"nats": "nats://127.0.0.1:1"}, 69, "connection refused"),
        ({"nats": "nats://[", "user": ""}, 78, "not a NATS address"),
        ({"creds": "/nowhere/my.creds"}, 78, "cannot read /nowhere/my.creds"),
        ({"until": "99"}, 64, "beyond the end of log"),
        ({"until": "tomorrow"}, 64, "expected a position such as 12"),
        ({"until": "{"}, 64, "until is not a JSON object"),
        ({"until": '{"FOLDMQ_LOG_typo": 1}'}, 64, "until names log FOLDMQ_LOG_typo, which is not"),
        ({"from": '{"FOLDMQ_LOG_typo": 1}'}, 64, "from names log FOLDMQ_LOG_typo, which is not"),
        ({"from": "1.9999999"}, 64, "expected a position such as 12"),
        ({"mode": "maybe"}, 64, "expected one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ({"partitions": "0"}, 64, "expected a number of 1 or more"),
        ({"rows": "cells"}, 64, "expected one of entries, events, records"),
        ({"types": "Nothing"}, 64, "there is no event type Nothing"),
        ({"sessions": "[1]"}, 64, "not a JSON array of names"),
        ({"rows": "records", "types": "Acked"}, 64, "they are of events"),
        ({"node": "a"}, 64, "stream and node exclude each other"),
        ({"stream": "a b"}, 64, "not the name of a node or stream: a b"),
        ({"pushdown": "yes"}, 64, "expected true or false"),
        ({"passwort": "x"}, 64, "there is no option 'passwort'"),
    ],
)
def test_errors_are_one_line_with_an_exit_code_and_without_secrets(
    nats: Nats, new_log: NewLog, given: dict[str, str], code: int, told: str
) -> None:
    log = new_log()
    log.record(WillFired("a"))
    given = {key: value.replace("{port}", str(nats.port)) for key, value in given.items()}
    with pytest.raises(FoldmqError) as caught:
        read(nats, log, **given)
    assert told in str(caught.value)
    assert caught.value.exit_code == code
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_records_cut_off_before_they_are_read_are_reported(nats: Nats, new_log: NewLog) -> None:
    log = random_log(new_log(), 4, 30)
    log.store(nats)
    options, parts = parts_of({**access(nats), "stream": log.stream, "partitions": "3"})
    log.cut(nats, 12)
    with pytest.raises(CutMeanwhile, match="it begins with record 12 now"):
        list(RangeReader(options.columns, options.pushed, options.mode).read(parts[0]))
    with pytest.raises(CutMeanwhile):
        list(RangeReader(options.columns, options.pushed, "PERMISSIVE").read(parts[1]))
    whole = list(RangeReader(options.columns, options.pushed, options.mode).read(parts[2]))
    assert sum(batch.num_rows for batch in whole) == len(
        [row for row in expected(log) if row["seq"] >= parts[2].first]
    )


def test_a_connection_that_breaks_is_made_again_and_nothing_is_lost_or_twice(
    nats: Nats, new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventstore.nats.jetstream, "REQUEST_SECONDS", 1.0)
    log = new_log()
    payload = bytes(100_000)
    for number in range(60):
        log.record(
            MessagePublished("c", 1, False, ["t"], [], [number + 1], len(payload), 0, 1),
            payloads=[payload],
        )
    log.store(nats)
    proxy = Proxy(nats.port)
    try:
        options, [part] = parts_of(
            {**access(nats), "nats": f"nats://127.0.0.1:{proxy.port}", "stream": log.stream,
             "columns": "seq,size", "partitions": "1"}
        )  # fmt: skip
        cut: list[bool] = []

        def cut_and_restore() -> None:
            cut.append(proxy.cut(1, 2_000_000, 30))
            proxy.restore()

        cutting = threading.Thread(target=cut_and_restore)
        cutting.start()
        found = list(RangeReader(options.columns, options.pushed, options.mode).read(part))
        cutting.join()
    finally:
        proxy.close()
    assert cut == [True]
    assert [seq for batch in found for seq in batch["seq"].to_pylist()] == list(range(1, 61))


def test_a_reader_that_is_left_early_leaves_no_thread_and_no_consumer(
    nats: Nats, new_log: NewLog
) -> None:
    log = random_log(new_log(), 8, 12_000)
    log.store(nats)
    options, [part] = parts_of({**access(nats), "stream": log.stream, "partitions": "1"})
    before = threading.active_count()
    batches = RangeReader(options.columns, options.pushed, options.mode).read(part)
    next(batches)
    assert threading.active_count() > before
    batches.close()  # type: ignore[attr-defined] # a generator
    assert threading.active_count() == before, threading.enumerate()
    assert nats.api(f"STREAM.INFO.{log.stream}")["state"]["consumer_count"] == 0


def test_partitions_cover_the_log_once(nats: Nats, new_log: NewLog) -> None:
    log = random_log(new_log(), 6, 50)
    log.store(nats)
    for wanted in (1, 2, 3, 49, 50, 51):
        _, parts = parts_of({**access(nats), "stream": log.stream, "partitions": str(wanted)})
        assert len(parts) == min(wanted, log.last)
        covered = [sequence for part in parts for sequence in range(part.first, part.last + 1)]
        assert covered == list(range(1, log.last + 1))


class Counted(int):
    """A number that counts how often it is compared."""

    looks = 0

    def __sub__(self, other: int) -> int:
        Counted.looks += 1
        return int(self) - other

    def __lt__(self, other: int) -> bool:
        Counted.looks += 1
        return int(self) < other


def test_borders_are_found_without_looking_at_all_of_them() -> None:
    records = [b"x"] * 4000
    stored = InMemory(records, borders=[Counted(at) for at in range(1, 4001, 4)])
    Counted.looks = 0
    parts = split_ranges([RecordRange(stored, 1, 4000, 4000)], 400)
    assert Counted.looks < 40 * 400  # they are 1000
    assert len(parts) == 400
    assert all(part.first % 4 == 1 for part in parts)
    assert [part.first for part in parts[1:]] == [part.last + 1 for part in parts[:-1]]
    near = split_ranges([RecordRange(InMemory(records, borders=(9, 1990, 3999)), 1, 4000, 4000)], 2)
    assert [(part.first, part.last) for part in near] == [(1, 1989), (1990, 4000)]


@pytest.mark.parametrize(
    ("logs", "wanted", "tasks"), [(3, None, 4), (8, None, 9), (50, None, 9), (50, 20, 18)]
)
def test_many_small_logs_share_tasks(logs: int, wanted: int | None, tasks: int) -> None:
    """And every range is read once; that of a large log has a task of its own."""
    large = InMemory([b"x"] * 40, "large")
    stored = [InMemory([b"x"] * 2, f"small{number}") for number in range(logs)]
    parts = split_ranges([RecordRange(large, 1, 40, 40)], 2)
    parts += [RecordRange(one, 1, 2, 2) for one in stored]
    groups = group_ranges(parts, wanted)
    assert len(groups) == tasks + 1
    assert sorted(part.stored.stream for some in groups for part in some) == sorted(
        ["large", "large", *(one.stream for one in stored)]
    )
    assert all(len(some) == 1 for some in groups if some[0].stored is large)


def test_the_node_of_a_stream_with_another_name_is_that_of_its_records() -> None:
    pushed, rest = push_filters(PushedFilters(), [EqualTo(("node",), "n1")])
    assert len(rest) == 1, "Spark looks at the rows"
    assert not pushed.excludes("FOLDMQ_LOG_n1")
    assert pushed.excludes("FOLDMQ_LOG_n2")
    assert not pushed.excludes("COPY_OF_n1")


def test_logs_are_looked_up_where_a_loop_is_running_already(
    nats: Nats, new_log: NewLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, whose cells are run by a loop."""
    log = new_log()
    log.record(WillFired("a"))
    log.store(nats)
    monkeypatch.setattr(archives, "NODE", node_folder(log.stream))
    archives.archived(tmp_path, log)
    opened = Log(None, {**access(nats), "stream": log.stream})  # type: ignore[arg-type] # no job

    async def cell() -> None:
        assert opened.bounds()[log.node].last == 1
        assert opened.pinned().options["until"] == json.dumps({log.stream: f"1.{MAX_INDEX}"})
        [stored] = find_logs(SourceOptions.read(opened.options))
        assert stored.explain(1) is None
        [there] = archive(opened, str(tmp_path))  # nothing is new: Spark has nothing to do
        assert there.through == 1
        with pytest.raises(NoLog):
            opened.having(stream="FOLDMQ_LOG_nobody").bounds()

    asyncio.run(cell())


def test_the_last_position_of_a_record_is_all_of_it() -> None:
    options = SourceOptions.read({"nats": "nats://x", "until": "7", "from": "7"})
    assert options.until.everywhere is not None
    assert options.start.everywhere is not None
    assert options.until.everywhere.position == position(7, MAX_INDEX)
    assert options.start.everywhere.position == position(7, 0)
