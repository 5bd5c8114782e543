"""Properties of messages in the log: blocks of bytes that are never parsed here.

A block is the part of an MQTT 5 PUBLISH packet between its Property Length and its payload, checked
on arrival and without the properties of the connection; ``b""`` means none. A message expiry, if
there is one, is its first property. A record contains each distinct block of an event once,
directly before the event's payloads.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from eventstore.format.events import MessagePublished, Queued, WillArmed
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import Run, from_runs, to_runs
from eventstore.format.turn_events import TurnPublished

WithBlocks: TypeAlias = (
    MessagePublished | MessagesCarried | RetainedSnapshot | TurnPublished | WillArmed
)
"""An event whose messages may have properties."""

T = TypeVar("T")

_EXPIRY_MARK: Final = b"\x02"
_HALF_SECOND_MS: Final = 500


class BlockColumns(NamedTuple):
    """The blocks of messages in the form of an event and its record."""

    distinct: Sequence[bytes]
    """The distinct blocks, which precede the payloads."""
    sizes: Sequence[int]
    """Size in bytes of each: the event's ``blocks``."""
    block_of: Sequence[int]
    """The event's ``block_of``."""


NO_BLOCKS: Final = BlockColumns((), (), ())


def block_columns(blocks: Sequence[bytes]) -> BlockColumns:
    """Return the columns for the blocks of messages, one for each or none at all."""
    number: dict[bytes, int] = dict.fromkeys(blocks, 0)
    if len(number) == 1 and b"" not in number:
        distinct = [*number]
        return BlockColumns(distinct, [len(distinct[0])], ())
    number.pop(b"", None)
    if not number:
        return NO_BLOCKS
    distinct = [*number]
    number = {block: at for at, block in enumerate(distinct, 1)}
    number[b""] = 0
    return BlockColumns(distinct, list(map(len, distinct)), list(map(number.__getitem__, blocks)))


def block_bounds(event: WithBlocks) -> list[tuple[int, int]]:
    """Return the bounds in the payload area of each distinct block of an event."""
    sizes = event.blocks
    if not sizes:
        return []
    begins: Sequence[int] = getattr(event, "blocks_at", ())
    if begins:
        return [(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
    return list(pairwise(accumulate(sizes, initial=event.at - sum(sizes))))


def spread_blocks(event: Any, distinct: Sequence[bytes]) -> list[bytes]:
    """Return the block of each message of an event; empty when none has any.

    ``distinct`` are the event's blocks. Raises IndexError when one is missing.
    """
    if not distinct:
        return []
    if event.block_of:
        numbered = [b"", *distinct]
        return [numbered[number] for number in event.block_of]
    return [distinct[0]] * event.count


def split_pieces(event: WithBlocks, pieces: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split an event's parts of the payload area into the distinct blocks and the payloads."""
    count = len(event.blocks)
    return (pieces[:count], pieces[count:]) if count else ((), pieces)


def expires_at(block: bytes, time_ms: int) -> int:
    """Return the Unix time in seconds at which a message expires; 0: never.

    ``time_ms`` is the time of the record of its publication.
    """
    if block[:1] != _EXPIRY_MARK:
        return 0
    return time_ms // 1000 + int.from_bytes(block[1:5], "big")


def expired_until(time_ms: int) -> int:
    """Return the last expiry, in Unix seconds, that has passed at a time.

    Expiries are rounded down to a second, so messages would expire up to a second early. Half a
    second is added: they expire at most half a second early or late.
    """
    return (time_ms - _HALF_SECOND_MS) // 1000


def expiry_ms(expires: int) -> int:
    """Return when a message with this expiry, in Unix seconds, expires: Unix milliseconds.

    It is the first moment at which :func:`expired_until` returns the expiry.
    """
    return 1000 * expires + _HALF_SECOND_MS


def seconds_left(interval: int | None, expires: int, time_ms: int) -> int:
    """Return the expiry interval with which a message is sent at a time [MQTT-3.3.2-6].

    It is at least 1, since the message is sent before it expires, and receivers may interpret 0 as
    none; and at most ``interval``, the interval with which the message was received (None: not
    known).
    """
    remaining_s = max(1, expires - time_ms // 1000)
    return remaining_s if interval is None else min(interval, remaining_s)


def expiry_runs(expires: Sequence[int]) -> list[Run] | int:
    """Return the column ``expires`` of an event for a result of :func:`expiries`."""
    if not expires:
        return 0
    first = expires[0]
    return first if expires.count(first) == len(expires) else to_runs(expires)


def expiries_of(expires: list[Run] | int, count: int) -> list[int]:
    """Return the expiries of ``count`` messages that were passed to :func:`expiry_runs`."""
    if isinstance(expires, int):
        return [expires] * count if expires else []
    return from_runs(expires)


def on_clock(event: T, jumped_ms: int) -> T:
    """Return an event with its expiries as times of the clock instead of steady times.

    ``jumped_ms`` is the sum of the jumps of the clock up to the event.
    """
    if not jumped_ms or not isinstance(event, (MessagesCarried, Queued, RetainedSnapshot)):
        return event
    expires, jumped_s = event.expires, jumped_ms // 1000
    if isinstance(expires, int):
        return replace(event, expires=expires and expires + jumped_s)
    ends = [end and end + jumped_s for end in from_runs(expires)]
    return replace(event, expires=to_runs(ends))


def expiries(blocks: Sequence[bytes], time_ms: int) -> list[int]:
    """Return the expiry of each message, see :func:`expires_at`; empty: none expires."""
    ends = {block: expires_at(block, time_ms) for block in set(blocks)}
    return list(map(ends.__getitem__, blocks)) if any(ends.values()) else []
