"""Builds Arrow arrays from numpy arrays and from text.

``pyarrow.array`` imports pandas first, which takes half a second in each process; the functions
here do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from spark.tables.integer_columns import Integers
    from spark.tables.integer_text import Flags

Part: TypeAlias = pa.Array | pa.Scalar | bytes
"""Part of strings: one for each of them, or one for all."""


def of_numbers(values: NDArray[Any], kind: pa.DataType, valid: Flags | None = None) -> pa.Array:
    """Return numbers as an array of a type with the same width."""
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), _buffer(values)])


def of_flags(values: Flags, valid: Flags | None = None) -> pa.Array:
    """Return truth values as an array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bits(valid), _bits(values)])


def indices(where: Integers) -> pa.Array:
    """Return indices for ``take``; negative numbers become null."""
    missing = where < 0
    return of_numbers(where, pa.int64(), ~missing if missing.any() else None)


def of_texts(texts: Iterable[Any], valid: Flags | None = None) -> pa.Array:
    """Return pieces of UTF-8 as an array of strings.

    They are joined soon, not kept: many small ones of uneven size wear out the allocator.
    """
    some = list(texts)
    lengths = np.fromiter(map(len, some), np.int64, len(some))
    return of_joined(b"".join(some), lengths, valid)


def of_joined(data: bytes, lengths: Integers, valid: Flags | None = None) -> pa.Array:
    """Return joined UTF-8, with the length of each piece, as an array of strings."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_bits(valid), _buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def of_lists(
    lengths: Integers, values: pa.Array, kind: pa.DataType, valid: Flags | None = None
) -> pa.Array:
    """Return values as an array of lists of the given lengths; null where not ``valid``."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_bits(valid), _buffer(offsets)]
    return pa.Array.from_buffers(kind, len(lengths), buffers, children=[values])


def cut_pieces(data: pa.Buffer, begins: Integers, ends: Integers, kind: pa.DataType) -> pa.Array:
    """Return pieces of some data, given in ascending order."""
    # one array of the pieces and of the gaps between them, from which the pieces are taken
    edges = np.empty(2 * len(begins) + 1, np.int32)
    edges[0:-1:2] = begins
    edges[1::2] = ends
    edges[-1] = edges[-2] if len(begins) else 0
    both = pa.Array.from_buffers(kind, 2 * len(begins), [None, _buffer(edges), data])
    return both.take(of_numbers(np.arange(0, 2 * len(begins), 2), pa.int64()))


def nulled(array: pa.Array, valid: Flags) -> pa.Array:
    """Return an array with nulls for invalid values."""
    buffers = [_bits(valid), *array.buffers()[1:]]
    return pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset)


def number_texts(values: Integers) -> pa.Array | pa.Scalar:
    """Return integers as text; a single value if all are the same."""
    if len(values) and (values == values[0]).all():
        return of_texts([b"%d" % values[0]])[0]
    return of_numbers(values, pa.int64()).cast(pa.string())


def joined_texts(length: int, *parts: Part) -> pa.Array:
    """Return this many strings, each joined from parts; single parts belong to all of them."""
    given = [of_texts([part])[0] if isinstance(part, bytes) else part for part in parts]
    if not any(isinstance(part, pa.Array) for part in given):
        given[0] = pa.repeat(given[0], length)
    return compute.binary_join_element_wise(*given, of_texts([b""])[0])


def join_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return one array of several of the same type, at least one."""
    return pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]


def _buffer(values: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values))


def _bits(flags: Flags | None) -> pa.Buffer | None:
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))
