"""Slow readers: clients that do not read the data waiting for them.

They are found by checking some clients at a time, without a timer for each: a client is suspected
when data waits for it, and disconnected when it has read nothing for the configured time. If too
much data waits in total, the clients with the most are disconnected.
"""

from collections.abc import Collection, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

_MIN = 500
"""Minimum number of clients checked at a time."""
_PARTS = 10
"""Maximum number of steps of a check of all clients."""
_KEPT = 7 / 8
"""Fraction of the limit on bytes to which they are reduced once it is reached."""


class Reader(Hashable, Protocol):
    """The part of a client's connection used here."""

    @property
    def bytes_out(self) -> int:
        """Bytes written to its transport so far."""

    @property
    def unread(self) -> int:
        """Bytes that its transport still holds."""

    @property
    def ended(self) -> bool:
        """True once it is closed or being closed."""


ReaderT = TypeVar("ReaderT", bound=Reader)


class SlowReader(NamedTuple, Generic[ReaderT]):
    """A client that must be closed."""

    reader: ReaderT
    reason: str
    """"slow_reader": it read nothing for too long; "unread_bytes": too much waits for all
    clients."""
    unread: int
    """Bytes that it did not read."""


class SlowReaders(Generic[ReaderT]):
    """Finds clients that read nothing for ``max_wait`` seconds.

    ``max_unread`` limits the bytes waiting for all suspects. 0 disables either.
    """

    def __init__(self, max_wait: float, max_unread: int) -> None:
        self.max_wait = max_wait
        self.max_unread = max_unread
        self._round: list[ReaderT] = []
        """Clients still to be checked in this round."""
        self._suspects: dict[ReaderT, _Suspect] = {}
        self.unread = 0
        """Bytes waiting for all suspected clients, when last checked."""

    def __len__(self) -> int:
        """Return the number of suspected clients."""
        return len(self._suspects)

    def sweep(self, readers: Collection[ReaderT], now: float) -> list[SlowReader[ReaderT]]:
        """Check the suspects and some other clients; return those to close.

        To be called once a second. Those returned are no longer suspects.
        """
        slow_readers = [
            SlowReader(reader, "slow_reader", suspect.unread)
            for reader, suspect in list(self._suspects.items())
            if self._look(reader, now) and self.max_wait and now - suspect.since >= self.max_wait
        ]
        if not self._round:
            self._round = list(readers)
        for _ in range(min(len(self._round), max(_MIN, len(readers) // _PARTS))):
            reader = self._round.pop()
            if reader not in self._suspects and reader.unread and not reader.ended:
                self._suspects[reader] = _Suspect(reader.bytes_out - reader.unread, now)
                self._look(reader, now)
        for slow in slow_readers:
            self.forget(slow.reader)
        return slow_readers + self._largest()

    def forget(self, reader: ReaderT) -> None:
        """Remove a client that has left from the suspects, if it is one."""
        suspect = self._suspects.pop(reader, None)
        if suspect is not None:
            self.unread -= suspect.unread

    def _look(self, reader: ReaderT, now: float) -> bool:
        """Update a suspect; return whether it still is one."""
        suspect = self._suspects[reader]
        unread = reader.unread
        if not unread or reader.ended:
            self.forget(reader)
            return False
        bytes_read = reader.bytes_out - unread
        if bytes_read > suspect.taken:
            suspect.since = now
        # The figure decreases when nothing is read and TLS adds to the written bytes.
        suspect.taken = bytes_read
        self.unread += unread - suspect.unread
        suspect.unread = unread
        return True

    def _largest(self) -> list[SlowReader[ReaderT]]:
        if not self.max_unread or self.unread <= self.max_unread:
            return []
        slow_readers = []
        for reader, suspect in sorted(
            self._suspects.items(), key=lambda item: item[1].unread, reverse=True
        ):
            if self.unread <= self.max_unread * _KEPT:
                break
            slow_readers.append(SlowReader(reader, "unread_bytes", suspect.unread))
            self.forget(reader)
        return slow_readers


class _Suspect:
    """The progress of a client with waiting data."""

    __slots__ = ("since", "taken", "unread")

    def __init__(self, bytes_read: int, now: float) -> None:
        self.taken = bytes_read
        """Bytes that it has read so far."""
        self.since = now
        """When that number last increased, or was first checked."""
        self.unread = 0
