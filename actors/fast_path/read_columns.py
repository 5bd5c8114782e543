"""Columns of the packets read in one turn, and the messages in them as observers get them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from actors.routing.routes import Route
from actors.session.session_messages import Batch, Publication
from eventstore.format.positions import Position
from eventstore.log.message_store import StoredMessages
from protocol.mqtt.packets import Publishes

if TYPE_CHECKING:
    from actors.connection.connection import Connection
    from actors.session.node_context import NodeContext
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


def notify_observers(
    node: NodeContext,
    messages: MessageColumns,
    qos: int,
    took_effect: Position,
    *,
    retain: bool = False,
) -> None:
    """Notify the observers of messages of QoS 1 or 2.

    ``took_effect`` is the position of the entry with which the first message takes effect; those of
    the others follow it. ``retain``: they have RETAIN 1.
    """
    has_blocks = any(messages.blocks)
    for begin, end in _runs(messages.publishers):
        topics, payloads = messages.topics[begin:end], messages.payloads[begin:end]
        refs = messages.refs[begin:end]
        blocks = messages.blocks[begin:end] if has_blocks else []
        expires = messages.expires[begin:end] if messages.expires else ()
        size = sum(map(len, payloads))
        batch = Batch(
            qos,
            topics,
            payloads,
            refs,
            size=size,
            publisher=messages.publishers[begin],
            blocks=blocks,
            published_retain=retain,
            expires=expires,
        )
        content = StoredMessages(refs[0], topics, payloads, size, blocks, expires, retain)
        positions = took_effect + begin, took_effect + end - 1
        name = messages.sessions[begin].name
        node.notify_observers(Publication(name, batch, content, positions))


def notify_observers_qos0(node: NodeContext, messages: MessageColumns) -> None:
    """Notify the observers of messages of QoS 0."""
    for begin, end in _runs(messages.publishers):
        publisher = messages.publishers[begin]
        content = Publishes(0)
        content.topics += messages.topics[begin:end]
        content.packets += messages.payloads[begin:end]
        if publisher.properties is not None:
            content.blocks = messages.blocks[begin:end]
        batch = Batch(
            0,
            content.topics,
            (),
            (),
            packets=content.packets,
            publisher=publisher,
            blocks=content.blocks,
        )
        node.notify_observers(Publication(messages.sessions[begin].name, batch, content))


def _runs(publishers: Sequence[Connection]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the consecutive messages of each connection."""
    begin = 0
    for _, run in groupby(publishers, id):
        end = begin + len([*run])
        yield begin, end
        begin = end
