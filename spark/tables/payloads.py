"""Cuts payloads out of the payload areas of a batch of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark.tables.arrays import cut_pieces, indices, of_texts
from spark.tables.integer_columns import Integers, UnusualEvent, sums_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.format.records import Record


class PayloadAreas:
    """The payload areas of some records, joined when first needed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._lengths = np.array([len(record.payload) for record in records], np.int64)
        self._bases = sums_before(self._lengths)
        self._joined: pa.Buffer | None = None

    def check(self, owners: Integers, starts: Integers, sizes: Integers) -> None:
        """Raise UnusualEvent unless each payload is within its record's area."""
        if len(starts) and (
            int(starts.min()) < 0
            or int(sizes.min()) < 0
            or bool((starts + sizes > self._lengths[owners]).any())
        ):
            raise UnusualEvent("a payload outside the record's payload area")

    def cut(self, owners: Integers, starts: Integers, sizes: Integers) -> pa.Array:
        """Return payloads; ``owners`` are the records whose areas contain them."""
        if self._joined is None:
            self._joined = pa.py_buffer(b"".join([record.payload for record in self._records]))
        begins = self._bases[owners] + starts
        ends = begins + sizes
        order = None
        if len(begins) and bool((begins[1:] < ends[:-1]).any()):
            order = np.argsort(begins, kind="stable")
            begins, ends = begins[order], ends[order]
            if bool((begins[1:] < ends[:-1]).any()):
                return self._copied(owners, starts, sizes)
        found = cut_pieces(self._joined, begins, ends, pa.binary())
        if order is None:
            return found
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return found.take(indices(back))

    def _copied(self, owners: Integers, starts: Integers, sizes: Integers) -> pa.Array:
        """Return payloads that overlap: several events refer to the same bytes."""
        each = zip(owners.tolist(), starts.tolist(), sizes.tolist(), strict=True)
        records = self._records
        some = [bytes(records[owner].payload[at : at + size]) for owner, at, size in each]
        return of_texts(some).cast(pa.binary())
