"""The armed wills: published when a connection ends without DISCONNECT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from spark.jobs.session_facts import session_facts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log

_ENDS: Final = ("SessionOpened", "SessionExpired", "WillFired", "WillCancelled")
"""Events that leave a session without a will."""


def wills(log: Log, begin: StateStarts) -> DataFrame:
    """Return the wills that are armed at the end of the log, with their payloads.

    ``begin`` is the result of :func:`spark.jobs.state_start.state_starts`. Columns: node,
    session, topic, qos, retain, ref (position of the WillArmed), delay (seconds; null if that
    record was cut off), size, payload (both null if the log no longer has it).
    """
    armed = F.col("type") == "WillArmed"
    will = F.struct("topic", "qos", "retain", F.coalesce("ref", "position").alias("ref"))
    last = (
        session_facts_of(log, begin, ["WillArmed", *_ENDS])
        .groupBy("node", "session")
        .agg(
            F.max(F.when(armed, F.col("position"))).alias("armed"),
            F.max(F.when(~armed, F.col("position"))).alias("ended"),
            F.max_by(will, F.when(armed, F.col("position"))).alias("will"),
        )
        .where(F.col("armed") >= F.col("ended"))
        .select("node", "session", "will.*")
    )
    return last.join(_contents(log, begin), ["node", "ref"], "left").select(
        "node",
        "session",
        "topic",
        "qos",
        "retain",
        "ref",
        "delay",
        F.length("payload").alias("size"),
        "payload",
    )


def _contents(log: Log, begin: StateStarts) -> DataFrame:
    """Return the payloads of wills by position.

    Payloads of records that are cut off are carried over: just before the cut, which may be later
    than the moment for which the wills are wanted.
    """
    columns = ("node", "position", "ref", "delay", "payload")
    there = log.only(types=["WillArmed"]).entries(*columns)
    if begin.whole:
        carried = log.to_its_end().only(types=["MessagesCarried"]).entries(*columns)
        there = there.unionByName(carried)
    return (
        there.groupBy("node", F.coalesce("ref", "position").alias("ref"))
        # Payloads carried over several cuts are equal.
        .agg(F.max("delay").alias("delay"), F.first("payload").alias("payload"))
    )
