"""The packet identifiers in use: deliveries and publications at QoS 1 and 2 not yet completed.

Native Spark SQL, one pass, linear: only the last events of each packet identifier matter, and the
last restart of each session. So everything is a maximum of positions. The result equals the fold of
``projections.state.session`` for every log written by a broker: an acknowledgement is only recorded
for a packet in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from spark.jobs.session_facts import session_facts_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log

_OUT: Final = (
    *("Delivered", "Received", "Acked", "Completed", "Redelivered"),
    *("Refused", "Returned"),
)
_IN: Final = ("MessagePublished", "Released")
_GIVEN: Final = ("Delivered", "MessagePublished")
"""Events that take a packet identifier into use."""
_DONE: Final = ("Acked", "Completed", "Refused", "Returned", "Released")
"""Events that free a packet identifier."""
_SENT: Final = ("Delivered", "Received", "Redelivered", "MessagePublished")
"""Events that restart the time of waiting for an answer."""
_SESSION: Final = (
    "SessionOpened",
    "SessionClosed",
    "SessionExpired",
)
"""Events that determine the start of a session's state."""


def pending(log: Log, begin: StateStarts) -> DataFrame:
    """Return the packet identifiers in use at the end of the log.

    ``begin`` is the result of :func:`spark.jobs.state_start.state_starts`. Columns: node,
    session, direction (``out``: to the client), packet_id, state (``inflight``: PUBACK or PUBREC is
    awaited, ``releasing``: PUBCOMP, ``inbound``: PUBREL), qos, ref (position of the message),
    filter (of the subscription; null for inbound messages), since (when it was last sent, or
    received).
    """
    kind = F.col("type")
    told = session_facts_of(log, begin, [*_OUT, *_IN, *_SESSION]).where(
        (kind != "MessagePublished") | ((F.col("qos") == 2) & ~F.col("will"))
    )
    alive = _last_of_each(told).where(
        F.col("packet_id").isNull() | F.col("done").isNull() | (F.col("done") < F.col("given"))
    )
    session = Window.partitionBy("node", "session")
    began = F.max(F.greatest("fresh", "expired", _end_of_clean())).over(session)
    born = F.min("born").over(session)
    inbound = F.col("direction") == "in"
    releasing = F.col("received") >= F.col("given")
    return (
        alive.withColumns({"began": began, "first": born})
        .where(F.col("given") >= F.greatest("began", "first"))
        .select(
            "node",
            "session",
            "direction",
            "packet_id",
            F.when(inbound, "inbound")
            .when(releasing, "releasing")
            .otherwise("inflight")
            .alias("state"),
            "message.qos",
            "message.ref",
            "message.filter",
            F.timestamp_millis("since").alias("since"),
        )
    )


def _last_of_each(told: DataFrame) -> DataFrame:
    """Reduce the facts to a row for each packet identifier, and one for each session."""
    position = F.col("position")
    message = F.struct("qos", F.coalesce("ref", "position").alias("ref"), "filter")
    key = ["node", "session", "direction", "packet_id"]
    keyed = told.withColumn(
        "direction", F.when(F.col("type").isin(*_OUT), "out").when(F.col("type").isin(*_IN), "in")
    )
    # Rows are sorted for grouping, as a message has text: by one number, which is fast.
    return (
        keyed.withColumn("hash", F.xxhash64(*key))
        .groupBy("hash", *key)
        .agg(
            _last(*_GIVEN).alias("given"),
            _last("Received").alias("received"),
            _last(*_DONE).alias("done"),
            F.max_by(message, _where(*_GIVEN)).alias("message"),
            F.max_by("time_ms", _where(*_SENT)).alias("since"),
            F.min(_where("SessionOpened")).alias("born"),
            _last("SessionOpened").alias("opened"),
            F.max(F.when(~F.col("resumed"), position)).alias("fresh"),
            F.max_by("clean", _where("SessionOpened")).alias("clean"),
            _last("SessionClosed").alias("closed"),
            F.max_by("expiry", _where("SessionClosed")).alias("expiry"),
            _last("SessionExpired").alias("expired"),
        )
    )


def _where(*kinds: str) -> Column:
    return F.when(F.col("type").isin(*kinds), F.col("position"))


def _last(*kinds: str) -> Column:
    return F.max(_where(*kinds))


def _end_of_clean() -> Column:
    """Return the end of a clean session with its connection."""
    opened, closed = F.col("opened"), F.col("closed")
    clean = F.coalesce(F.col("expiry") == 0, F.col("clean"))  # DISCONNECT may have changed it
    return F.when(clean & (closed > opened), closed)
