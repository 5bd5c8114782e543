"""Logs of given events in memory, one record each."""

from __future__ import annotations

from typing import Any

from indexedlogs import IndexedSource

from eventstore.format.events import MessagePublished
from eventstore.format.records import GENESIS, encode_record, link_of
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_source import RecordsRead


class HandMade(IndexedSource):
    """A log of given events, one record each second, that begins with some record."""

    live = True

    def __init__(
        self,
        events: list[tuple[Any, tuple[bytes, ...]]],
        first: int = 1,
        cut_at: int = 0,
        times: list[int] | None = None,
    ) -> None:
        link, self._data = GENESIS, {}
        for sequence, (event, payloads) in enumerate(events, 1):
            time_ms = times[sequence - 1] if times is not None else 1000 * sequence
            data = encode_record(
                previous=link, node="n", time_ms=time_ms, events=[event], payloads=payloads
            )
            link = link_of(data)
            if sequence >= first:
                self._data[sequence] = data
        self.first = self.begin = first
        self.last = len(events)
        self.asked = []
        self.read = 0
        self.seen = RecordsRead()
        self.cut_at = cut_at
        self.index = LogIndex((), first)

    @classmethod
    def timed(cls, steps: list[tuple[int, Any, tuple[bytes, ...]]], first: int = 1) -> HandMade:
        """Return a log of events with the times of their records."""
        events = [(event, payloads) for _, event, payloads in steps]
        return cls(events, first, times=[time_ms for time_ms, _, _ in steps])


def publish(
    payload: bytes, *, qos: int = 1, topic: str = "a", session: str = "ann"
) -> tuple[Any, tuple[bytes, ...]]:
    pids: list[Any] = [1] if qos else []
    event = MessagePublished(session, qos, False, [topic], [], pids, len(payload), 0, 1)
    return event, (payload,)
