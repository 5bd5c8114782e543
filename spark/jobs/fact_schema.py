"""Rows as Arrow batches of bounded size, and the facts of ``projections.audit`` as such rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from projections.audit.fact_buffer import FactChunk, Fold, folded

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.int8()),
        ("node", pa.string()),
        ("session", pa.string()),
        ("at", pa.int64()),
        ("ref", pa.int64()),
        ("time_ms", pa.int64()),
        ("number", pa.int32()),
        ("size", pa.int64()),
        ("expires", pa.int64()),
        ("check", pa.int64()),
        ("topic", pa.string()),
        ("digest", pa.string()),
        ("before", pa.string()),
        ("data", pa.binary()),
        ("payload", pa.binary()),
    ]
)


def fact_batch(facts: FactChunk) -> pa.RecordBatch:
    """Return facts as a batch."""
    columns = facts.columns
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(facts), field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def fold_batches(
    fold: Fold,
    columns: Sequence[str],
    results: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the results of a fold of facts; ``columns`` and ``results`` are those of its rows."""
    yield from map(fact_batch, folded(fold, _rows(batches, columns), results))


def _rows(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


_MAX_ROWS: Final = 4096
_MAX_BYTES: Final = 8 * 1024 * 1024

_NAMES: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def ddl(schema: pa.Schema) -> str:
    """Return an Arrow schema in the form that Spark reads."""
    return ", ".join(f"`{field.name}` {_ddl(field.type)}" for field in schema)


def _ddl(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{member.name}`: {_ddl(member.type)}' for member in kind)}>"
    return _NAMES[kind]


DDL: Final = ddl(SCHEMA)


def arrow_batches_of(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches; texts and payloads count towards the maximum size of a batch."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, (str, bytes)))
        if len(batch) >= _MAX_ROWS or size >= _MAX_BYTES:
            yield pa.RecordBatch.from_pylist(batch, schema)
            batch, size = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema)
