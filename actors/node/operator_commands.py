"""Operator commands, from the request until the log has their event on disk."""

import asyncio
from typing import Protocol

import structlog

from actors.kernel.kernel import Kernel
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import OperatorActed
from eventstore.format.positions import Position, format_position
from eventstore.log.journal import Journal
from eventstore.log.pending_record import GatedOutput

_log = structlog.get_logger("foldmq")


class EventRecorder(Protocol):
    """Appends events to the log: ``actors.session.node_context.NodeContext``."""

    journal: Journal
    kernel: Kernel

    def emit(self, event: Event, /) -> Position:
        """Append an event and fold it; return its position."""


class OperatorCommand:
    """One operator command on a session, an actor or the retained messages.

    The executing actor calls :meth:`carry_out` in the same turn, before the consequences. The
    command is also a sink of the gate, which calls :meth:`write` when all its events are on disk.
    """

    __slots__ = (
        "action",
        "answer",
        "by",
        "gated",
        "one_of_many",
        "refusal",
        "session",
        "target",
        "waits_for",
    )

    def __init__(self, action: str, by: str, target: str, session: str | None) -> None:
        self.action = action
        self.by = by
        self.target = target
        self.session = session
        self.waits_for: GatedOutput | None = None
        self.gated = 0
        self.one_of_many = False
        """Whether it is one of many similar commands, and logged at debug level."""
        self.refusal: str | None = None
        """The reason for the refusal; None if the command was not refused."""
        self.answer: asyncio.Future[Position | None]
        """Resolved with the position of the event when that is on disk; with None if refused."""
        self.answer = asyncio.get_running_loop().create_future()

    def carry_out(self, node: EventRecorder) -> None:
        """Record the execution of the command in this turn."""
        acted = OperatorActed(self.action, self.by, self.target, self.session)
        at = self.put_on_record(node, acted)
        about = {"client": self.session} if self.session is not None else {}
        tell = _log.debug if self.one_of_many else _log.info
        tell(
            "operator acted",
            action=self.action,
            by=self.by,
            target=self.target,
            position=format_position(at),
            **about,
        )

    def put_on_record(self, node: EventRecorder, event: Event) -> Position:
        """Append the event of the command; the answer follows when this turn is on disk."""
        at = node.emit(event)
        node.journal.send_when_durable(self, at.to_bytes(8, "big"))
        node.kernel.wake()
        return at

    def refuse(self, why: str) -> None:
        """Refuse the command; nothing is executed."""
        self.refusal = why
        if not self.answer.done():
            self.answer.set_result(None)

    def write(self, data: bytes) -> None:
        """Resolve the answer: the log has the event on disk."""
        if not self.answer.done():
            self.answer.set_result(int.from_bytes(data, "big"))
