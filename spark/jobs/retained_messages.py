"""The retained messages: for every topic the last one that took effect.

Native Spark SQL, linear. A message takes effect where it was published; at QoS 2 where its PUBREL
arrived (``Released``). A checkpoint repeats the messages, and from there on they are known by the
position of the repetition. An empty payload clears a topic, and so do an operator and expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from spark.tables.log import Log

_PUBLISHED: Final = (
    "node",
    "position",
    "time_ms",
    "type",
    "session",
    "topic",
    "qos",
    "retain",
    "ref",
    "payload",
    "block",
    "expires_at",
    "will",
)
_REMOVED: Final = ("RetainedCleared", "RetainedExpired")
_CONTENT: Final = ("payload", "block", "expires_at", "time_ms")
_EFFECT: Final = ("node", "topic", "ref", "qos", *_CONTENT, "effect")
_DIGITS = 16


def retained(log: Log) -> DataFrame:
    """Return the retained messages as of the end of the log.

    Columns: node, topic, qos, ref (position of the publication, or of its repetition in a
    checkpoint), size, payload, time (of that position), digest (see ``projections.state.digests``).
    """
    message = F.struct("ref", "qos", *_CONTENT)
    # Rows are sorted for grouping, as payloads are no numbers: by one number, which is fast.
    newest = (
        retained_effects(log)
        .withColumn("hash", F.xxhash64("node", "topic"))
        .groupBy("hash", "node", "topic")
        .agg(F.max_by(message, "effect").alias("last"))
        .select("node", "topic", "last.*")
    )
    return newest.where(F.length("payload") > 0).select(
        "node",
        "topic",
        "qos",
        "ref",
        F.length("payload").alias("size"),
        "payload",
        F.timestamp_millis("time_ms").alias("time"),
        retained_digest_column().alias("digest"),
    )


def retained_effects(log: Log) -> DataFrame:
    """Return every change of a retained message: each sets the message of its topic.

    Columns: node, topic, ref, qos, payload (empty or null: no message from here on), block and
    expires_at (null without properties), time_ms, effect (the position of the change).
    """
    return _straight(log).unionByName(_released(log))


def retained_digest_column() -> Column:
    """Return ``projections.state.digests.retained_digest`` of the columns of a message."""
    places = F.concat_ws(" ", "qos", "ref")
    size = F.octet_length("block")
    properties = F.concat_ws(" ", places, F.coalesce("expires_at", F.lit(0)), size)
    head = F.when(size > 0, properties).otherwise(places)
    text = F.encode(F.concat(head, F.lit("\n")), "utf-8")
    block = F.coalesce("block", F.lit(b""))
    return F.substring(F.sha2(F.concat(text, block, F.col("payload")), 256), 1, _DIGITS)


def _straight(log: Log) -> DataFrame:
    """Return the changes that take effect at their position; a null payload clears the topic."""
    kind, position = F.col("type"), F.col("position")
    published = (kind == "MessagePublished") & F.col("retain") & ~_at_release()
    repeated = (kind == "RetainedSnapshot") & F.col("session").isNull()
    return (
        log.only(types=["MessagePublished", "RetainedSnapshot", *_REMOVED])
        .entries(*_PUBLISHED, "topics")
        .where(published | repeated | kind.isin(*_REMOVED))
        .withColumn("topic", F.explode(F.coalesce("topics", F.array("topic"))))
        .withColumns({"ref": position, "effect": position})
        .select(*_EFFECT)
    )


def _released(log: Log) -> DataFrame:
    """Return the messages sent at QoS 2, which take effect with their PUBREL."""
    kind, position = F.col("type"), F.col("position")
    published = (kind == "MessagePublished") & F.col("retain") & _at_release()
    # A checkpoint repeats messages that await PUBREL under their current positions.
    repeated = (kind == "RetainedSnapshot") & F.col("session").isNotNull()
    released = kind == "Released"
    message = F.struct("topic", "qos", *_CONTENT)
    return (
        log.only(types=["MessagePublished", "RetainedSnapshot", "Released"])
        .entries(*_PUBLISHED)
        .where(published | repeated | released)
        .withColumn("ref", F.when(published, position).otherwise(F.col("ref")))
        .groupBy("ref", "node", "session")
        .agg(
            F.min_by(message, F.when(~released, position)).alias("message"),
            F.max(F.when(released, position)).alias("effect"),
        )
        .where(F.col("message").isNotNull() & F.col("effect").isNotNull())
        .select("node", "ref", "effect", "message.*")
        .select(*_EFFECT)
    )


def _at_release() -> Column:
    return (F.col("qos") == 2) & ~F.col("will")
