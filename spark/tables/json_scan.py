"""Locates the events of a batch in their JSON, and the fields of each event.

The JSON of all events of a batch is one text, in which numpy finds the quotes, the keys, and the
ends of each event. No event is converted to an object: a column is cut out of the text, for all
events of a type at once. That takes a fraction of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np
import orjson
import pyarrow as pa

from spark.tables.arrays import cut_pieces, of_joined, of_texts
from spark.tables.integer_columns import Integers, UnusualEvent
from spark.tables.integer_text import PAD, parse_integers, words_of
from spark.tables.turn_text import without_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.format.records import Record
    from spark.tables.integer_text import Flags

_EVENTS: Final = b',"events":['
_QUOTE, _COLON, _COMMA, _BACKSLASH, _OPEN, _CLOSE = map(ord, '":,\\{}')
_SPACE: Final = ord(" ")


def area_of(record: Record) -> memoryview:
    """Return the JSON of a record's events, with commas between them.

    Raises UnusualEvent for a header of another form than foldmq writes.
    """
    data = record.header
    end = len(data) - 2
    # Within a string the quotes would be escaped: the first place is the right one.
    start = data.find(_EVENTS, 0, end) + len(_EVENTS)
    if start < len(_EVENTS) or data[end : end + 2] != b"]}":
        raise UnusualEvent("a header that is written otherwise")
    return memoryview(data)[start:end]


class JsonScan:
    """The JSON of the events of some records, with the places of their fields.

    Events of several sessions are replaced by the events that they stand for, unless ``turns``.
    """

    def __init__(self, records: Sequence[Record], *, turns: bool = False) -> None:
        areas = [area_of(record) for record in records]
        if not turns:
            areas = list(map(without_turns, areas))
        some = [area for area in areas if len(area)]
        pad = b" " * PAD
        self.text = text = b"".join((pad, b",".join(some), pad))
        self.bytes = np.frombuffer(text, np.uint8)
        self._words = words_of(text)
        self._buffer = pa.py_buffer(text)
        if int(self.bytes.min()) < _SPACE:
            raise UnusualEvent("a control character")
        if not text.isascii():
            self._check_utf8()
        self.has_escapes = b"\\" in text
        """Whether a string contains escapes."""
        quotes = self._quotes()
        self.opens = quotes[0::2]
        """Place of the opening quote of each string."""
        self.closes = quotes[1::2]
        """Place of its closing quote."""
        if len(self.opens) != len(self.closes):
            raise UnusualEvent("a string without an end")
        braces, depths = self._braces(quotes)
        opening = self.bytes[braces] == _OPEN
        self.begins = braces[opening & (depths == 1)]
        """Place of the beginning of each event."""
        self.ends = braces[~opening & (depths == 0)] + 1
        """Place of the end of each event."""
        self._check_events(len(text) - PAD)
        self.lengths = self._lengths(areas, some)
        """Number of events of each record."""
        keys = np.flatnonzero(self.bytes[self.closes + 1] == _COLON)
        if len(braces) > 2 * len(self.begins):  # objects within events have keys, too
            within = np.searchsorted(braces, self.opens[keys]) - 1
            keys = keys[depths[within] == 1]
        self.keys = keys
        """The number of each string that is a key."""
        self.key_at = self.opens[keys]
        """The place of each key."""
        self.first_key = np.flatnonzero(self.bytes[self.key_at - 1] == _OPEN)
        """For each event the index of its first key."""
        if not np.array_equal(self.key_at[self.first_key], self.begins + 1):
            raise UnusualEvent("an event without fields")
        self.key_count = np.diff(self.first_key, append=len(keys))
        """For each event the number of its keys."""

    def _check_utf8(self) -> None:
        try:
            of_joined(self.text, np.array([len(self.text)])).validate(full=True)
        except pa.ArrowInvalid:
            raise UnusualEvent("text that is no UTF-8") from None

    def _quotes(self) -> Integers:
        """Return the places of quotes of strings."""
        quotes = np.flatnonzero(self.bytes == _QUOTE)
        if not self.has_escapes:
            return quotes
        slashes = np.flatnonzero(self.bytes == _BACKSLASH)
        # In a row of backslashes, every other one, from the first on, escapes the next character.
        begins = np.diff(slashes, prepend=-2) > 1
        row = slashes[np.maximum.accumulate(np.where(begins, np.arange(len(slashes)), 0))]
        escaped = slashes[(slashes - row) % 2 == 0] + 1
        return np.setdiff1d(quotes, escaped, assume_unique=True)

    def _braces(self, quotes: Integers) -> tuple[Integers, Integers]:
        """Return the places where objects begin and end, and the depth behind each place."""
        braces = np.flatnonzero((self.bytes == _OPEN) | (self.bytes == _CLOSE))
        braces = braces[np.searchsorted(quotes, braces) % 2 == 0]  # without those in strings
        steps = np.where(self.bytes[braces] == _OPEN, 1, -1)
        return braces, np.cumsum(steps)

    def _check_events(self, end: int) -> None:
        """Raise UnusualEvent unless there are only events with commas between them."""
        begins, ends = self.begins, self.ends
        if (
            len(begins) != len(ends)
            or (begins[0] if len(begins) else end) != PAD
            or (ends[-1] if len(ends) else end) != end
            or not np.array_equal(begins[1:], ends[:-1] + 1)
            or not (self.bytes[ends[:-1]] == _COMMA).all()
        ):
            raise UnusualEvent("not a list of events")

    def _lengths(self, areas: Sequence[memoryview], some: Sequence[memoryview]) -> Integers:
        sizes = np.fromiter(map(len, areas), np.int64, len(areas))
        lengths = np.zeros(len(areas), np.int64)
        if some:
            stops = PAD + np.cumsum(sizes[sizes > 0] + 1)
            behind = np.searchsorted(self.ends, stops)
            if not np.array_equal(self.ends[behind - 1] + 1, stops):
                raise UnusualEvent("an event in two records")
            lengths[sizes > 0] = np.diff(behind, prepend=0)
        return lengths

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.begins)

    def event(self, number: int) -> bytes:
        """Return the JSON of an event."""
        return self.text[self.begins[number] : self.ends[number]]

    def slices(self, begins: Integers, ends: Integers) -> list[bytes]:
        """Return pieces of the text."""
        text = self.text
        each = zip(begins.tolist(), ends.tolist(), strict=True)
        return [text[begin:end] for begin, end in each]

    def has(self, places: Integers, what: bytes) -> Flags:
        """Return flags for the places at which the text contains ``what``."""
        found = np.ones(len(places), np.bool_)
        for offset in range(0, len(what), 8):
            part = what[offset : offset + 8]
            words = self._words[places + offset]
            if len(part) < 8:
                words &= np.uint64((1 << 8 * len(part)) - 1)
            found &= words == int.from_bytes(part, "little")
        return found

    def words(self, places: Integers) -> Integers:
        """Return the eight bytes from each place on, as a number."""
        return self._words[places].view(np.int64)

    def numbers(self, begins: Integers, ends: Integers) -> tuple[Integers, Flags]:
        """Return integers, and flags for valid ones."""
        return parse_integers(self.text, begins, ends)

    def strings(self, begins: Integers, ends: Integers) -> pa.Array:
        """Return the text between quotes, in the order of the text."""
        found = cut_pieces(self._buffer, begins, ends, pa.string())
        if not self.has_escapes:
            return found
        some = self.slices(begins, ends)
        return of_texts([_unescaped(one) if b"\\" in one else one for one in some])

    def events(self, numbers: Integers | slice) -> pa.Array:
        """Return the JSON of some events, in the order of the text."""
        return self.raw(self.begins[numbers], self.ends[numbers])

    def raw(self, begins: Integers, ends: Integers) -> pa.Array:
        """Return pieces of raw JSON, in the order of the text."""
        return cut_pieces(self._buffer, begins, ends, pa.string())


def _unescaped(text: bytes) -> bytes:
    try:
        return cast("str", orjson.loads(b'"%b"' % text)).encode()
    except ValueError:
        raise UnusualEvent("a string that is none") from None
