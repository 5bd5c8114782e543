"""A queue of waiting messages whose memory depends on the number of runs, not of messages.

Messages that are published together have adjacent positions, so the queue of a session mostly
consists of a few arithmetic progressions, however many messages it has.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from eventstore.format.positions import Position, Run, from_runs

QOS_MASK = 0b011
RETAIN_FLAG = 0b100
RAP_FLAG = 0b1000
"""Flag of a delivery, never of a waiting message: sent with RETAIN because of Retain As Published
(MQTT 5)."""
FLAG_BITS = 3
_FLAGS = (1 << FLAG_BITS) - 1

Waiting: TypeAlias = int
"""A queued message, packed: ``position << 3 | retain << 2 | qos``."""


def waiting(ref: Position, qos: int, *, retain: bool) -> Waiting:
    """Pack a queued message."""
    return ref << FLAG_BITS | retain << 2 | qos


class WaitingQueue:
    """Packed messages, first in, first out, and their expiries."""

    __slots__ = ("_length", "_runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        """Begin with the runs that :meth:`runs` returned."""
        self._runs: deque[list[int]] = deque()
        """First value, count, step and expiry of each run."""
        self._length = 0
        for run in runs:
            first, count, step, expires = _parts(run)
            self._runs.append([first, count, step, expires])
            self._length += count

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._length

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    def __iter__(self) -> Iterator[Waiting]:
        """Yield the messages, oldest first."""
        for first, count, step, _ in self._runs:
            if count == 1:
                yield first
            else:
                yield from range(first, first + count * step, step)

    def extend(self, refs: Iterable[Run], flags: int, expires: list[Run] | int = 0) -> int:
        """Append messages with the same QoS and RETAIN flag; return their number.

        ``expires`` is the Unix time in seconds at which each expires, 0 for never, or one value for
        all.
        """
        runs = self._runs
        before = self._length
        if not isinstance(expires, int):
            return self._extend_each(refs, flags, expires)
        for run in refs:
            first, count, step = (run, 1, 0) if isinstance(run, int) else run
            first = first << FLAG_BITS | flags
            step <<= FLAG_BITS
            self._length += count
            if runs and _continued(runs[-1], first, count, step, expires):
                continue
            runs.append([first, count, step, expires])
        return self._length - before

    def _extend_each(self, refs: Iterable[Run], flags: int, expires: list[Run]) -> int:
        """Append messages with individual expiries."""
        before = self._length
        for ref, end in zip(from_runs(refs), from_runs(expires), strict=True):
            self.extend((ref,), flags, end)
        return self._length - before

    def insert(
        self, behind: int, refs: Iterable[Run], flags: int, expires: list[Run] | int = 0
    ) -> int:
        """Insert messages behind the first ``behind`` ones; return their number."""
        tail = self.cut(behind)
        count = self.extend(refs, flags, expires)
        self.append(tail)
        return count

    def cut(self, count: int) -> WaitingQueue:
        """Keep the first ``count`` messages; return a queue of the others."""
        tail = WaitingQueue()
        while self._length > count:
            run = self._runs[-1]
            over = self._length - count
            if run[1] > over:
                run[1] -= over
                moved = [run[0] + run[1] * run[2], over, run[2], run[3]]
            else:
                moved = self._runs.pop()
            tail._runs.appendleft(moved)
            tail._length += moved[1]
            self._length -= moved[1]
        return tail

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

    def remove(self, refs: Iterable[Position], *, expiring: bool = True) -> int:
        """Remove messages, wherever they are; return how many were found.

        ``expiring``: only those that have an expiry.

        A message that is in the queue twice is removed as often as it is in ``refs``, its first
        copy first.
        """
        counts = Counter(refs)
        before, runs = self._length, self._runs
        kept: list[list[int]] = []
        while counts and runs:
            run = runs.popleft()
            numbers = _found(run, counts) if run[3] or not expiring else []
            if numbers:
                self._length -= len(numbers)
                kept += _without(run, numbers)
            else:
                kept.append(run)
        runs.extendleft(reversed(kept))
        return before - self._length

    def expired(
        self, now: int, most: int | None = None, within: int | None = None
    ) -> list[Position]:
        """Return the messages that have expired at a Unix time in seconds, oldest first.

        If given, ``most`` limits their number, and ``within`` the number of runs that are searched.
        """
        positions = (
            (first + number * step) >> FLAG_BITS
            for first, count, step, expires in islice(self._runs, within)
            if 0 < expires <= now
            for number in range(count)
        )
        return list(islice(positions, most))

    def expiry(self) -> int:
        """Return the time of the first expiry, Unix time in seconds; 0: no message expires."""
        return min((run[3] for run in self._runs if run[3]), default=0)

    def expiries(self, count: int) -> list[int]:
        """Return the expiry of each of the first ``count`` messages; empty when none ever does."""
        expiries: list[int] = []
        for run in self._runs:
            expiries += [run[3]] * min(run[1], count - len(expiries))
            if len(expiries) >= count:
                break
        return expiries if any(expiries) else []

    def runs(self) -> list[Run]:
        """Return the messages as runs of packed values; an expiry is the run's last element."""
        return [
            [first, count, step, expires]
            if expires
            else (first if count == 1 else [first, count, step])
            for first, count, step, expires in self._runs
        ]

    def ref_runs(self) -> Iterator[Run]:
        """Yield the positions of the messages as runs, oldest first."""
        for first, count, step, _ in self._runs:
            ref = first >> FLAG_BITS
            yield ref if count == 1 else [ref, count, step >> FLAG_BITS]

    def refs(self) -> Iterator[Position]:
        """Yield the positions of the messages, oldest first."""
        return (packed >> FLAG_BITS for packed in self)

    def ends(self) -> tuple[Waiting, Waiting] | None:
        """Return the first and the last message, None when there is none."""
        if not self._runs:
            return None
        first, count, step, _ = self._runs[-1]
        return self._runs[0][0], first + (count - 1) * step

    def oldest(self) -> Position | None:
        """Return the lowest position in the queue, None when it is empty."""
        ends = (min(first, first + (count - 1) * step) for first, count, step, _ in self._runs)
        lowest = min(ends, default=None)
        return None if lowest is None else lowest >> FLAG_BITS


def _parts(run: Run) -> tuple[int, int, int, int]:
    """Return first value, count, step and expiry of a run."""
    if isinstance(run, int):
        return run, 1, 0, 0
    if len(run) == 3:
        return run[0], run[1], run[2], 0
    first, count, step, expires = run
    return first, count, step, expires


def _found(run: list[int], counts: Counter[Position]) -> list[int]:
    """Return the numbers of the wanted messages of a run, and remove them from ``counts``."""
    first, count, step, _ = run
    values = range(first, first + count * step, step) if count > 1 else (first,)
    if len(counts) < count:
        flags = first & _FLAGS
        numbers = sorted(
            values.index(packed) for ref in counts if (packed := ref << FLAG_BITS | flags) in values
        )
    else:
        numbers = [at for at, packed in enumerate(values) if packed >> FLAG_BITS in counts]
    for number in numbers:
        ref = values[number] >> FLAG_BITS
        counts[ref] -= 1
        if not counts[ref]:
            del counts[ref]
    return numbers


def _without(run: list[int], removed: list[int]) -> Iterator[list[int]]:
    """Yield the rest of a run without the messages with these ascending numbers."""
    first, count, step, expires = run
    start = 0
    for stop in (*removed, count):
        if stop > start:
            count_left = stop - start
            yield [first + start * step, count_left, step if count_left > 1 else 0, expires]
        start = stop + 1


def _continued(run: list[int], first: int, count: int, step: int, expires: int) -> bool:
    """Extend the last run by these values, if they continue it."""
    if run[3] != expires:
        return False
    if run[1] == 1:
        between = first - run[0]
        if (count > 1 and step != between) or not between or between & _FLAGS:
            return False
        run[1], run[2] = 1 + count, between
        return True
    if first != run[0] + run[1] * run[2] or (count > 1 and step != run[2]):
        return False
    run[1] += count
    return True
