"""The audit of the sessions of a log in the driver: the rows that Spark would shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.format.positions import INDEX_BITS
from spark.jobs.audit_outcome import SESSION_CLAIM
from spark.jobs.expected_deliveries import packs_of, spans_of_facts
from spark.jobs.expected_packs import EFFECT_COLUMNS
from spark.jobs.fact_schema import EFFECT, SPANS
from spark.jobs.local_facts import names_within
from spark.jobs.session_audit_task import COLUMNS, session_results
from spark.jobs.session_checker import CLAIMED, EXPECTED, HAPPENED, OWED
from spark.jobs.session_result_rows import SHARED
from spark.jobs.shared_rules import shared_results
from spark.runtime.machine import reduce_collections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from eventstore.format.positions import Position
    from spark.jobs.audit_outcome import StateClaim
    from spark.jobs.local_facts import LocalFacts, NameRange
    from spark.jobs.log_summary import LogSummary
    from spark.jobs.session_audit_task import SessionPlan

RequiredReplay = tuple[str, str, "Position", "Position", str]
"""A retained message that must be sent: node, session, at, ref, filter."""

_TYPES: Final = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "binary": pa.large_binary(),
}  # fmt: skip
_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
_ORDER: Final = [(name, "ascending") for name in ("node", "session", "at", "rank")]
_ROWS: Final = 8192
_COPIES: Final = 4
"""Memory that an audit needs for the expected deliveries, relative to their size."""
_SORTED: Final = 32 << 20
"""Bytes of events that are sorted at once; those of a session are sorted together."""


class TooManyDeliveries(Exception):  # noqa: N818 - its handler goes on with Spark
    """The deliveries of a log need more memory than an audit in this process may take."""


def audit_local_sessions(
    plan: SessionPlan,
    facts: LocalFacts,
    owed: Sequence[RequiredReplay],
    claims: Iterable[StateClaim],
    memory: int | None = None,
) -> pa.Table:
    """Return the results of all sessions and shared subscriptions, see ``session_result_rows``.

    Raises TooManyDeliveries if that may need more than ``memory`` bytes.
    """
    tables = [_rows(EXPECTED, _expected(facts, plan.logs, memory))]
    if owed:
        columns = zip(*owed, strict=True)
        names = ("node", "session", "at", "ref", "topic")
        tables.append(_rows(OWED, _table(dict(zip(names, columns, strict=True)))))
    tables.append(_rows(CLAIMED, _claims(claims, plan.logs)))
    told = _in_order(facts, pa.concat_tables(tables))
    with reduce_collections():
        results = pa.Table.from_batches(session_results(plan, told))
    shared = results.filter(pc.equal(results.column("kind"), SHARED))
    if not shared.num_rows:
        return results
    steps = shared.sort_by(_ORDER[:3])
    return pa.concat_tables(
        [results, pa.Table.from_batches(shared_results(plan.logs, _batches(steps)))]
    )


def _in_order(facts: LocalFacts, others: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield events and other rows by session; few of them are copied at a time."""
    for sessions in facts.sessions(_SORTED):
        yield from _of_sessions(facts, others, sessions)


def _of_sessions(
    facts: LocalFacts, others: pa.Table, sessions: NameRange
) -> Iterator[pa.RecordBatch]:
    happened = _rows(HAPPENED, facts.events(sessions))
    chosen = others.filter(names_within(others, sessions))
    return _batches(pa.concat_tables([happened, chosen]).sort_by(_ORDER))


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.combine_chunks().to_batches(_ROWS))


def _table(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table(
        {name: pa.array(some, _SCHEMA.field(name).type) for name, some in columns.items()}
    )


def _rows(rank: int, table: pa.Table) -> pa.Table:
    """Return a table with all columns for the audit of sessions; missing ones are null."""
    count = table.num_rows
    columns = []
    for field in _SCHEMA:
        if field.name == "rank":
            columns.append(pa.array([rank] * count, field.type))
        elif field.name in table.column_names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.table(columns, schema=_SCHEMA)


def _expected(facts: LocalFacts, logs: Mapping[str, LogSummary], memory: int | None) -> pa.Table:
    """Return the messages that sessions must or may get."""
    told = facts.rows(SPANS, "node", "session", "at", "data", "number")
    spans = spans_of_facts(
        (
            (node, session, at, data)
            for node, session, at, data, number in told
            if number == 0 or at < logs[node].whole
        ),
        logs,
    )
    names = ("node", "session", "at", "ref", "time_ms", "number", "topic", "size", "expires")
    found = facts.table(EFFECT, *names)
    if facts.released:
        columns = zip(*(one[: len(names)] for one in facts.released), strict=True)
        more = dict(zip(names, columns, strict=True))
        types = {field.name: field.type for field in found.schema}
        apart = pa.table({name: pa.array(some, types[name]) for name, some in more.items()})
        found = pa.concat_tables([found, apart]).sort_by(
            [("node", "ascending"), ("at", "ascending")]
        )
    at, number = (found.column(name).to_numpy() for name in ("at", "number"))
    publishers = found.column("session")
    effects_of = {
        "node": found.column("node"),
        "at": found.column("at"),
        "turn": pa.array(((at >> INDEX_BITS) - (number >> 2)) << INDEX_BITS, pa.int64()),
        "ref": found.column("ref"),
        "time_ms": found.column("time_ms"),
        "level": pa.array(number & 3, pa.int32()),
        "publisher": publishers,
        "origin": publishers.dictionary_encode().combine_chunks().indices,
        "topic": found.column("topic"),
        "size": found.column("size"),
        "expires": found.column("expires"),
    }
    effects = pa.table([effects_of[name] for name in EFFECT_COLUMNS], names=list(EFFECT_COLUMNS))
    packs, size = [], 0
    for pack in packs_of(spans, _batches(effects)):
        packs.append(pack)
        size += pack.nbytes
        if memory is not None and _COPIES * size > memory:
            raise TooManyDeliveries
    return pa.Table.from_batches(packs) if packs else _table({"node": []})


def _claims(claims: Iterable[StateClaim], logs: Mapping[str, LogSummary]) -> pa.Table:
    some = [one for one in claims if one.kind == SESSION_CLAIM and one.node in logs]
    return _table(
        {
            "node": [one.node for one in some],
            "session": [one.name for one in some],
            "at": [one.bound for one in some],
            "topic": [one.where for one in some],
            "data": [None if one.digest is None else one.digest.encode() for one in some],
        }
    )
