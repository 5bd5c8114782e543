"""Clients that do not take what waits for them.

That is found by looking at them, some at a time, and not by a timer for each: a client is
suspected when something waits for it, and is closed when it took nothing of it for so long. When
much waits for all such clients together, those go for whom most waits.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

_LEAST = 500
"""Clients looked at in one go, at least."""
_PARTS = 10
"""Into how many goes a look at all of them is divided, at most."""
_KEPT = 7 / 8
"""Part of the bound on bytes that is left when it was reached."""


class Reader(Hashable, Protocol):
    """A client's connection, as far as it matters here."""

    @property
    def bytes_out(self) -> int:
        """Bytes written to its transport, ever."""

    @property
    def unread(self) -> int:
        """Bytes that its transport still holds."""

    @property
    def ended(self) -> bool:
        """True once it is closed or being closed."""


ReaderT = TypeVar("ReaderT", bound=Reader)


class SlowReader(NamedTuple, Generic[ReaderT]):
    """A client that is to be closed."""

    reader: ReaderT
    reason: str
    """"slow_reader": it took nothing for too long; "unread_bytes": too much waits for all."""
    unread: int
    """Bytes that it did not take."""


class SlowReaders(Generic[ReaderT]):
    """Finds clients that take nothing for ``patience`` seconds.

    ``max_unread`` bounds the bytes that wait for all suspects. 0 is no bound for either.
    """

    __slots__ = ("_round", "_suspects", "_total", "max_unread", "patience")

    def __init__(self, patience: float, max_unread: int) -> None:
        self.patience = patience
        self.max_unread = max_unread
        self._round: list[ReaderT] = []
        """Those who are still to be looked at in this round."""
        self._suspects: dict[ReaderT, _Suspect] = {}
        self._total = 0

    def __len__(self) -> int:
        """Return for how many something waits."""
        return len(self._suspects)

    @property
    def unread(self) -> int:
        """Bytes that wait for all of them, when they were last looked at."""
        return self._total

    def sweep(self, readers: Collection[ReaderT], now: float) -> list[SlowReader[ReaderT]]:
        """Look at suspects and at some of the others; return who is to be closed.

        To be called once a second. Those returned are suspects no more.
        """
        found = [
            SlowReader(reader, "slow_reader", suspect.unread)
            for reader, suspect in list(self._suspects.items())
            if self._look(reader, now) and self.patience and now - suspect.since >= self.patience
        ]
        if not self._round:
            self._round = list(readers)
        for _ in range(min(len(self._round), max(_LEAST, len(readers) // _PARTS))):
            reader = self._round.pop()
            if reader not in self._suspects and reader.unread and not reader.ended:
                self._suspects[reader] = _Suspect(reader.bytes_out - reader.unread, now)
                self._look(reader, now)
        for slow in found:
            self.forget(slow.reader)
        return found + self._largest()

    def forget(self, reader: ReaderT) -> None:
        """Suspect a client no more: it is gone. It need not have been suspected."""
        suspect = self._suspects.pop(reader, None)
        if suspect is not None:
            self._total -= suspect.unread

    def _look(self, reader: ReaderT, now: float) -> bool:
        """Take note of what a suspect took; return whether it still is one."""
        suspect = self._suspects[reader]
        unread = reader.unread
        if not unread or reader.ended:
            self.forget(reader)
            return False
        taken = reader.bytes_out - unread
        if taken > suspect.taken:
            suspect.since = now
        # It gets smaller when nothing is taken and TLS adds to what is written.
        suspect.taken = taken
        self._total += unread - suspect.unread
        suspect.unread = unread
        return True

    def _largest(self) -> list[SlowReader[ReaderT]]:
        if not self.max_unread or self._total <= self.max_unread:
            return []
        found = []
        for reader, suspect in sorted(
            self._suspects.items(), key=lambda item: item[1].unread, reverse=True
        ):
            if self._total <= self.max_unread * _KEPT:
                break
            found.append(SlowReader(reader, "unread_bytes", suspect.unread))
            self.forget(reader)
        return found


class _Suspect:
    """What is known of a client for whom something waits."""

    __slots__ = ("since", "taken", "unread")

    def __init__(self, taken: int, now: float) -> None:
        self.taken = taken
        """Bytes that it took, ever."""
        self.since = now
        """When that was seen to grow, or first seen."""
        self.unread = 0
