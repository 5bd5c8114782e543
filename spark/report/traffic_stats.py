"""Traffic by topic level, client and QoS in windows of time, for capacity planning.

Native Spark SQL throughout; the log is read once for the messages and once for the sizes of its
records. The log contains no deliveries at QoS 0, and of publications at QoS 0 only the retained
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from protocol.mqtt.shared_filters import SHARE
from spark.runtime.marked_errors import BadOption

if TYPE_CHECKING:
    from spark.tables.log import Log

COLUMNS: Final = (
    "node",
    "position",
    "time_ms",
    "type",
    "session",
    "topic",
    "qos",
    "ref",
    "size",
    "count",
    "refs",
    "topics",
)
"""The required columns of the log's entries."""
TYPES: Final = (
    "MessagePublished",
    "Delivered",
    "Queued",
    "MessageDropped",
    "Redelivered",
    "SessionOpened",
    "MessagesCarried",
    "RetainedSnapshot",
)
"""Events about traffic, and those about messages whose records were cut off."""

TRAFFIC_KEYS: Final = ("topic", "client", "qos")
"""Keys of traffic besides the node."""
MEASURES: Final = (
    "published",
    "published_bytes",
    "delivered",
    "delivered_bytes",
    "queued",
    "dropped",
    "redelivered",
    "connects",
)
"""Measures. Bytes are those of payloads; ``delivered`` are first deliveries at QoS 1 and 2,
``redelivered`` packets that were sent again, ``connects`` accepted connections."""

_OF_CLIENTS: Final = ("redelivered", "connects")
"""Measures that belong to a client, but to no topic or QoS."""
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class TrafficStats:
    """The traffic of a log; :meth:`close` it when it is no longer needed."""

    by: tuple[str, ...]
    levels: int
    window_s: int
    windows: DataFrame
    """A row for each node, window and group: see :func:`traffic_windows`."""
    groups: DataFrame
    """A row for each node and group, the busiest first: see :func:`traffic_totals`."""
    nodes: DataFrame
    """A row for each node: the same for all its groups, and the size of its log on disk."""
    stored: DataFrame
    """A row for each node and window with records: at_ms and the bytes of its records."""

    def close(self) -> None:
        """Free the cached windows."""
        self.windows.unpersist()
        self.stored.unpersist()


def _no_progress(_: str) -> None:
    pass


def measure_traffic(
    log: Log,
    *,
    by: Sequence[str] = ("topic",),
    levels: int = 2,
    window_s: int = 60,
    tell: Callable[[str], None] = _no_progress,
) -> TrafficStats:
    """Return the traffic of a log by some of :data:`TRAFFIC_KEYS`, in windows of ``window_s``.

    ``levels`` is the number of topic levels that count. Raises BadOption for invalid keys, and the
    errors of reading the log.
    """
    _check(by, levels, window_s)
    log = log.pinned()
    log.fit_shuffles()
    tell("reading the log")
    entries = log.only(types=TYPES).entries(*COLUMNS)
    windows = traffic_windows(entries, by=by, levels=levels, window_s=window_s).persist()
    stored = _stored_windows(log.records("node", "time_ms", "bytes"), window_s).persist()
    extents = _extents(stored, window_s)
    keys = _keys(by)
    groups = traffic_totals(windows, extents, keys, window_s).orderBy(
        "node", F.desc(F.col("published") + F.col("delivered")), *keys
    )
    nodes = (
        traffic_totals(windows, extents, [], window_s)
        .join(_stored(extents), "node")
        .orderBy("node")
    )
    return TrafficStats(tuple(by), levels, window_s, windows, groups, nodes, stored)


def traffic_windows(
    entries: DataFrame, *, by: Sequence[str], levels: int, window_s: int
) -> DataFrame:
    """Return the measures of each window, by node and some of :data:`TRAFFIC_KEYS`.

    ``entries`` are those of one or more logs, with the :data:`COLUMNS`. Columns: node, at_ms (start
    of the window), the keys, the :data:`MEASURES`. A topic with more levels than ``levels`` counts
    for its first ones, as ``a/b/#``. A client counts for its publications and for deliveries to it.
    A key is null if it is unknown: its record was cut off, or there is none, as for messages
    dropped at QoS 0. Their topic is known if the event of the drop names one only.
    """
    _check(by, levels, window_s)
    window_ms = window_s * 1000
    kind = F.col("type")
    keys = {
        "topic": _prefix(F.col("topic"), levels),
        "client": F.col("session"),
        "qos": F.col("qos"),
    }
    counted = {
        "published": (kind == "MessagePublished", F.lit(1)),
        "published_bytes": (kind == "MessagePublished", F.col("size")),
        "delivered": (kind == "Delivered", F.lit(1)),
        "delivered_bytes": (kind == "Delivered", F.col("size")),
        "queued": (kind == "Queued", F.lit(1)),
        "dropped": (kind == "MessageDropped", F.col("count")),
        "redelivered": (kind == "Redelivered", F.lit(1)),
        # A shared subscription is a session without a connection.
        "connects": ((kind == "SessionOpened") & ~F.col("session").startswith(SHARE), F.lit(1)),
    }
    sums = [
        F.coalesce(F.sum(F.when(which, value)), F.lit(0)).cast("bigint").alias(name)
        for name, (which, value) in counted.items()
    ]
    return (
        _with_messages(entries)
        .where(~kind.isin("MessagesCarried", "RetainedSnapshot"))
        .withColumn("at_ms", F.col("time_ms") - F.col("time_ms") % window_ms)
        .withColumns({key: keys[key] for key in _keys(by)})
        .groupBy("node", "at_ms", *_keys(by))
        .agg(*sums)
    )


def traffic_totals(
    windows: DataFrame, extents: DataFrame, keys: Sequence[str], window_s: int
) -> DataFrame:
    """Return the traffic of each node and group over the whole log.

    ``windows`` is the result of :func:`traffic_windows`, by these keys or more. Columns: node, the
    keys, the measures; rate (messages published and delivered per second, over the whole log),
    peak_rate and peak_bytes (messages and payload bytes per second in the busiest window), peak_at
    (start of the window of peak_rate), growth (messages per second by which the rate grows in a
    day: the slope of the line that fits the windows best, without the first and the last window of
    the log; null if fewer than three are left, or the log is shorter than a day).
    """
    measures = _measures(keys)
    window_ms = window_s * 1000
    each = (
        windows.groupBy("node", "at_ms", *keys)
        .agg(*(F.sum(name).alias(name) for name in measures))
        .withColumn("messages", F.col("published") + F.col("delivered"))
        .withColumn("bytes", F.col("published_bytes") + F.col("delivered_bytes"))
    )
    # Windows without traffic have no rows, but they count: the line is fitted by sums.
    whole = (F.col("at_ms") > F.col("first_ms")) & (F.col("at_ms") < F.col("last_ms"))
    number = (F.col("at_ms") - F.col("first_ms")) / window_ms - 1
    rate = F.when(whole, F.col("messages") / window_s).otherwise(0.0)
    count = F.col("count")
    middle = (count - 1) / 2
    slope = F.try_divide(
        F.col("moment") - middle * F.col("total"), count * (count * count - 1) / 12
    )
    seconds = (F.col("ends_ms") - F.col("begins_ms")) / 1000
    counted = reduce(add, (F.col(name) for name in measures))
    totals = (
        each.where(counted > 0)
        .join(F.broadcast(extents), "node")
        .groupBy("node", *keys, "begins_ms", "ends_ms", "first_ms", "last_ms")
        .agg(
            *(F.sum(name).alias(name) for name in measures),
            (F.max("messages") / window_s).alias("peak_rate"),
            (F.max("bytes") / window_s).alias("peak_bytes"),
            F.max_by("at_ms", F.struct("messages", -F.col("at_ms"))).alias("peak_ms"),
            F.sum(rate).alias("total"),
            F.sum(rate * number).alias("moment"),
        )
        .withColumn("count", (F.col("last_ms") - F.col("first_ms")) / window_ms - 1)
    )
    return totals.select(
        "node",
        *keys,
        *measures,
        F.when(seconds > 0, (F.col("published") + F.col("delivered")) / seconds).alias("rate"),
        "peak_rate",
        "peak_bytes",
        F.timestamp_millis("peak_ms").alias("peak_at"),
        F.when((count >= 3) & (seconds >= _DAY_MS / 1000), slope * (_DAY_MS / window_ms)).alias(
            "growth"
        ),
    )


def _check(by: Sequence[str], levels: int, window_s: int) -> None:
    for key in by:
        if key not in TRAFFIC_KEYS:
            raise BadOption(f"traffic cannot be told apart by {key!r}: {', '.join(TRAFFIC_KEYS)}")
    if levels < 1:
        raise BadOption(f"levels = {levels}: at least one level of a topic counts")
    if window_s < 1:
        raise BadOption(f"a window of {window_s} s: it has at least one second")


def _keys(by: Sequence[str]) -> list[str]:
    return [key for key in TRAFFIC_KEYS if key in by]


def _measures(keys: Sequence[str]) -> list[str]:
    """Return the measures of groups: for topics without those that belong to clients only."""
    if "topic" in keys or "qos" in keys:
        return [name for name in MEASURES if name not in _OF_CLIENTS]
    return list(MEASURES)


def _with_messages(entries: DataFrame) -> DataFrame:
    """Return entries with the topic and the size of the messages that they refer to.

    One shuffle by the position of the message joins publications and deliveries.
    """
    kind = F.col("type")
    dropped = (kind == "MessageDropped") & (F.size("refs") > 0)
    named = (kind == "MessageDropped") & (F.size("topics") == 1)
    refers = kind.isin("Delivered", "Queued", "MessagesCarried") | (
        (kind == "RetainedSnapshot") & F.col("session").isNotNull()
    )
    own = F.when(refers, F.col("ref")).otherwise(F.col("position"))
    same = Window.partitionBy("node", "message")
    return (
        entries.where(kind.isin(*TYPES))
        .withColumn("topic", F.when(named, F.col("topics")[0]).otherwise(F.col("topic")))
        .withColumn("count", F.when(dropped, F.lit(1)).otherwise(F.col("count")))
        .withColumn("message", F.explode(F.when(dropped, F.col("refs")).otherwise(F.array(own))))
        .select("node", "message", "time_ms", "type", "session", "topic", "qos", "size", "count")
        .withColumns({"topic": F.max("topic").over(same), "size": F.max("size").over(same)})
    )


def _prefix(topic: Column, levels: int) -> Column:
    """Return the first levels of a topic; ``/#`` stands for further ones."""
    head = F.substring_index(topic, "/", levels)
    return F.when(head == topic, topic).otherwise(F.concat(head, F.lit("/#")))


def _stored_windows(records: DataFrame, window_s: int) -> DataFrame:
    """Return number, bytes, first and last time of the records of each window, by node."""
    window_ms = window_s * 1000
    return (
        records.withColumn("at_ms", F.col("time_ms") - F.col("time_ms") % window_ms)
        .groupBy("node", "at_ms")
        .agg(
            F.min("time_ms").alias("begins_ms"),
            F.max("time_ms").alias("ends_ms"),
            F.count("*").alias("records"),
            F.sum("bytes").alias("bytes"),
        )
    )


def _extents(stored: DataFrame, window_s: int) -> DataFrame:
    """Return the first and last time of each node's log, also in windows, and its size."""
    window_ms = window_s * 1000
    begins, ends = F.col("begins_ms"), F.col("ends_ms")
    return (
        stored.groupBy("node")
        .agg(
            F.min("begins_ms").alias("begins_ms"),
            F.max("ends_ms").alias("ends_ms"),
            F.sum("records").alias("records"),
            F.sum("bytes").alias("stored"),
        )
        .withColumn("first_ms", begins - begins % window_ms)
        .withColumn("last_ms", ends - ends % window_ms)
    )


def _stored(extents: DataFrame) -> DataFrame:
    seconds = (F.col("ends_ms") - F.col("begins_ms")) / 1000
    return extents.select(
        "node",
        F.timestamp_millis("begins_ms").alias("begins"),
        F.timestamp_millis("ends_ms").alias("ends"),
        "records",
        "stored",
        F.when(seconds > 0, F.col("stored") / seconds).alias("stored_rate"),
    )
