"""The types of the columns in Arrow.

They are separate from the columns because Arrow takes long to import, and planning needs only the
names of the columns.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from spark.tables import columns


def _array_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))  # the name that Spark uses


_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<struct<filter:string,qos:int>>": _array_of(
        pa.struct([pa.field("filter", pa.string()), pa.field("qos", pa.int32())])
    ),
    "array<struct<name:string,value:string>>": _array_of(
        pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])
    ),
    "array<string>": _array_of(pa.string()),
    "array<bigint>": _array_of(pa.int64()),
}


GRAINS: Final[Mapping[str, Mapping[str, pa.DataType]]] = {
    rows: {name: _TYPES[kind] for name, kind in kinds.items()}
    for rows, kinds in columns.GRAINS.items()
}


def schema_of(rows: str, names: Iterable[str]) -> pa.Schema:
    """Return the schema of some columns of one table."""
    return pa.schema([(name, GRAINS[rows][name]) for name in names])
