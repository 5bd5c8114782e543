"""The fields of the events of one type in a batch of records, read column by column.

A requested field is taken from all events at once; of other fields only the beginning is checked. A
field of unexpected form raises UnusualEvent.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from spark.tables.arrays import nulled
from spark.tables.event_fields import SHAPES, TURN_SHAPES
from spark.tables.integer_columns import (
    Integers,
    UnusualEvent,
    expand,
    numbers_within,
    sums_before,
)
from spark.tables.integer_text import parse_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark.tables.event_fields import EventField
    from spark.tables.integer_text import Flags
    from spark.tables.json_scan import JsonScan

_NULL: Final = b"null"
_BRACE: Final = ord("{")
_decode_runs = msgspec.json.Decoder(list[list[int | list[int]]]).decode
_decode_integers = msgspec.json.Decoder(list[list[int]]).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_raws = msgspec.json.Decoder(list[list[msgspec.Raw] | None]).decode
_decode_filters = msgspec.json.Decoder(list[list[tuple[str, int]]]).decode


class EventColumns:
    """The fields of events of one type, in the order of the log."""

    def __init__(self, kind: str, scan: JsonScan, numbers: Integers) -> None:
        """Take the events with some numbers; raise UnusualEvent for an event of unusual form."""
        self.kind = kind
        self.numbers = numbers
        """The number of each event in the batch."""
        self._scan = scan
        self._shape = SHAPES.get(kind) or TURN_SHAPES[kind]
        self._fields = self._shape.fields
        self._first = scan.first_key[numbers]
        self._lists: dict[str, tuple[Integers, Integers]] = {}
        self._check()

    def _check(self) -> None:
        scan, fields = self._scan, self._fields
        more = scan.key_count[self.numbers] - len(fields) - 2
        self._check_added(more)
        for name, field in fields.items():
            if not scan.has(self._key(field) - 1, field.literal).all():
                raise UnusualEvent(f"with another field than {name}")
        tail = self._shape.tail
        last = scan.key_at[self._first + len(fields) + more] - 1
        if not (scan.has(last, tail) & (last + len(tail) == scan.ends[self.numbers])).all():
            raise UnusualEvent("of another version")

    def _check_added(self, more: Integers) -> None:
        """Check that fields beyond the usual ones are permitted."""
        if not more.any():
            return
        scan, added = self._scan, self._shape.added
        if int(more.min()) < 0 or int(more.max()) > len(added):
            raise UnusualEvent("with more or fewer fields")
        for number in range(int(more.max())):
            some = self._first[more > number] + len(self._fields) + number
            known = np.zeros(len(some), np.bool_)
            for literal in added:
                known |= scan.has(scan.key_at[some] - 1, literal)
            if not known.all():
                raise UnusualEvent("with more or fewer fields")

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.numbers)

    def has_added(self) -> bool:
        """Return whether some event has fields beyond the usual ones."""
        return bool((self._scan.key_count[self.numbers] > len(self._fields) + 2).any())

    @cached_property
    def added(self) -> Sequence[tuple[int, dict[str, Any]]]:
        """Index and fields of each event that has fields beyond the usual ones."""
        more = self._scan.key_count[self.numbers] > len(self._fields) + 2
        return [
            (place, orjson.loads(self._scan.event(int(self.numbers[place]))))
            for place in np.flatnonzero(more).tolist()
        ]

    def has(self, name: str) -> bool:
        """Return whether the events have a field."""
        return name in self._fields

    def _key(self, field: EventField, more: int = 0) -> Integers:
        """Return the place of a field's key in each event, or of one after it."""
        return self._scan.key_at[self._first + field.number + more]

    @property
    def bounds(self) -> tuple[Integers, Integers]:
        """The begin and end of each event."""
        return self._scan.begins[self.numbers], self._scan.ends[self.numbers]

    def raw(self, begins: Integers, ends: Integers) -> pa.Array:
        """Return pieces of the text of the batch."""
        return self._scan.raw(begins, ends)

    def number_of(self, name: str) -> int:
        """Return the number of a field in the order of the fields."""
        return self._fields[name].number

    def span(self, name: str) -> tuple[Integers, Integers]:
        """Return the begin and end of a field's value in each event."""
        field = self._fields[name]
        return self._key(field) + field.name_size, self._key(field, 1) - 1

    def _strings_of(self, name: str) -> tuple[Integers, Integers]:
        """Return the number of a field's first string in each event, and that of the next key."""
        first = self._first + self._fields[name].number
        return self._scan.keys[first] + 1, self._scan.keys[first + 1]

    def string_span(self, name: str) -> tuple[Integers, Integers, Flags | None]:
        """Return begin and end of a string, quotes excluded, and flags for existing strings.

        None: all exist; missing strings are empty.
        """
        begins, ends = self.span(name)
        number, following = self._strings_of(name)
        valid = None
        if None in self._fields[name].kinds:
            valid = following > number
            null = self._scan.has(begins, _NULL) & (ends - begins == len(_NULL))
            if not (valid | null).all():
                raise UnusualEvent(f"with a wrong {name}")
        of = np.minimum(number, len(self._scan.closes) - 1)
        wrong = (
            (following - number != 1)
            | (self._scan.opens[of] != begins)
            | (self._scan.closes[of] + 1 != ends)
        )
        if (wrong if valid is None else wrong & valid).any():
            raise UnusualEvent(f"with a wrong {name}")
        begins, ends = begins + 1, ends - 1
        return begins, ends if valid is None else np.where(valid, ends, begins), valid

    def strings(self, name: str) -> pa.Array:
        """Return a field of strings of all events."""
        begins, ends, valid = self.string_span(name)
        found = self._scan.strings(begins, ends)
        return found if valid is None else nulled(found, valid)

    def integers(self, name: str) -> Integers:
        """Return a field of integers of all events."""
        values, right = self._scan.numbers(*self.span(name))
        if not right.all():
            raise UnusualEvent(f"with a wrong {name}")
        return values

    def known_integers(self, name: str) -> tuple[Integers, Flags | None]:
        """Return a field of integers, and flags for existing values; None: all exist."""
        if None not in self._fields[name].kinds:
            return self.integers(name), None
        begins, ends = self.span(name)
        values, right = self._scan.numbers(begins, ends)
        null = self._scan.has(begins, _NULL) & (ends - begins == len(_NULL))
        if not (right | null).all():
            raise UnusualEvent(f"with a wrong {name}")
        return values, right

    def flags(self, name: str) -> Flags:
        """Return a field of truth values of all events."""
        begins, ends = self.span(name)
        lengths = ends - begins
        yes: Flags = self._scan.has(begins, b"true") & (lengths == len("true"))
        no = self._scan.has(begins, b"false") & (lengths == len("false"))
        if not (yes | no).all():
            raise UnusualEvent(f"with a wrong {name}")
        return yes

    def objects(self, name: str) -> pa.Array:
        """Return a field of JSON objects, as text; null where it is missing."""
        begins, ends = self.span(name)
        known = ~(self._scan.has(begins, _NULL) & (ends - begins == len(_NULL)))
        if not known.any():
            return pa.nulls(len(self), pa.string())
        if not (self._scan.bytes[begins[known]] == _BRACE).all():
            raise UnusualEvent("a field that is no object")
        self._decoded(_decode_raw, begins, ends)
        return nulled(self._scan.raw(begins, ends), known)

    def object_lists(self, name: str) -> list[list[msgspec.Raw | None] | None]:
        """Return a field of lists of JSON objects; None for missing lists and null items."""
        begins, ends = self.span(name)
        if (self._scan.has(begins, _NULL) & (ends - begins == len(_NULL))).all():
            return [None] * len(self)
        found: list[Any] = self._decoded(_decode_raws, begins, ends)
        return [None if some is None else list(map(_object, some)) for some in found]

    def granted(self) -> list[list[tuple[str, int]]]:
        """Return the filters of each event with their QoS."""
        found: list[list[tuple[str, int]]] = self._decoded(_decode_filters, *self.span("filters"))
        return found

    def string_lists(self, name: str, *, raw: bool = False) -> tuple[Integers, pa.Array]:
        """Return a field of lists of strings: their number in each event, and all of them.

        ``raw``: as they are in JSON, without their quotes.
        """
        lengths, opens, closes = self.string_places(name)
        return lengths, (self._scan.raw if raw else self._scan.strings)(opens + 1, closes)

    def string_places(self, name: str) -> tuple[Integers, Integers, Integers]:
        """Return a field of lists of strings: their number in each event, and their quotes."""
        begins, ends = self.span(name)
        number, following = self._strings_of(name)
        lengths = following - number
        which = np.repeat(number, lengths) + numbers_within(lengths)
        opens, closes = self._scan.opens[which], self._scan.closes[which]
        # Strings, commas between them and brackets: the length of a list without anything else.
        sums = np.concatenate(([0], np.cumsum(closes - opens + 1)))
        stops = np.cumsum(lengths)
        sizes = sums[stops] - sums[stops - lengths] + np.maximum(lengths - 1, 0) + len("[]")
        owners = np.repeat(np.arange(len(self)), lengths)
        followed = closes[:-1][owners[:-1] == owners[1:]]
        if not (
            np.array_equal(sizes, ends - begins)
            and self._scan.has(followed + 1, b',"').all()
            and self._scan.has(ends - 1, b"]").all()
        ):
            raise UnusualEvent(f"with wrong {name}")
        return lengths, opens, closes

    def longest(self, name: str) -> Integers:
        """Return the length of the longest string of a list in each event, in bytes of JSON."""
        number, following = self._strings_of(name)
        lengths = following - number
        which = np.repeat(number, lengths) + numbers_within(lengths)
        found = np.zeros(len(self), np.int64)
        owners = np.repeat(np.arange(len(self)), lengths)
        np.maximum.at(found, owners, self._scan.closes[which] - self._scan.opens[which])
        return found

    def integer_lists(self, name: str) -> tuple[Integers, Integers]:
        """Return a field of lists of integers: their number in each event, and all of them."""
        return self._integers_in(name, _decode_integers)

    def runs(self, name: str) -> tuple[Integers, Integers]:
        """Return a column of runs: the number of integers of each event, and all of them."""
        return self._integers_in(name, _decode_runs)

    def one_or_several(self, name: str) -> tuple[Integers | None, Integers]:
        """Return a field that is an integer or a list of integers: their number, and all of them.

        The number is -1 where the field is no list; None: it is no list in any event.
        """
        begins, ends = self.span(name)
        single, right = self._scan.numbers(begins, ends)
        if right.all():
            return None, single
        lengths, values = self._expanded(_decode_integers, begins, ends, single, right)
        return np.where(right, -1, lengths), values

    def _integers_in(self, name: str, decode: Callable[[bytes], Any]) -> tuple[Integers, Integers]:
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = self._list_at(decode, *self.span(name))
        return found

    def _list_at(
        self, decode: Callable[[bytes], Any], begins: Integers, ends: Integers
    ) -> tuple[Integers, Integers]:
        # Most have one integer: these need not be decoded one by one.
        single, right = self._scan.numbers(begins + 1, ends - 1)
        right &= self._scan.has(ends - 1, b"]")
        return self._expanded(decode, begins, ends, single, right)

    def added_integers(self, name: str) -> tuple[Integers, Integers]:
        """Return a field beyond the usual ones, of lists of integers, as ``integer_lists`` does.

        An event without the field has none.
        """
        literal = f',"{name}":'.encode()
        lengths = np.zeros(len(self), np.int64)
        begins, ends = np.zeros((2, len(self)), np.int64)
        more = self._scan.key_count[self.numbers] - len(self._fields) - 2
        for number in range(int(more.max(initial=0))):
            some = np.flatnonzero(more > number)
            keys = self._first[some] + len(self._fields) + number
            named = self._scan.has(self._scan.key_at[keys] - 1, literal)
            some, keys = some[named], keys[named]
            begins[some] = self._scan.key_at[keys] - 1 + len(literal)
            ends[some] = self._scan.key_at[keys + 1] - 1
        some = np.flatnonzero(ends)
        if not len(some):
            return lengths, lengths[:0]
        lengths[some], values = self._list_at(_decode_integers, begins[some], ends[some])
        return lengths, values

    def _expanded(
        self,
        decode: Callable[[bytes], Any],
        begins: Integers,
        ends: Integers,
        single: Integers,
        right: Flags,
    ) -> tuple[Integers, Integers]:
        """Return the integers of lists; those with a single one are known."""
        lengths = right.astype(np.int64)
        empty = self._scan.has(begins, b"[]") & (ends - begins == len("[]"))
        some = np.flatnonzero(~(right | empty))
        if not len(some):
            return lengths, single[right]
        lengths[some], several = self._several(decode, begins[some], ends[some])
        values = np.empty(int(lengths.sum()), np.int64)
        at = sums_before(lengths)
        values[at[right]] = single[right]
        values[np.repeat(at[some], lengths[some]) + numbers_within(lengths[some])] = several
        return lengths, values

    def _several(
        self, decode: Callable[[bytes], Any], begins: Integers, ends: Integers
    ) -> tuple[Integers, Integers]:
        """Return the number of integers of each list, and all of them."""
        if self._scan.has(begins, b"[").all() and self._scan.has(ends - 1, b"]").all():
            lists = self._scan.slices(begins + 1, ends - 1)
            values = parse_list(b",".join(lists))
            if values is not None:
                commas = [text.count(b",") for text in lists]
                return np.fromiter(commas, np.int64, len(lists)) + 1, values
        return expand(self._decoded(decode, begins, ends))

    def _decoded(self, decode: Callable[[bytes], Any], begins: Integers, ends: Integers) -> Any:
        try:
            return decode(b"[%b]" % b",".join(self._scan.slices(begins, ends)))
        except msgspec.DecodeError as error:
            raise UnusualEvent(str(error)) from None


def _object(text: msgspec.Raw) -> msgspec.Raw | None:
    """Return the JSON of an object, None for null; raise UnusualEvent for anything else."""
    first = bytes(memoryview(text)[:1])
    if first not in (b"{", b"n"):
        raise UnusualEvent("a field that is no object")
    return text if first == b"{" else None
