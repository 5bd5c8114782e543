"""Columns of the PUBLISH and acknowledgement packets read in one turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from actors.routing.routes import Route
from eventstore.format.positions import Position

if TYPE_CHECKING:
    from actors.connection.connection import Connection
    from actors.session.session import Session

T = TypeVar("T")


class MessageColumns:
    """Messages of one QoS, as columns."""

    __slots__ = (
        "blocks",
        "expires",
        "payloads",
        "pids",
        "publishers",
        "refs",
        "retained",
        "routes",
        "sessions",
        "topics",
    )

    def __init__(self) -> None:
        self.publishers: list[Connection] = []
        self.sessions: list[Session] = []
        self.topics: list[bytes] = []
        self.payloads: list[bytes] = []
        """Payloads; at QoS 0 the whole packets."""
        self.blocks: list[bytes] = []
        """Properties of each message (MQTT 5)."""
        self.expires: Sequence[int] = ()
        """Expiry of each message, Unix time in seconds; empty: no message expires."""
        self.routes: list[Route] = []
        self.pids: list[int] = []
        self.refs: list[Position] = []
        self.retained: list[int] = []
        """The numbers of the messages with RETAIN 1."""

    def add(
        self,
        publisher: Connection,
        session: Session,
        topic: bytes,
        payload: bytes,
        route: Route,
        pid: int,
        block: bytes,
        *,
        retain: bool = False,
    ) -> None:
        """Add a message."""
        if retain:
            self.retained.append(len(self.pids))
        self.publishers.append(publisher)
        self.sessions.append(session)
        self.topics.append(topic)
        self.payloads.append(payload)
        self.blocks.append(block)
        self.routes.append(route)
        self.pids.append(pid)

    def parts(self) -> list[tuple[MessageColumns, bool]]:
        """Return consecutive messages that one event may record, and whether they are retained.

        Retained ones are of a single session.
        """
        parts: list[tuple[MessageColumns, bool]] = []
        retained, count, begin = set(self.retained), len(self.pids), 0
        while begin < count:
            is_retained, session, end = begin in retained, self.sessions[begin], begin + 1
            while (
                end < count
                and (end in retained) == is_retained
                and not (is_retained and self.sessions[end] is not session)
            ):
                end += 1
            parts.append((self._part(begin, end), is_retained))
            begin = end
        return parts

    def _part(self, begin: int, end: int) -> MessageColumns:
        """Return some of the messages, before they are recorded."""
        part = MessageColumns()
        part.publishers = self.publishers[begin:end]
        part.sessions = self.sessions[begin:end]
        part.topics = self.topics[begin:end]
        part.payloads = self.payloads[begin:end]
        part.blocks = self.blocks[begin:end]
        part.routes = self.routes[begin:end]
        part.pids = self.pids[begin:end]
        return part


class AckColumns:
    """Acknowledgements of one kind, as columns."""

    __slots__ = ("connections", "pids", "sessions")

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.sessions: list[Session] = []
        self.pids: list[int] = []


def distinct(values: Sequence[T]) -> tuple[list[T], list[int]]:
    """Return the distinct values, and for each value its index among them.

    The indices are empty if all values are distinct, or all are equal.
    """
    numbers = dict.fromkeys(values)
    if len(numbers) == len(values) or len(numbers) == 1:
        return list(numbers), []
    number = {value: at for at, value in enumerate(numbers)}
    return list(numbers), list(map(number.__getitem__, values))
