"""Traffic by topic level, client and QoS: counted from logs with known messages."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from harness.logs import LogBuilder
from harness.nats import Nats, access

from bench.logs.log_generator import Plan, Written, records
from eventstore.format.events import (
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    Redelivered,
    SessionOpened,
)
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointBegun,
    CheckpointCompleted,
    MessagesCarried,
    RetainedSnapshot,
)
from eventstore.format.positions import from_runs, position
from eventstore.format.records import decode_record
from eventstore.format.turn_parts import TurnAssembler
from spark.report import traffic_report as reports
from spark.report.traffic_plots import (
    busiest_plot,
    group_label,
    retention_forecast,
    traffic_page,
    window_sums,
)
from spark.report.traffic_stats import (
    MEASURES,
    TRAFFIC_KEYS,
    TrafficStats,
    measure_traffic,
    traffic_windows,
)
from spark.runtime.marked_errors import BadOption
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR = 3_600_000
BEGIN = 1_700_000_000_000 // HOUR * HOUR
HOSTILE = "<b>\x1b[31m\u202e/$x$"


def opened(name: str, *, clean: bool = True) -> SessionOpened:
    return SessionOpened(name, False, clean, 4)


def published(name: str, topic: str, size: int, at: int = 0, qos: int = 1) -> MessagePublished:
    return MessagePublished(name, qos, False, [topic], [], [1] if qos else [], size, at, 1)


@pytest.fixture(scope="module")
def counted(spark: SparkSession, nats: Nats) -> Any:
    """Four logs in one run, each a node: by all keys of traffic."""
    by_hand = LogBuilder("stats1", BEGIN, step_ms=1)
    by_hand.record(BrokerStarted("0.1.0"))
    by_hand.record(opened("p"), opened("s", clean=False), opened(HOSTILE))
    first = by_hand.record(
        MessagePublished("p", 1, False, ["a/b/c", "a/b"], [0, 0, 1], [[1, 3, 1]], [5, 7, 11], 0, 3),
        Delivered("s", "a/#", 1, [[1, 2, 1]], [by_hand.at(3, 0), by_hand.at(3, 1)]),
        Queued("s", "a/#", 1, [by_hand.at(3, 2)], 11),
        MessageDropped(HOSTILE, "queue_messages", 2, [by_hand.at(3, 0), by_hand.at(3, 2)]),
        payloads=[b"x" * 23],
    )
    by_hand.record(
        Delivered("s", "a/#", 1, [3], [by_hand.at(first, 2)], queued=11),
        Redelivered("s", [1, 2], "ack_wait"),
        MessageDropped("s", "slow_reader", 40),
        MessageDropped("s", "slow_reader", 5, topics=["a/b/c"]),
        MessageDropped("s", "slow_reader", 3, topics=["a/b", "a/c"]),
        published(HOSTILE, HOSTILE, 2, qos=2),
        payloads=[b"yy"],
        time_ms=BEGIN + 90_000,
    )

    cut = LogBuilder("stats2", BEGIN, step_ms=1)
    for _ in range(4):
        cut.record(BrokerStarted("0.1.0"))
    cut.record(
        CheckpointBegun(1),
        RetainedSnapshot(["r/s/t"], [1], [cut.at(1)], 3, 0, 1),
        CheckpointCompleted(1, cut.at(5, 0), 0, 0),
        payloads=[b"abc"],
    )
    cut.record(MessagesCarried([cut.at(2)], ["old/one"], [], 9, 0, 1), payloads=[b"123456789"])
    cut.record(
        Delivered("s", "#", 1, [1], [cut.at(2)]),
        Delivered("s", "#", 1, [2], [cut.at(5, 1)], retain=True),
        Delivered("s", "#", 1, [3], [cut.at(3)]),
    )

    growing = LogBuilder("stats3", BEGIN, step_ms=1)
    growing.record(opened("p"))
    for hour in range(49):
        # In the first and the last hour, which are not whole, there is much; then ever more; and
        # one hour without anything.
        count = 1000 if hour in (0, 48) else hour * 10
        if hour != 20:
            growing.record(
                MessagePublished("p", 1, False, ["g"], [], [[1, count, 1]], 1, 0, count),
                payloads=[b"z" * count],
                time_ms=BEGIN + hour * HOUR + 30 * 60_000,
            )

    generated = LogBuilder("stats4")
    generated.records = list(records(Plan(6000, "mixed", clients=60, node="stats4"), Written()))

    logs = [by_hand, cut, growing, generated]
    for log in logs:
        log.store(nats)
    cut.cut(nats, 5)
    from spark.tables.log import Log

    streams = ",".join(log.stream for log in logs)
    log = Log(spark, {**access(nats), "stream": streams})
    made = measure_traffic(log, by=TRAFFIC_KEYS, levels=2, window_s=3600)
    yield made, logs
    made.close()


def rows(frame: DataFrame, node: str, *keys: str) -> dict[Any, dict[str, Any]]:
    found = [row.asDict() for row in frame.where(frame.node == node).collect()]
    return {tuple(row[key] for key in keys): row for row in found}


def told(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_messages_are_counted_where_their_topic_is_known(counted: tuple[TrafficStats, Any]) -> None:
    found = rows(counted[0].groups, "stats1", "topic", "client", "qos")
    count = ("published", "published_bytes", "delivered", "delivered_bytes", "queued", "dropped")
    assert {key: told(row, *count) for key, row in found.items()} == {
        ("a/b/#", "p", 1): (2, 12, 0, 0, 0, 0),
        ("a/b", "p", 1): (1, 11, 0, 0, 0, 0),
        ("a/b/#", "s", 1): (0, 0, 2, 12, 0, 0),
        ("a/b", "s", 1): (0, 0, 1, 11, 1, 0),
        ("a/b/#", HOSTILE, None): (0, 0, 0, 0, 0, 1),
        ("a/b", HOSTILE, None): (0, 0, 0, 0, 0, 1),
        (None, "s", None): (0, 0, 0, 0, 0, 43),
        ("a/b/#", "s", None): (0, 0, 0, 0, 0, 5),
        (HOSTILE, HOSTILE, 2): (1, 2, 0, 0, 0, 0),
    }


def test_a_node_is_the_sum_of_its_groups(counted: tuple[TrafficStats, Any]) -> None:
    nodes = rows(counted[0].nodes, "stats1", "node")
    row = nodes["stats1",]
    assert told(row, *MEASURES) == (4, 25, 3, 23, 1, 50, 2, 3)
    assert row["records"] == 4
    assert row["stored"] == sum(map(len, counted[1][0].records))
    assert row["rate"] == pytest.approx(7 / 90)
    assert row["peak_rate"] == pytest.approx(7 / 3600)
    assert row["peak_bytes"] == pytest.approx(48 / 3600)
    assert row["growth"] is None


def test_messages_whose_records_were_cut_off_are_known_by_their_repetition(
    counted: tuple[TrafficStats, Any],
) -> None:
    found = rows(counted[0].groups, "stats2", "topic", "client")
    assert {key: told(row, "delivered", "delivered_bytes") for key, row in found.items()} == {
        ("old/one", "s"): (1, 9),
        ("r/s/#", "s"): (1, 3),
        (None, "s"): (1, 0),
    }


def test_peaks_and_growth(counted: tuple[TrafficStats, Any]) -> None:
    row = rows(counted[0].groups, "stats3", "topic")["g",]
    hours = [hour * 10 if hour != 20 else 0 for hour in range(1, 48)]
    assert row["published"] == 2000 + sum(hours)
    assert row["peak_rate"] == pytest.approx(1000 / 3600)
    assert row["peak_bytes"] == pytest.approx(1000 / 3600)
    at = rows(counted[0].groups.selectExpr("node", "unix_millis(peak_at) AS at"), "stats3", "node")
    assert at["stats3",]["at"] == BEGIN
    middle = sum(range(1, 48)) / 47
    slope = sum((hour - middle) * count for hour, count in enumerate(hours, 1)) / sum(
        (hour - middle) ** 2 for hour in range(1, 48)
    )
    assert slope == pytest.approx(9.9, rel=0.05)  # messages an hour, more each hour
    assert row["growth"] == pytest.approx(slope / 3600 * 24)


def test_a_generated_log_is_counted_as_python_counts_it(counted: tuple[TrafficStats, Any]) -> None:
    expected: dict[tuple[str | None, str, int | None], Counter[str]] = defaultdict(Counter)
    topics: dict[int, str] = {}
    sizes: dict[int, int] = {}
    turns = TurnAssembler()
    for sequence, data in enumerate(counted[1][3].records, 1):
        for part in turns.take(decode_record(sequence, data))[1]:
            for index, event in part.events():
                at = position(part.sequence, index)
                if isinstance(event, MessagePublished):
                    given = (
                        event.sizes
                        if isinstance(event.sizes, list)
                        else [event.sizes] * event.count
                    )
                    for number in range(event.count):
                        topic = event.topics[event.which[number] if event.which else 0]
                        topics[at + number], sizes[at + number] = topic, given[number]
                        count = expected[topic, event.session, event.qos]
                        count["published"] += 1
                        count["published_bytes"] += given[number]
                elif isinstance(event, Delivered | Queued):
                    for ref in from_runs(event.refs):
                        count = expected[topics[ref], event.session, event.qos]
                        if isinstance(event, Queued):
                            count["queued"] += 1
                        else:
                            count["delivered"] += 1
                            count["delivered_bytes"] += sizes[ref]
                elif isinstance(event, MessageDropped):
                    for ref in from_runs(event.refs):
                        expected[topics[ref], event.session, None]["dropped"] += 1
                    if not event.refs:
                        expected[None, event.session, None]["dropped"] += event.count
    by_level: dict[tuple[str | None, str, int | None], Counter[str]] = defaultdict(Counter)
    for (topic, session, qos), count in expected.items():
        by_level[_head(topic), session, qos] += count
    found = rows(counted[0].groups, "stats4", "topic", "client", "qos")
    assert {
        key: {name: row[name] for name in MEASURES if row.get(name)} for key, row in found.items()
    } == {
        key: {name: value for name, value in count.items() if value}
        for key, count in by_level.items()
    }


def _measures(row: Mapping[str, int]) -> dict[str, int]:
    return {name: row[name] for name in MEASURES if row.get(name)}


def _head(topic: str | None) -> str | None:
    if topic is None:
        return None
    levels = topic.split("/")
    return topic if len(levels) <= 2 else "/".join(levels[:2]) + "/#"


def test_windows_begin_where_round_times_are(counted: tuple[TrafficStats, Any]) -> None:
    windows = counted[0].windows
    assert windows.where("at_ms % 3600000 <> 0").count() == 0
    hours = {row.at_ms for row in windows.where("node = 'stats3'").collect()}
    assert hours == {BEGIN + hour * HOUR for hour in range(49) if hour != 20}


def test_nodes_and_groups_as_text_and_json(counted: tuple[TrafficStats, Any]) -> None:
    found = reports.traffic_text(counted[0], top=3)
    lines = found.splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[0].startswith(
        "stats1: 2023-11-14 22:00:00 to 22:01:30 UTC (1 min 30 s), 4 records"
    )
    assert sum(line.startswith("all ") for line in lines) == 4
    assert any(line.startswith("and ") and line.endswith(" more") for line in lines)
    told = reports.traffic_json(counted[0])
    assert told["nodes"][2]["begins"] == "2023-11-14T22:00:00.000Z"
    assert {one["client"] for one in told["groups"]} > {HOSTILE, "p"}
    assert len(reports.traffic_json(counted[0], top=2)["groups"]) == 2
    shown = reports.traffic_text(counted[0], top=100_000)
    assert "<b>\\u001b[31m\\u202e/$x$" in shown
    assert "(not known)" in shown


def test_the_page_has_the_plots_and_escapes_names(counted: tuple[TrafficStats, Any]) -> None:
    page = traffic_page(counted[0], top=1000)
    for title in ("Traffic by ", "Busiest by topic, client, qos</h2>", "Retention forecast</h2>"):
        assert page.count(f"<h2>{title}") == 1
    assert page.count("<svg role=") == 3
    assert "<script" not in page
    assert HOSTILE not in page
    assert "&lt;b&gt;" in page
    assert "30d" in page


def test_a_label_of_several_keys_is_quoted_once() -> None:
    groups: list[dict[str, Any]] = [
        {"topic": "hall/door", "qos": 1},
        {"topic": "hall door", "qos": None},
    ]
    stats: Any = SimpleNamespace(
        by=["topic", "qos"], groups=SimpleNamespace(columns=["topic", "qos"])
    )
    labels = [group_label(stats, one) for one in groups]
    assert labels == ["hall/door, 1", '"hall door", (not known)']
    plot = busiest_plot("Busiest", [(label, 1, 2) for label in labels])
    assert "hall/door, 1" in plot.drawing
    assert '\\"' not in html.unescape(plot.drawing)


def test_windows_are_summed_by_hour_and_the_log_is_forecast() -> None:
    found = window_sums(
        [{"at_ms": BEGIN + minute * 60_000, "bytes": 10} for minute in range(0, 720, 30)],
        ("bytes",),
        60_000,
    )
    assert found is not None
    assert (found.begins_ms, found.interval_ms) == (BEGIN, HOUR)
    assert found.sums == {"bytes": [20] * 12}
    assert found.times_ms[0] == BEGIN + HOUR // 2
    forecast = retention_forecast(found, BEGIN, BEGIN + 12 * HOUR)
    assert forecast is not None
    assert forecast.bytes_per_day == 480
    assert dict(forecast.kept)[7] == 7 * 480
    assert retention_forecast(found, BEGIN, BEGIN) is None
    assert window_sums([], ("bytes",), 60_000) is None
    short = window_sums([{"at_ms": BEGIN, "bytes": 1}], ("bytes",), 60_000)
    assert short is not None
    assert short.interval_ms == 60_000
    days = [{"at_ms": BEGIN + day * 24 * HOUR, "bytes": 1} for day in range(100)]
    long = window_sums(days, ("bytes",), 60_000)
    assert long is not None
    assert len(long.sums["bytes"]) <= 401
    assert sum(long.sums["bytes"]) == 100


def test_an_empty_log_has_no_traffic(
    new_log: Callable[..., LogBuilder], opened: Callable[..., Log]
) -> None:
    found = measure_traffic(opened(new_log("empty")), by=("client",))
    assert reports.traffic_text(found) == "the log is empty: there was no traffic\n"
    assert reports.traffic_json(found)["nodes"] == []
    assert "The log is empty" in traffic_page(found)
    found.close()


def test_without_keys_there_are_nodes_only(
    new_log: Callable[..., LogBuilder], opened: Callable[..., Log]
) -> None:
    log = new_log("one")
    log.record(SessionOpened("p", False, True, 4), published("p", "t", 3), payloads=[b"abc"])
    found = measure_traffic(opened(log), by=())
    text = reports.traffic_text(found)
    assert text.count("all ") == 1
    assert " 1 record" in text
    row = found.nodes.collect()[0]
    assert (row.published, row.connects, row.rate) == (1, 1, None)
    found.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"by": ("colour",)}, "'colour'"),
        ({"levels": 0}, "levels = 0"),
        ({"window_s": 0}, "a window of 0 s"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        traffic_windows(None, **{"by": (), "levels": 1, "window_s": 1, **wrong})  # type: ignore[arg-type]
