"""Columns of the PUBLISH and acknowledgement packets read in one turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.connection import Connection
    from actors.routing import Route
    from actors.session import Session
    from eventstore.format import Position

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

    def add(
        self,
        publisher: Connection,
        session: Session,
        topic: bytes,
        payload: bytes,
        route: Route,
        pid: int,
        block: bytes,
    ) -> None:
        """Add a message."""
        self.publishers.append(publisher)
        self.sessions.append(session)
        self.topics.append(topic)
        self.payloads.append(payload)
        self.blocks.append(block)
        self.routes.append(route)
        self.pids.append(pid)


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
    found = dict.fromkeys(values)
    if len(found) == len(values) or len(found) == 1:
        return list(found), []
    number = {value: at for at, value in enumerate(found)}
    return list(found), list(map(number.__getitem__, values))
