"""Parses integers in text, many at a time: eight digits by a few operations on a machine word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spark.tables.integer_columns import Integers

Words: TypeAlias = "NDArray[np.uint64]"
Flags: TypeAlias = "NDArray[np.bool_]"

PAD: Final = 24
"""Minimum bytes before and behind a text, as words are read beyond its ends."""
_SHORT: Final = 16
"""Maximum digits in two words."""
_SAFE: Final = 18
"""Maximum digits of a number that always fits into 64 bits."""
_MINUS, _ZERO, _COMMA = map(ord, "-0,")
_LOWEST, _BEYOND = -(1 << 63), 1 << 63


def words_of(text: bytes) -> Words:
    """Return for each byte of a text, except the last ones, the eight bytes that begin there."""
    return np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))


def parse_integers(text: bytes, begins: Integers, ends: Integers) -> tuple[Integers, Flags]:
    """Return the integers in a text, and flags for those in valid JSON form.

    For others, and those of more than 64 bits, the returned number is arbitrary.
    """
    first = np.frombuffer(text, np.uint8)
    words = words_of(text)
    signs = first[begins] == _MINUS
    begins = begins + signs
    lengths = ends - begins
    values, right = _eight(words, ends, lengths)
    right &= (lengths > 0) & ((first[begins] != _ZERO) | (lengths == 1))
    long = np.flatnonzero(lengths > 8)
    if len(long):
        above, fits = _eight(words, ends[long] - 8, lengths[long] - 8)
        values[long] += above * 10**8
        right[long] &= fits
    values[signs] *= -1
    for at in np.flatnonzero(right & (lengths > _SHORT)).tolist():
        digits = text[begins[at] : ends[at]]
        value = int(digits) * (-1 if signs[at] else 1) if digits.isdigit() else _BEYOND
        right[at] = inside = _LOWEST <= value < _BEYOND
        values[at] = value if inside else 0
    return values, right


def parse_list(text: bytes) -> Integers | None:
    """Return the integers in a text of digits and commas, at least one.

    None: it has other characters, an integer of another form than JSON has, or a very large one.
    """
    if not text or text.translate(None, b"0123456789,"):
        return None
    edged = b",%b," % text
    characters = np.frombuffer(edged, np.uint8)
    commas = np.flatnonzero(characters == _COMMA)
    lengths = np.diff(commas) - 1
    zeros = characters[commas[:-1] + 1] == _ZERO
    if int(lengths.min()) < 1 or int(lengths.max()) > _SAFE or (zeros & (lengths > 1)).any():
        return None
    return np.fromstring(text.decode(), np.int64, sep=",")


def _eight(words: Words, ends: Integers, lengths: Integers) -> tuple[Integers, Flags]:
    """Return the value of the last eight digits, and flags for valid digits."""
    digits = words[ends - 8] ^ 0x3030303030303030
    # The first byte is the lowest one: bytes before the digits are shifted out, zeros in.
    before = (np.maximum(8 - lengths, 0) * 8).astype(np.uint64)
    digits = digits >> before << before
    wrong = (digits | (digits + 0x7676767676767676)) & 0x8080808080808080
    # Neighbours are joined: eight digits to four numbers, these to two, these to one.
    digits = digits * 10 + (digits >> 8)
    high = (digits & 0x000000FF000000FF) * 0x000F424000000064
    low = (digits >> 16 & 0x000000FF000000FF) * 0x0000271000000001
    return ((high + low) >> 32).view(np.int64), wrong == 0
