"""Converts Python rows to Arrow batches of bounded size."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

_MAX_ROWS: Final = 4096
_MAX_BYTES: Final = 8 * 1024 * 1024

_NAMES: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
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
        return f"struct<{', '.join(f'`{one.name}`: {_ddl(one.type)}' for one in kind)}>"
    return _NAMES[kind]


def arrow_batches_of(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches; texts and payloads count towards the maximum size of a batch."""
    some: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        some.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, (str, bytes)))
        if len(some) >= _MAX_ROWS or size >= _MAX_BYTES:
            yield pa.RecordBatch.from_pylist(some, schema)
            some, size = [], 0
    if some:
        yield pa.RecordBatch.from_pylist(some, schema)
