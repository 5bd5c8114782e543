"""The keys of an index, and the form of their values.

A key is a letter for its kind and a name. Values are JSON:

==================  ==========================================================================
key                 value
==================  ==========================================================================
``S`` session       records with an event of the session
``L`` session       those of them in which it begins, ends or is repeated, or packets are sent
                    again
``T`` topic         records that name the topic of a message
``E`` topic         those of them in which its retained message expires
``D`` topic         records that name the topic of dropped messages that never had a position
``P`` topic         records in which messages at QoS 2 on the topic are released; without a topic:
                    those of which the topic was not known
``R`` group         triples: a record of the group, a later one that refers to messages in it, and
                    the indexes of these messages in the former, as runs
``K`` type          records with an event of a rare type
``C`` group         the first record of a run of consecutive ones, and the checks of all of them
``N`` session       states: position up to which events are included, parts, denied filters,
                    number of records with the session since the previous state, bytes
==================  ==========================================================================

Records are stream sequences: the first one, then differences. A group is 64 consecutive records. If
one part of a turn that is split over several records is listed, all parts are.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

SESSION: Final = "S"
LIFECYCLE: Final = "L"
TOPIC: Final = "T"
EFFECT: Final = "P"
RETAINED_EXPIRED: Final = "E"
DROPPED: Final = "D"
REFERRED: Final = "R"
RARE: Final = "K"
CHECKS: Final = "C"
STATES: Final = "N"

GROUP_BITS: Final = 6
CHECK_LENGTH: Final = 8
"""Number of hexadecimal digits of a record's link that are kept."""
_RECORDS_BETWEEN: Final = 256
"""Number of records with a session between two states that are kept when segments are merged."""
_BYTES_A_RECORD: Final = 1024
"""For each of this many bytes of a state, the next state is kept one record later."""
ALWAYS: Final = 1 << 40
"""A number of records so large that the state is always kept."""


def group_key(kind: str, sequence: int) -> str:
    """Return the key of the group that contains a record."""
    return f"{kind}{sequence >> GROUP_BITS:012x}"


def pack_sequences(sequences: Sequence[int]) -> list[int]:
    """Return ascending sequences as the first one and differences."""
    return [sequences[0], *(after - before for before, after in pairwise(sequences))]


def unpack_sequences(packed: Sequence[int]) -> list[int]:
    """Return the sequences that were passed to :func:`pack_sequences`."""
    return list(accumulate(packed))


def merge_values(key: str, values: Sequence[Any]) -> Any:
    """Return the merged value of a key from its values in successive segments."""
    if len(values) == 1 and key[0] != STATES:
        return values[0]
    if key[0] == STATES:
        return _thinned([item for value in values for item in value])
    if key[0] in (REFERRED, CHECKS):
        return [item for value in values for item in value]
    return pack_sequences([item for value in values for item in unpack_sequences(value)])


def states_due(size: int) -> int:
    """Return the number of records with a session between its states, for this state size."""
    return max(_RECORDS_BETWEEN, size // _BYTES_A_RECORD)


def _thinned(states: list[list[Any]]) -> list[list[Any]]:
    """Return the last state, and those of the earlier ones that are worth keeping."""
    kept: list[list[Any]] = []
    since = 0
    for bound, parts, denied, records, size in states[:-1]:
        since += records
        if since >= states_due(size):
            kept.append([bound, parts, denied, since, size])
            since = 0
    bound, parts, denied, records, size = states[-1]
    return [*kept, [bound, parts, denied, since + records, size]]
