"""A queue of waiting messages that takes the room of its runs, not of its messages.

Messages that are published together stand at neighbouring positions, so that what one session
waits for is mostly a few arithmetic progressions, however many messages they are.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from eventstore.format import Position, Run

QOS_MASK = 0b011
RETAIN_FLAG = 0b100
FLAG_BITS = 3
_FLAGS = (1 << FLAG_BITS) - 1

Waiting: TypeAlias = int
"""A queued message, packed: ``position << 3 | retain << 2 | qos``."""


def waiting(ref: Position, qos: int, *, retain: bool) -> Waiting:
    """Pack a queued message."""
    return ref << FLAG_BITS | retain << 2 | qos


class WaitingQueue:
    """Packed messages, first in, first out."""

    __slots__ = ("_length", "_runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        """Start with the runs that :meth:`runs` gave."""
        self._runs: deque[list[int]] = deque()
        """First value, count and step of each run."""
        self._length = 0
        for run in runs:
            first, count, step = (run, 1, 0) if isinstance(run, int) else run
            self._runs.append([first, count, step])
            self._length += count

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._length

    def __iter__(self) -> Iterator[Waiting]:
        """Yield the messages, oldest first."""
        for first, count, step in self._runs:
            if count == 1:
                yield first
            else:
                yield from range(first, first + count * step, step)

    def extend(self, refs: Iterable[Run], flags: int) -> int:
        """Append messages with the same QoS and RETAIN flag; return how many they are."""
        runs = self._runs
        before = self._length
        for run in refs:
            first, count, step = (run, 1, 0) if isinstance(run, int) else run
            first = first << FLAG_BITS | flags
            step <<= FLAG_BITS
            self._length += count
            if runs and _continued(runs[-1], first, count, step):
                continue
            runs.append([first, count, step])
        return self._length - before

    def append(self, other: WaitingQueue) -> None:
        """Append the messages of another queue."""
        self._runs += other._runs
        self._length += other._length

    def discard(self, count: int) -> None:
        """Remove ``count`` messages from the head, or all if there are fewer."""
        runs = self._runs
        if count >= self._length:
            runs.clear()
            self._length = 0
            return
        self._length -= count
        while count:
            head = runs[0]
            if head[1] > count:
                head[0] += count * head[2]
                head[1] -= count
                return
            count -= head[1]
            runs.popleft()

    def runs(self) -> list[Run]:
        """Return the messages as runs of packed values."""
        return [first if count == 1 else [first, count, step] for first, count, step in self._runs]

    def refs(self) -> Iterator[Position]:
        """Yield the positions of the messages, oldest first."""
        return (packed >> FLAG_BITS for packed in self)

    def ends(self) -> tuple[Waiting, Waiting] | None:
        """Return the first and the last message, None when there is none."""
        if not self._runs:
            return None
        first, count, step = self._runs[-1]
        return self._runs[0][0], first + (count - 1) * step

    def oldest(self) -> Position | None:
        """Return the lowest position that is waited for, None when nothing is."""
        ends = (min(first, first + (count - 1) * step) for first, count, step in self._runs)
        found = min(ends, default=None)
        return None if found is None else found >> FLAG_BITS


def _continued(last: list[int], first: int, count: int, step: int) -> bool:
    """Let the last run go on with these values, if they continue it."""
    if last[1] == 1:
        between = first - last[0]
        if (count > 1 and step != between) or not between or between & _FLAGS:
            return False
        last[1], last[2] = 1 + count, between
        return True
    if first != last[0] + last[1] * last[2] or (count > 1 and step != last[2]):
        return False
    last[1] += count
    return True
