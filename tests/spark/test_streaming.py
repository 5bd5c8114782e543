"""The log as a stream: whole turns, limits, restarts with a checkpoint, logs cut beneath it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.broker import environment
from harness.nats import Nats, access
from harness.waiting import until
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from randomlogs import expected, random_log, without

from eventstore.errors import CutOff, NoLog
from eventstore.format.events import Acked, WillFired
from eventstore.format.records import decode_record
from protocol.errors import FoldmqError
from spark.runtime.marked_errors import BadOption, MarkedError, find_error
from spark.tables.options import SourceOptions
from spark.tables.streaming import LogStreamReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.logs import LogBuilder
    from pyspark.sql import DataFrame, SparkSession

    NewLog = Callable[..., LogBuilder]
    MakeReader = Callable[..., LogStreamReader]

LIMITED = ReadMaxRows(1)
"""Any limit but none: the reader then goes by its options."""


@pytest.fixture
def make_reader(nats: Nats) -> Iterator[MakeReader]:
    readers: list[LogStreamReader] = []

    def make(*logs: LogBuilder, **given: str) -> LogStreamReader:
        for log in logs:
            log.store(nats)
        streams = ",".join(log.stream for log in logs)
        reader = LogStreamReader(SourceOptions.read({**access(nats), "stream": streams, **given}))
        readers.append(reader)
        return reader

    yield make
    for reader in readers:
        reader.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Nats]:
    """A NATS server that has the logs of one test only."""
    server = Nats(tmp_path, sync_interval="2m")
    server.start()
    yield server
    server.kill()


def all_of(server: Nats, **given: str) -> LogStreamReader:
    return LogStreamReader(SourceOptions.read({**access(server), "stream": "*", **given}))


def rows(reader: LogStreamReader, start: dict[str, int], end: dict[str, int]) -> list[Any]:
    return [
        {name: value for name, value in row.items() if value is not None}
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def ends_of_turns(log: LogBuilder) -> list[int]:
    return [
        sequence
        for sequence, data in enumerate(log.records, 1)
        if decode_record(sequence, data).last
    ]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"maxRecordsPerTrigger": "3"},
        {"maxEventsPerTrigger": "7"},
        {"maxBytesPerTrigger": "2000"},
        {"maxRecordsPerTrigger": "4", "maxEventsPerTrigger": "2"},
    ],
)
def test_batches_are_whole_turns_and_together_the_whole_log(
    make_reader: MakeReader, new_log: NewLog, limits: dict[str, str]
) -> None:
    logs = [random_log(new_log(), seed, 40) for seed in (1, 2)]
    reader = make_reader(*logs, **limits)
    offset = reader.initialOffset()
    assert offset == {log.stream: 0 for log in logs}
    taken: list[Any] = []
    batches = 0
    while (end := reader.latestOffset(offset, LIMITED)) != offset:
        for log in logs:
            assert end[log.stream] in [offset[log.stream], *ends_of_turns(log)]
        batch = rows(reader, offset, end)
        assert rows(reader, offset, end) == batch
        taken += batch
        offset = end
        batches += 1
    assert batches > 5 if limits else batches == 1
    for log in logs:
        mine = [row for row in taken if row["node"] == log.node]
        assert without(mine, "time", "json") == expected(log)


def test_limits_are_kept_unless_a_turn_is_larger(make_reader: MakeReader, new_log: NewLog) -> None:
    log = new_log()
    for _ in range(6):
        log.record(Acked("a", [1]), Acked("a", [2]))
    log.turn(*([[WillFired("a")]] * 5))
    for _ in range(6):
        log.record(Acked("a", [1]), Acked("a", [2]))

    def ends(**limits: str) -> list[int]:
        reader = make_reader(log, **limits)
        offset, found = reader.initialOffset(), []
        while (end := reader.latestOffset(offset, LIMITED)) != offset:
            found.append(end[log.stream])
            offset = end
        return found

    assert ends(maxRecordsPerTrigger="4") == [4, 6, 11, 15, 17]
    assert ends(maxRecordsPerTrigger="6") == [6, 12, 17]
    assert ends(maxEventsPerTrigger="4") == [2, 4, 6, 11, 13, 15, 17]
    assert ends(maxEventsPerTrigger="1000") == [17]
    assert ends(maxBytesPerTrigger="1") == [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16, 17]


def test_a_limit_of_the_engine_that_is_none_takes_everything(
    make_reader: MakeReader, new_log: NewLog
) -> None:
    log = random_log(new_log(), 5, 30)
    reader = make_reader(log, maxRecordsPerTrigger="2")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == {log.stream: ends_of_turns(log)[-1]}
    assert reader.getDefaultReadLimit() == ReadMaxRows(2)
    assert make_reader(log).getDefaultReadLimit() == ReadAllAvailable()
    assert make_reader(log, maxBytesPerTrigger="9").getDefaultReadLimit() == ReadMaxBytes(9)


def test_a_turn_that_is_not_whole_waits_and_a_void_one_is_passed_over(
    make_reader: MakeReader, new_log: NewLog, nats: Nats
) -> None:
    log = new_log()
    log.record(WillFired("a"))
    log.turn([WillFired("void")], [WillFired("void")], [], whole=False)
    reader = make_reader(log)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMITED)
    assert end == {log.stream: 1}
    assert [row["session"] for row in rows(reader, start, end)] == ["a"]
    assert reader.latestOffset(end, LIMITED) == end
    assert reader.partitions(end, end) == []
    log.turn([WillFired("b")], [WillFired("c")])
    log.store(nats)
    start, end = end, reader.latestOffset(end, LIMITED)
    assert end == {log.stream: 5}
    assert [row["session"] for row in rows(reader, start, end)] == ["b", "c"]
    assert reader.reportLatestOffset() == {log.stream: 5}


def test_available_now_ends_where_the_log_did(
    make_reader: MakeReader, new_log: NewLog, nats: Nats
) -> None:
    log = random_log(new_log(), 7, 20)
    reader = make_reader(log, maxRecordsPerTrigger="8")
    reader.prepareForTriggerAvailableNow()
    last = ends_of_turns(log)[-1]
    random_log(log, 8, 40).store(nats)
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, LIMITED)) != offset:
        offset = end
    assert offset == {log.stream: last}


@pytest.mark.parametrize(
    ("starting", "begin"), [("earliest", 0), ("latest", 3), ("2", 1), ("1", 0), ('{"*": 3}', 2)]
)
def test_where_a_stream_begins(
    make_reader: MakeReader, new_log: NewLog, starting: str, begin: int
) -> None:
    log = new_log()
    for _ in range(3):
        log.record(WillFired("a"))
    assert make_reader(log, startingOffsets=starting).initialOffset() == {log.stream: begin}
    named = json.dumps({log.stream: 3})
    assert make_reader(log, startingOffsets=named).initialOffset() == {log.stream: 2}


def test_where_a_stream_begins_is_of_logs_that_there_are(
    make_reader: MakeReader, new_log: NewLog
) -> None:
    log = new_log()
    log.record(WillFired("a"))
    told = refused(make_reader(log, startingOffsets='{"FOLDMQ_LOG_typo": 3}').initialOffset)
    assert told.exit_code == BadOption.exit_code
    assert "startingOffsets names log FOLDMQ_LOG_typo, which is not read" in str(told)
    assert log.stream in str(told)


@pytest.mark.parametrize("starting", ["earliest", "latest", "1"])
def test_a_log_that_comes_later_is_read_from_its_beginning(
    new_log: NewLog, own: Nats, starting: str
) -> None:
    one, two = new_log("late"), new_log("late")
    one.record(WillFired("a"))
    one.store(own)
    reader = all_of(own, startingOffsets=starting)
    start = {one.stream: 0}
    two.record(WillFired("b"))
    two.store(own)
    middle = reader.latestOffset(start, LIMITED)
    assert middle == {one.stream: 1, two.stream: 0}
    assert {row["node"] for row in rows(reader, start, middle)} == {one.node}
    end = reader.latestOffset(middle, LIMITED)
    assert end[two.stream] == 1
    assert {row["node"] for row in rows(reader, middle, end)} == {two.node}
    reader.stop()


def test_available_now_reads_logs_that_came_since_the_last_run_and_ends(
    new_log: NewLog, own: Nats
) -> None:
    one, two, three = (new_log("now") for _ in range(3))
    for log in (one, two):
        log.record(WillFired("a"))
        log.store(own)
    reader = all_of(own)
    reader.prepareForTriggerAvailableNow()
    three.record(WillFired("b"))
    three.store(own)  # behind where this query ends
    offset = {one.stream: 1}  # of the run before, which knew no second log
    ends = []
    while (end := reader.latestOffset(offset, LIMITED)) != offset:
        ends.append(end)
        offset = end
    assert ends == [{one.stream: 1, two.stream: 0}, {one.stream: 1, two.stream: 1}]
    reader.stop()


def test_a_log_that_is_gone_is_missed(new_log: NewLog, own: Nats) -> None:
    log = new_log()
    log.record(WillFired("a"))
    log.store(own)
    reader = all_of(own)
    told = refused(lambda: reader.latestOffset({log.stream: 1, "FOLDMQ_LOG_gone": 3}, LIMITED))
    assert told.exit_code == NoLog.exit_code
    assert "FOLDMQ_LOG_gone is not there any more" in str(told)
    reader.stop()


def test_a_log_that_was_cut_begins_where_it_does(
    make_reader: MakeReader, new_log: NewLog, nats: Nats
) -> None:
    log = new_log()
    for number in range(9):
        log.record(Acked("a", [number]))
    log.store(nats)
    log.cut(nats, 4)
    reader = make_reader(log)
    start = reader.initialOffset()
    assert start == {log.stream: 3}
    assert [row["seq"] for row in rows(reader, start, {log.stream: 9})] == [4, 5, 6, 7, 8, 9]


def refused(work: Callable[[], object]) -> FoldmqError:
    with pytest.raises(MarkedError) as caught:
        work()
    told = find_error(caught.value)
    assert told is not None
    return told


def test_a_stream_that_cannot_continue_is_one_error(
    make_reader: MakeReader, new_log: NewLog, nats: Nats
) -> None:
    log = new_log()
    for number in range(9):
        log.record(Acked("a", [number]))
    reader = make_reader(log)
    behind = {log.stream: 2}
    log.cut(nats, 6)
    for work in (
        lambda: reader.latestOffset(behind, LIMITED),
        lambda: reader.partitions(behind, {log.stream: 9}),
        lambda: make_reader(log, startingOffsets="3").initialOffset(),
    ):
        told = refused(work)
        assert told.exit_code == CutOff.exit_code
        assert f"log {log.stream} was cut before the stream has read it" in str(told)
        assert "begins with record 6" in str(told)
    assert reader.latestOffset({log.stream: 5}, LIMITED) == {log.stream: 9}
    told = refused(lambda: reader.latestOffset({log.stream: 12}, LIMITED))
    assert told.exit_code == BadOption.exit_code
    assert "ends with record 9, before record 12" in str(told)


def test_a_stream_has_neither_until_nor_from(nats: Nats) -> None:
    for option in ("until", "from"):
        with pytest.raises(BadOption, match="a stream has no until and no from"):
            LogStreamReader(SourceOptions.read({**access(nats), option: "1"}))


def test_a_reader_travels_without_its_connection(make_reader: MakeReader, new_log: NewLog) -> None:
    log = new_log()
    log.record(WillFired("a"))
    reader = make_reader(log)
    assert reader.initialOffset() == {log.stream: 0}
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.initialOffset() == {log.stream: 0}
    before = threading.active_count()
    copy.stop()
    assert threading.active_count() < before


def stream(spark: SparkSession, nats: Nats, log: LogBuilder, **given: str) -> DataFrame:
    options = {**access(nats), "stream": log.stream, "columns": "seq,index,session", **given}
    return spark.readStream.format("foldmq").options(**options).load()


def run(table: DataFrame, folder: Path) -> list[Any]:
    """Run a query up to where the log ends now; returns its progress."""
    query = (
        table.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return list(query.recentProgress)


def taken(spark: SparkSession, folder: Path) -> list[tuple[int, int]]:
    found = spark.read.parquet(str(folder / "rows")).select("seq", "index").collect()
    return sorted((row["seq"], row["index"]) for row in found)


def test_a_checkpoint_takes_every_row_once_over_several_runs(
    spark: SparkSession, nats: Nats, new_log: NewLog, tmp_path: Path
) -> None:
    log = random_log(new_log(), 3, 25)
    log.store(nats)
    progress = run(stream(spark, nats, log, maxRecordsPerTrigger="10"), tmp_path)
    assert sum(one.numInputRows for one in progress) == len(expected(log))
    assert len([one for one in progress if one.numInputRows]) > 1
    random_log(log, 4, 60).store(nats)
    run(stream(spark, nats, log, partitions="2"), tmp_path)
    run(stream(spark, nats, log), tmp_path)
    assert taken(spark, tmp_path) == [(row["seq"], row["index"]) for row in expected(log)]
    last = sorted(
        (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda one: int(one.name)
    )
    assert json.loads(last[-1].read_text().splitlines()[-1]) == {log.stream: ends_of_turns(log)[-1]}


def test_a_stream_that_lags_behind_a_cut_ends_with_one_clear_error(
    spark: SparkSession, nats: Nats, new_log: NewLog, tmp_path: Path
) -> None:
    log = new_log()
    for number in range(5):
        log.record(Acked("a", [number]))
    log.store(nats)
    run(stream(spark, nats, log), tmp_path)
    for number in range(9):
        log.record(Acked("a", [number]))
    log.store(nats)
    log.cut(nats, 8)
    with pytest.raises(StreamingQueryException) as caught:
        run(stream(spark, nats, log), tmp_path)
    told = find_error(caught.value)
    assert told is not None
    assert told.exit_code == 66
    assert "was cut before the stream has read it: it has come to record 5" in str(told)


@pytest.mark.long
@pytest.mark.timeout(600)  # two Sparks are started
def test_a_killed_query_continues_and_processes_every_row_once(
    spark: SparkSession, nats: Nats, new_log: NewLog, tmp_path: Path
) -> None:
    log = random_log(new_log(), 12, 2000)
    log.store(nats)
    job = Path(__file__).with_name("streamjob.py")
    done = tmp_path / "checkpoint" / "commits"
    process = subprocess.Popen(
        [sys.executable, str(job), str(tmp_path), str(nats.port), log.stream],
        env={**environment(), "PYSPARK_PYTHON": sys.executable},
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(list(done.glob("[0-9]*"))) >= 3, "some batches", 400)
    finally:
        process.kill()
        process.wait()
    assert 0 < len(taken(spark, tmp_path)) < len(expected(log))
    run(stream(spark, nats, log), tmp_path)
    assert taken(spark, tmp_path) == [(row["seq"], row["index"]) for row in expected(log)]
