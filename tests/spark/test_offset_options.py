"""``startingOffsets``, ``endingOffsets`` and ``failOnDataLoss``, with the meaning of Kafka's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from harness.nats import access

from eventstore.errors import CutMeanwhile, CutOff, NoLog
from eventstore.format.events import Acked, WillFired
from spark.runtime.marked_errors import BadOption, MarkedError, find_error
from spark.tables.discovery import find_logs
from spark.tables.options import SourceOptions
from spark.tables.planning import plan_ranges, split_ranges
from spark.tables.range_reader import RangeReader
from spark.tables.streaming import LogStreamReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.logs import LogBuilder
    from harness.nats import Nats
    from pyspark.sql.streaming.datasource import ReadLimit

    NewLog = Callable[..., LogBuilder]


def acked(log: LogBuilder, count: int = 9) -> LogBuilder:
    for number in range(count):
        log.record(Acked("a", [number]))
    return log


def options_of(nats: Nats, *logs: LogBuilder, **given: str) -> SourceOptions:
    for log in logs:
        log.store(nats)
    streams = ",".join(log.stream for log in logs)
    return SourceOptions.read({**access(nats), "stream": streams, "columns": "node,seq", **given})


def parts_of(options: SourceOptions) -> list[Any]:
    return split_ranges(plan_ranges(find_logs(options), options, options.pushed), None)


def read(options: SourceOptions, parts: list[Any] | None = None) -> list[int]:
    lossy = not options.fail_on_data_loss
    reader = RangeReader(options.columns, options.pushed, options.mode, lossy)
    return [
        row["seq"]
        for part in (parts_of(options) if parts is None else parts)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [
        ({}, 1, 9),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 1, 9),
        ({"startingOffsets": "3", "endingOffsets": "6"}, 3, 5),
        ({"startingOffsets": '{"NODE": 3}', "endingOffsets": '{"LOG": 6}'}, 3, 5),
        ({"startingOffsets": '{"NODE": -2}', "endingOffsets": '{"NODE": -1}'}, 1, 9),
        ({"startingOffsets": '{"*": 8, "NODE": "earliest"}'}, 1, 9),
        ({"startingOffsets": "10"}, 10, 9),
        ({"startingOffsets": "4", "endingOffsets": "4"}, 4, 3),
        ({"endingOffsets": "10"}, 1, 9),
        ({"startingOffsets": "0", "until": "2"}, 1, 2),
        ({"from": "8", "endingOffsets": "9"}, 8, 8),
    ],
)
def test_a_batch_begins_at_an_offset_and_ends_before_one(
    nats: Nats, new_log: NewLog, given: dict[str, str], first: int, last: int
) -> None:
    log = acked(new_log())
    named = {
        name: value.replace("NODE", log.node).replace("LOG", log.stream)
        for name, value in given.items()
    }
    assert read(options_of(nats, log, **named)) == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets = latest: only a stream begins there"),
        ({"startingOffsets": '{"NODE": -1}'}, "startingOffsets = latest: only a stream"),
        ({"endingOffsets": "earliest"}, "endingOffsets = earliest: nothing is before"),
        ({"startingOffsets": "first"}, "startingOffsets = 'first': expected earliest, latest"),
        ({"startingOffsets": '{"NODE": 1.5}'}, "expected earliest, latest, the sequence"),
        ({"startingOffsets": '{"NODE": -3}'}, "expected earliest, latest, the sequence"),
        ({"startingOffsets": "[1]"}, "expected earliest, latest, the sequence"),
        ({"endingOffsets": '{"typo": 1}'}, "endingOffsets names log typo, which is not read"),
        ({"startingOffsets": "11"}, "startingOffsets = 11 is beyond the end of log"),
        ({"endingOffsets": "11"}, "endingOffsets = 11 is beyond the end of log"),
        ({"startingOffsets": "1", "from": "1"}, "from and startingOffsets exclude each other"),
        ({"endingOffsets": "9", "until": "1"}, "until and endingOffsets exclude each other"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss = no: expected true or false"),
        ({"startingOffset": "1"}, "no option 'startingoffset': did you mean startingOffsets?"),
    ],
)
def test_a_wrong_offset_is_one_line(
    nats: Nats, new_log: NewLog, given: dict[str, str], told: str
) -> None:
    log = acked(new_log())
    with pytest.raises(BadOption) as caught:
        read(
            options_of(
                nats, log, **{name: text.replace("NODE", log.node) for name, text in given.items()}
            )
        )
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["startingOffsets", "from"])
def test_a_batch_whose_beginning_was_cut_off(nats: Nats, new_log: NewLog, option: str) -> None:
    log = acked(new_log())
    log.store(nats)
    log.cut(nats, 4)
    wanted = {option: "2"}
    with pytest.raises(CutOff, match=f"{option} = 2.*failOnDataLoss=false"):
        read(options_of(nats, log, **wanted))
    assert read(options_of(nats, log, failOnDataLoss="false", **wanted)) == [4, 5, 6, 7, 8, 9]
    assert read(options_of(nats, log, startingOffsets="earliest")) == [4, 5, 6, 7, 8, 9]
    nothing = {"endingOffsets": "3", "failOnDataLoss": "false"}
    assert read(options_of(nats, log, **nothing)) == []
    with pytest.raises(CutOff, match="endingOffsets = 3"):
        read(options_of(nats, log, endingOffsets="3"))


def test_records_that_are_cut_off_while_they_are_read(nats: Nats, new_log: NewLog) -> None:
    log = acked(new_log())
    for lossy in ("true", "false"):
        options = options_of(nats, log, failOnDataLoss=lossy)
        parts = parts_of(options)
        log.cut(nats, 6)
        if lossy == "false":
            assert read(options, parts) == [6, 7, 8, 9]
        else:
            with pytest.raises(CutMeanwhile):
                read(options, parts)
            log = acked(new_log())


def stream_of(options: SourceOptions) -> LogStreamReader:
    return LogStreamReader(options)


def batches(
    reader: LogStreamReader, start: dict[str, int], limit: ReadLimit
) -> tuple[list[int], dict[str, int]]:
    """What a stream reads from an offset on, and the offset at its end."""
    found: list[int] = []
    while (end := reader.latestOffset(start, limit)) != start:
        for partition in reader.partitions(start, end):
            found += [row["seq"] for one in reader.read(partition) for row in one.to_pylist()]
        start = end
    return found, start


def test_a_stream_continues_although_records_were_cut_off(nats: Nats, new_log: NewLog) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    log = acked(new_log())
    log.store(nats)
    log.cut(nats, 6)
    behind = {log.stream: 2}
    with pytest.raises(MarkedError) as caught:
        stream_of(options_of(nats, log)).latestOffset(behind, ReadAllAvailable())
    assert "failOnDataLoss=false" in str(find_error(caught.value))
    options = options_of(nats, log, failOnDataLoss="false", maxRecordsPerTrigger="2")
    for limit in (ReadAllAvailable(), ReadMaxRows(2)):
        reader = stream_of(options)
        assert batches(reader, behind, limit) == ([6, 7, 8, 9], {log.stream: 9})
        reader.stop()


def test_a_stream_continues_with_a_new_log_and_without_a_lost_one(
    nats: Nats, new_log: NewLog
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    log = acked(new_log(), 3)
    reader = stream_of(options_of(nats, log, failOnDataLoss="false"))
    start = {log.stream: 12, "FOLDMQ_LOG_lost": 5}
    found, end = batches(reader, start, ReadAllAvailable())
    assert (found, end) == ([1, 2, 3], {log.stream: 3, "FOLDMQ_LOG_lost": 5})
    reader.stop()
    strict = stream_of(options_of(nats, log))
    with pytest.raises(MarkedError) as caught:
        strict.latestOffset({log.stream: 3, "FOLDMQ_LOG_lost": 5}, ReadAllAvailable())
    error = find_error(caught.value)
    assert error is not None
    assert error.exit_code == NoLog.exit_code
    strict.stop()


def test_a_stream_begins_at_offsets_but_does_not_end_at_any(nats: Nats, new_log: NewLog) -> None:
    log = new_log()
    for _ in range(3):
        log.record(WillFired("a"))
    for given, begin in (
        ("earliest", 0),
        ("latest", 3),
        ("2", 1),
        ("4", 3),
        (json.dumps({log.node: 3}), 2),
        (json.dumps({log.stream: "latest"}), 3),
    ):
        reader = stream_of(options_of(nats, log, startingOffsets=given))
        assert reader.initialOffset() == {log.stream: begin}
        reader.stop()
    with pytest.raises(BadOption, match="a stream has no endingOffsets"):
        stream_of(options_of(nats, log, endingOffsets="latest"))
    log.cut(nats, 3)
    lossy = stream_of(options_of(nats, log, startingOffsets="1", failOnDataLoss="false"))
    assert lossy.initialOffset() == {log.stream: 2}
    lossy.stop()
