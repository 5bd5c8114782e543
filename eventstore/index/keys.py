"""The keys of an index, and the form of their values.

A key is a letter for its kind and a name. Values are JSON:

==================  ==========================================================================
key                 value
==================  ==========================================================================
``S`` session       records with an event of the session
``L`` session       those of them in which it begins, ends or is repeated, or packets are sent
                    again
``T`` topic         records that name the topic of a message
``E`` topic         those of them in which the retained message on it expires
``R`` group         pairs: a record of the group, a later one that refers to a message in it
``K`` type          records with an event of a rare type
``C`` group         the first record of a row of neighbours, and the checks of all of them
``N`` session       states: position before which all is included, parts, denied filters, in how
                    many records the session occurs since the state before, bytes
==================  ==========================================================================

Records are stream sequences: the first one, then differences. A group is 64 neighbours. All parts
of a turn that was too large for one record are listed where one of them is.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SESSION: Final = "S"
LIFECYCLE: Final = "L"
TOPIC: Final = "T"
RETAINED_EXPIRED: Final = "E"
REFERRED: Final = "R"
RARE: Final = "K"
CHECKS: Final = "C"
STATES: Final = "N"

GROUP_BITS: Final = 6
CHECK_LENGTH: Final = 8
"""Hexadecimal digits of a record's link that are kept."""
_RECORDS_BETWEEN: Final = 256
"""Records with a session between two of its states that are kept when segments are merged."""
_BYTES_A_RECORD: Final = 1024
"""Bytes of a state for which the next one is kept one record later."""
ALWAYS: Final = 1 << 40
"""Number of records that keeps a state from being left out."""


def group_key(kind: str, sequence: int) -> str:
    """Return the key of the group in which a record is."""
    return f"{kind}{sequence >> GROUP_BITS:012x}"


def pack_sequences(sequences: Sequence[int]) -> list[int]:
    """Return ascending sequences as the first one and differences."""
    return [sequences[0], *(after - before for before, after in pairwise(sequences))]


def unpack_sequences(packed: Sequence[int]) -> list[int]:
    """Return the sequences that :func:`pack_sequences` was given."""
    return list(accumulate(packed))


def merge_values(key: str, values: Sequence[Any]) -> Any:
    """Return one value for those that successive segments have for a key."""
    if len(values) == 1 and key[0] != STATES:
        return values[0]
    if key[0] == STATES:
        return _thinned([one for value in values for one in value])
    if key[0] in (REFERRED, CHECKS):
        return [one for value in values for one in value]
    return pack_sequences([one for value in values for one in unpack_sequences(value)])


def states_due(size: int) -> int:
    """Return after how many records with a session its next state is kept, one of ``size``."""
    return max(_RECORDS_BETWEEN, size // _BYTES_A_RECORD)


def _thinned(states: list[list[Any]]) -> list[list[Any]]:
    """Return the last state, and of those before it as many as are of use."""
    kept: list[list[Any]] = []
    since = 0
    for bound, parts, denied, records, size in states[:-1]:
        since += records
        if since >= states_due(size):
            kept.append([bound, parts, denied, since, size])
            since = 0
    bound, parts, denied, records, size = states[-1]
    return [*kept, [bound, parts, denied, since + records, size]]
