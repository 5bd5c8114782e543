"""Builds Arrow arrays from Python values and numpy arrays.

``pyarrow.array`` imports pandas first, which takes half a second in each process; the functions
here do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

Integers: TypeAlias = "NDArray[np.int64]"
Flags: TypeAlias = "NDArray[np.bool_]"


def of_numbers(values: NDArray[Any], kind: pa.DataType, valid: Flags | None = None) -> pa.Array:
    """Return numbers as an array of a type with the same width."""
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), _buffer(values)])


def indices(where: Integers) -> pa.Array:
    """Return indices for ``take``; negative numbers become null."""
    missing = where < 0
    return of_numbers(where, pa.int64(), ~missing if missing.any() else None)


def array_of(values: Sequence[Any] | Integers, kind: pa.DataType) -> pa.Array:
    """Return values, None for null, as an array; raise OverflowError for integers too large."""
    if isinstance(values, np.ndarray):
        return _of_integers(values, kind)
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    flags = None if valid.all() else valid
    if pa.types.is_string(kind):
        return _of_bytes([value.encode() if value else b"" for value in values], kind, flags)
    if pa.types.is_binary(kind):
        return _of_bytes([value or b"" for value in values], kind, flags)
    if pa.types.is_boolean(kind):
        buffers = [_bits(flags), _bits(np.array([*map(bool, values)], np.bool_))]
        return pa.Array.from_buffers(kind, len(values), buffers)
    if pa.types.is_struct(kind):
        children = [array_of([value[at] for value in values], kind[at].type) for at in range(2)]
        return pa.Array.from_buffers(kind, len(values), [None], children=children)
    if pa.types.is_list(kind):
        items = array_of([*chain.from_iterable(value or () for value in values)], kind.value_type)
        buffers = [_bits(flags), _offsets([len(value or ()) for value in values])]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[items])
    return _of_integers(np.array([value or 0 for value in values], np.int64), kind, flags)


def binaries_of(data: bytes, offsets: Integers, valid: Flags) -> pa.Array:
    """Return pieces of bytes as an array; one more offset than pieces."""
    first, last = offsets[0], offsets[-1]
    narrow = _buffer((offsets - first).astype(np.int32))
    buffers = [_bits(valid), narrow, pa.py_buffer(data).slice(first, last - first)]
    return pa.Array.from_buffers(pa.binary(), len(valid), buffers)


def texts_of(values: Sequence[bytes]) -> pa.Array:
    """Return pieces of UTF-8 as an array of strings."""
    return _of_bytes(values, pa.string(), None)


def _of_integers(values: Integers, kind: pa.DataType, valid: Flags | None = None) -> pa.Array:
    if kind.bit_width == 64:
        return of_numbers(values, kind, valid)
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        raise OverflowError("a value that is too large")
    return of_numbers(narrow, kind, valid)


def _of_bytes(values: Sequence[bytes], kind: pa.DataType, valid: Flags | None) -> pa.Array:
    # Joined soon, not kept: many small pieces of uneven size wear out the allocator.
    buffers = [_bits(valid), _offsets([*map(len, values)]), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _offsets(lengths: Sequence[int]) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.fromiter(lengths, np.int64, len(lengths)), out=offsets[1:])
    return _buffer(offsets)


def _buffer(values: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values))


def _bits(flags: Flags | None) -> pa.Buffer | None:
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))
