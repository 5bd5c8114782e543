"""The data source in Spark: tables, filters, several logs, errors, and hidden secrets."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness.nats
import pytest
from asrows import entry_rows
from harness.broker import environment
from harness.nats import access
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import LongType, StringType, StructType
from randomlogs import expected, random_log

from eventstore.format.events import Acked, WillFired
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import decode_record
from spark.runtime.marked_errors import find_error
from spark.tables.columns import GRAINS, Columns
from spark.tables.log import Log, LogBounds

sys.path.append(str(Path(__file__).parents[1] / "eventstore"))

from samples import ALL_PAYLOADS, every_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.logs import LogBuilder
    from harness.nats import Nats
    from pyspark.sql import DataFrame, SparkSession

    NewLog = Callable[..., LogBuilder]
    Opened = Callable[..., Log]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def rows(table: DataFrame) -> list[dict[str, Any]]:
    """The rows without nulls, in the order of the log."""
    found = [
        {name: value for name, value in row.asDict(recursive=True).items() if value is not None}
        for row in table.collect()
    ]
    return sorted(found, key=lambda row: (row["node"], row["seq"], row.get("index", 0)))


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.set(PUSHDOWN, before or "false")


def test_entries_in_spark_are_those_of_eventstore(opened: Opened, new_log: NewLog) -> None:
    one, two = random_log(new_log(), 1, 80), new_log()
    two.record(*every_event(), payloads=ALL_PAYLOADS)
    log = opened(one, two, partitions="5")
    found = rows(log.entries())
    for row in found:
        row.pop("time")
        row.pop("json")
        if "payload" in row:
            row["payload"] = bytes(row["payload"])
    records = [decode_record(number, data) for number, data in enumerate(two.records, 1)]
    assert found == expected(one) + entry_rows(records)


@pytest.mark.parametrize("grain", GRAINS)
def test_columns_and_their_types(opened: Opened, new_log: NewLog, grain: str) -> None:
    log = new_log()
    log.record(*every_event(), payloads=ALL_PAYLOADS)
    table = getattr(opened(log), grain)()
    assert table.columns == list(GRAINS[grain])
    for name in ("seq", "time", "damage"):
        some = getattr(opened(log), grain)(name)
        assert [field.simpleString() for field in some.schema] == [
            field.simpleString() for field in table.schema if field.name == name
        ]
        assert some.count() == table.count()
    assert table.select("time").first()[0] is not None


def test_time_is_the_moment_whatever_the_zone_of_the_session(
    spark: SparkSession, opened: Opened, new_log: NewLog
) -> None:
    log = new_log(begin_ms=1_700_000_000_123)
    log.record(WillFired("a"))
    [row] = (
        opened(log).entries("time", "time_ms").select(F.unix_millis("time"), "time_ms").collect()
    )
    assert tuple(row) == (1_700_000_000_123, 1_700_000_000_123)


def test_the_source_is_found_without_a_call(
    spark: SparkSession, nats: Nats, new_log: NewLog
) -> None:
    """Spark looks for modules pyspark_*; here in a session of its own, which registers nothing."""
    log = new_log()
    log.record(WillFired("a"))
    log.store(nats)
    fresh = spark.newSession()
    reader = fresh.read.format("foldmq").options(**access(nats), stream=log.stream)
    assert reader.load().count() == 1


def test_a_schema_may_name_some_columns_in_any_order(
    spark: SparkSession, nats: Nats, new_log: NewLog
) -> None:
    log = new_log()
    log.record(WillFired("a"))
    log.store(nats)
    reader = spark.read.format("foldmq").options(**access(nats), stream=log.stream)
    schema = StructType().add("session", StringType()).add("seq", LongType())
    assert reader.schema(schema).load().collect() == [("a", 1)]
    assert reader.schema("type string").load().collect() == [("WillFired",)]
    with pytest.raises(Exception, match="column seq of the schema is string") as caught:
        reader.schema("seq string").load().collect()
    told = find_error(caught.value)
    assert told is not None
    assert told.exit_code == 64


def test_a_table_is_as_the_log_was_when_it_was_read_first(
    opened: Opened, new_log: NewLog, nats: Nats
) -> None:
    log = new_log()
    log.record(WillFired("a"))
    pinned = opened(log).pinned()
    table = opened(log).entries("seq")
    assert table.count() == 1
    log.record(WillFired("b"))
    log.store(nats)
    assert table.count() == 1
    assert pinned.entries("seq").count() == 1
    assert opened(log).entries("seq").count() == 2
    assert pinned.bounds() == {log.node: LogBounds(log.stream, 1, 2, 1, 1, whole=True)}


def test_an_empty_log_is_an_empty_table(opened: Opened, new_log: NewLog) -> None:
    log = opened(new_log())
    assert log.entries().count() == 0
    assert log.records("data").collect() == []
    assert log.pinned().bounds() == {}


FILTERS: list[Callable[[], Any]] = [
    lambda: F.col("type") == "Acked",
    lambda: F.col("type").isin("Acked", "WillFired"),
    lambda: F.col("type") != "Acked",
    lambda: (F.col("type") == "Acked") & (F.col("session") == "b"),
    lambda: (F.col("type") == "Acked") | (F.col("session") == "a"),
    lambda: F.col("session").isNull(),
    lambda: F.col("session").isNotNull(),
    lambda: F.col("session").eqNullSafe("a"),
    lambda: F.col("session").startswith("a"),
    lambda: F.col("session").isin("a", None),
    lambda: F.col("seq") == 7,
    lambda: F.col("seq") < 7.5,
    lambda: F.col("seq") > 20,
    lambda: (F.col("seq") >= 7) & (F.col("seq") <= 9),
    lambda: F.col("seq").isin(3, 8, 30),
    lambda: ~F.col("seq").between(3, 35),
    lambda: F.col("position") <= (7 << 20) + 1,
    lambda: F.col("position") > (30 << 20) + 1,
    lambda: F.col("time") <= F.lit(datetime(2023, 11, 14, 22, 13, 20, 105_000, UTC)),
    lambda: F.col("time") > F.lit(datetime(2023, 11, 14, 22, 13, 20, 200_000, UTC)),
    lambda: F.col("time") == F.lit(datetime(2023, 11, 14, 22, 13, 20, 100_000, UTC)),
    lambda: F.col("time_ms") >= 1_700_000_000_250,
    lambda: F.col("time_ms") < 0,
    lambda: F.col("node") == "nobody",
    lambda: F.col("node").isNotNull(),
    lambda: F.col("retain"),
    lambda: F.col("qos") >= 1,
    lambda: F.col("ref") == 1 << 20,
]


NAMES = ("node", "seq", "index", "position", "time", "time_ms", "type", "session", "qos", "retain",
         "ref")  # fmt: skip


@pytest.mark.parametrize(
    "number",
    [
        number if number % 2 == 0 else pytest.param(number, marks=pytest.mark.long)
        for number in range(len(FILTERS))
    ],
)
@pytest.mark.usefixtures("pushing")
def test_pushed_down_filters_agree_with_spark(
    spark: SparkSession, nats: Nats, filtered: tuple[LogBuilder, list[Any]], number: int
) -> None:
    log, whole = filtered
    source = Log(spark, {**access(nats), "stream": log.stream, "partitions": "2"})
    source = source.having(pushdown="true", clockSkew="1")
    pushed = source.entries(*NAMES).where(FILTERS[number]())
    assert sorted(map(tuple, pushed.collect()), key=repr) == sorted(
        (tuple(row)[: len(NAMES)] for row in whole if row[f"kept{number}"]), key=repr
    )


@pytest.fixture(scope="module")
def filtered(nats: Nats, spark: SparkSession) -> tuple[LogBuilder, list[Any]]:
    """A log, and all its rows with what each of the filters says of them."""
    from harness.logs import LogBuilder

    log = random_log(LogBuilder("filtered"), 11, 40)
    log.record(BrokerStarted("1"))
    log.store(nats)
    source = Log(spark, {**access(nats), "stream": log.stream})
    kept = [condition().alias(f"kept{number}") for number, condition in enumerate(FILTERS)]
    return log, source.entries(*NAMES).select("*", *kept).collect()


@pytest.mark.usefixtures("pushing")
def test_a_filter_that_is_pushed_down_leaves_records_unread(
    opened: Opened, new_log: NewLog, nats: Nats
) -> None:
    log = new_log(step_ms=1000)
    for _ in range(20):
        log.record(WillFired("a"))
    log.damage(15)  # reading it fails
    source = opened(log).having(pushdown="true", clockSkew="1")
    for condition in ("seq <= 10", "seq < 11 and seq > 3", "position < 12582912", "seq in (2, 9)",
                      "time_ms < 1700000008000", "time < timestamp'2023-11-14 22:13:26Z'",
                      "node = 'another'"):  # fmt: skip
        source.entries("node", "seq", "position", "time", "time_ms").where(condition).collect()
    with pytest.raises(Exception, match="record 15"):
        source.entries("seq").where("seq > 3").collect()


def test_two_uses_of_one_table_do_not_share_filters(opened: Opened, new_log: NewLog) -> None:
    """Spark 4.3 gives both what was pushed down for the last one: hence option pushdown."""
    log = new_log()
    log.record(WillFired("a"), Acked("a", [1, 2]))
    table = opened(log).entries("type")
    both = table.where("type = 'Acked'").union(table.where("type = 'WillFired'"))
    assert sorted(row.type for row in both.collect()) == ["Acked", "Acked", "WillFired"]
    assert table.count() == 3


@pytest.mark.usefixtures("pushing")
def test_two_uses_of_one_table_do_not_share_filters_where_pushing_is_on(
    opened: Opened, new_log: NewLog
) -> None:
    test_two_uses_of_one_table_do_not_share_filters(opened, new_log)


def test_options_of_one_load_leave_rows_out(opened: Opened, new_log: NewLog) -> None:
    log = opened(random_log(new_log(), 2, 40))
    whole = log.entries("node", "seq", "index", "type", "session")
    some = log.only(types=["Acked"], sessions=["b"]).entries(*whole.columns)
    assert rows(some) == rows(whole.where("type = 'Acked' and session = 'b'"))
    late = log.since("10").until("20.0").entries("node", "seq", "index")
    assert rows(late) == rows(
        whole.where("seq >= 10 and (seq < 20 or seq = 20 and index = 0)").select(*late.columns)
    )


def test_errors_of_executors_are_found_again(opened: Opened, new_log: NewLog) -> None:
    log = new_log()
    for _ in range(5):
        log.record(WillFired("a"))
    log.damage(3)
    with pytest.raises(Exception, match="FOLDMQ-ERROR") as caught:
        opened(log).entries("seq").collect()
    told = find_error(caught.value)
    assert told is not None
    assert str(told).startswith(f"log {log.stream}: the log is damaged: record 3 has a wrong")
    assert told.exit_code == 65


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        ({"stream": "FOLDMQ_LOG_nobody"}, 66, "there is no log FOLDMQ_LOG_nobody"),
        ({"password": "hidden-wrong"}, 69, "the server rejects our credentials"),
        ({"rows": "cells"}, 64, "rows = 'cells'"),
    ],
)
def test_errors_of_planning_are_found_again(
    spark: SparkSession, nats: Nats, given: dict[str, str], code: int, told: str
) -> None:
    options = {**access(nats), "stream": "FOLDMQ_LOG_nobody", **given}
    with pytest.raises(Exception, match="FOLDMQ-ERROR") as caught:
        spark.read.format("foldmq").options(**options).load().collect()
    error = find_error(caught.value)
    assert error is not None
    assert told in str(error)
    assert error.exit_code == code
    assert "hidden" not in str(error)


def test_a_text_without_a_mark_has_no_error() -> None:
    assert find_error("java.lang.OutOfMemoryError") is None
    assert find_error("FOLDMQ-ERROR {broken") is None


@pytest.mark.timeout(600)  # a Spark of its own is started
def test_credentials_are_in_no_plan_no_log_and_no_argument(
    new_log: NewLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a job of its own writes: plans, events for the history server, its whole stderr."""
    password = "pa55-of-this-test"  # a word that occurs nowhere else
    monkeypatch.setattr(harness.nats, "PASSWORD", password)
    (tmp_path / "nats").mkdir()
    (tmp_path / "events").mkdir()
    server = harness.nats.Nats(tmp_path / "nats")
    server.start()
    try:
        log = new_log()
        log.record(WillFired("a"))
        log.damage(1, 90)
        log.store(server)
        job = Path(__file__).with_name("credentialsjob.py")
        done = subprocess.run(
            [sys.executable, str(job), str(tmp_path / "events"), str(server.port), log.stream],
            env={**environment(), "PYSPARK_PYTHON": sys.executable},
            input=password,
            capture_output=True,
            text=True,
            timeout=500,
        )
    finally:
        server.kill()
    assert done.returncode == 0, done.stderr[-4000:]
    assert "wrong checksum" in done.stdout
    assert "s3://bucket/a cannot be read: " in done.stdout
    assert "== Physical Plan ==" in done.stdout
    assert "PythonException" in done.stderr, "Spark's own logs were to be looked at"
    written = {"stdout": done.stdout, "stderr": done.stderr}
    for path in (tmp_path / "events").rglob("*"):
        if path.is_file():
            written[path.name] = path.read_text("utf-8", "replace")
    assert any("SparkListenerSQLExecutionStart" in text for text in written.values())
    shown = {
        name: re.findall(rf".{{0,60}}{password}.{{0,60}}", text) for name, text in written.items()
    }
    assert {name: places for name, places in shown.items() if places} == {}


def test_options_are_not_shown_in_representations(opened: Opened, new_log: NewLog) -> None:
    log = new_log()
    log.record(WillFired("a"))
    source = opened(log)
    assert "secret" not in repr(source)
    assert "secret" not in repr(source.ranges())
    assert "secret" not in source.entries()._jdf.queryExecution().toString()


def test_spark_s_types_are_those_of_arrow() -> None:
    for grain in GRAINS:
        assert Columns.of(grain).ddl.count("`") == 2 * len(GRAINS[grain])
