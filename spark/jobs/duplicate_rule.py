"""Unexpected deliveries: repeated ones, and those of messages that had not taken effect."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.format.events import Assigned, Delivered, Queued
from eventstore.format.positions import format_position, from_runs
from projections.audit.rule_table import Rule
from spark.jobs.event_codec import unpack_events
from spark.jobs.fact_schema import EFFECT, EVENTS, RELEASED
from spark.runtime.marked_errors import mark_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from eventstore.format.positions import Position
    from spark.jobs.fact_tables import FactTables

_DDL: Final = "node string, session string, ref bigint, at bigint"
_SCHEMA: Final = pa.schema(
    [("node", pa.string()), ("session", pa.string()), ("ref", pa.int64()), ("at", pa.int64())]
)


def classify_unexpected(facts: FactTables, found: Sequence[Any]) -> list[tuple[str, str]]:
    """Return (rule, what) for unexpected deliveries.

    ``found`` are rows with node, session, at and ref. Their sessions are read once more.
    """
    wanted: dict[tuple[str, str], set[Position]] = {}
    for row in found:
        wanted.setdefault((row["node"], row["session"]), set()).add(row["ref"])
    told = facts.of(EVENTS)
    sessions = told.sparkSession.createDataFrame(list(wanted), "node string, session string")
    rows = (
        told.join(F.broadcast(sessions), ["node", "session"], "left_semi")
        .select("node", "session", "data")
        .mapInArrow(partial(_earlier, wanted), _DDL)
        .groupBy("node", "session", "ref")
        .agg(F.min("at").alias("at"))
        .collect()
    )
    first = {(row["node"], row["session"], row["ref"]): row["at"] for row in rows}
    keys = [(row["node"], row["session"], row["ref"]) for row in found]
    effects = _effects(facts, {(row["node"], row["ref"]) for row in found})
    return [
        classify_copy(row["ref"], row["at"], first[key], effects.get((key[0], key[2])))
        for row, key in zip(found, keys, strict=True)
    ]


def _effects(
    facts: FactTables, wanted: AbstractSet[tuple[str, Position]]
) -> dict[tuple[str, Position], Position]:
    """Return the positions where messages first took effect."""
    told = facts.of(EFFECT, RELEASED)
    messages = told.sparkSession.createDataFrame(list(wanted), "node string, ref bigint")
    rows = (
        told.join(F.broadcast(messages), ["node", "ref"], "left_semi")
        .groupBy("node", "ref")
        .agg(F.min("at").alias("at"))
        .collect()
    )
    return {(row["node"], row["ref"]): row["at"] for row in rows}


def classify_copy(
    ref: Position, at: Position, first: Position, effect: Position | None
) -> tuple[str, str]:
    """Return (rule, what) for an unexpected delivery.

    ``first`` is the position of the message's first delivery to the session, ``effect`` that where
    it took effect; None: there is none.
    """
    message = f"message {format_position(ref)}"
    if effect is None:
        what = f"{message} was delivered, but no message of QoS 1 or 2 took effect under that"
        return Rule.NO_SUBSCRIPTION, f"{what} position"
    if at < effect:
        what = f"{message} was delivered before it took effect, at {format_position(effect)}"
        return Rule.ORDER, what
    if first < at:
        before = format_position(first)
        return Rule.DELIVERED_TWICE, f"{message} was delivered again, after it was at {before}"
    return (
        Rule.NO_SUBSCRIPTION,
        f"{message} was delivered, but matches no subscription of QoS 1 or 2",
    )


def deliveries_of(session: str, data: bytes) -> Iterator[tuple[Position, Position]]:
    """Yield each message that was delivered or queued by packed events, and the position."""
    for at, _, _, event in unpack_events(session, data):
        if isinstance(event, (Assigned, Delivered, Queued)):
            for place, ref in enumerate(from_runs(event.refs), at):
                yield ref, place


def _earlier(
    wanted: Mapping[tuple[str, str], AbstractSet[Position]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the positions where the wanted messages were delivered or queued."""
    with mark_errors():
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            columns = (batch.column(name).to_pylist() for name in ("node", "session", "data"))
            for node, session, data in zip(*columns, strict=True):
                refs = wanted[node, session]
                rows += [
                    (node, session, ref, at)
                    for ref, at in deliveries_of(session, data)
                    if ref in refs
                ]
            if rows:
                arrays = [
                    pa.array(column, one.type)
                    for column, one in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
