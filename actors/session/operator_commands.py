"""What operators want done, from the request to the moment at which the log has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from eventstore.format import OperatorActed, Position, format_position

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from eventstore.format import Event
    from eventstore.log import GatedOutput

_log = structlog.get_logger("foldmq")


class OperatorCommand:
    """One thing that is to be done to a session, an actor or the retained messages.

    The actor that executes it calls :meth:`carry_out` in the same turn, before what it leads
    to; it is also an effect for the gate, which tells that the log has all of it.
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
        """Its line in the broker's messages would be one of many alike."""
        self.refusal: str | None = None
        """Why it is not done; None while it may be."""
        self.answer: asyncio.Future[Position | None]
        """Resolved with the position of its event when that is on disk, with None if refused."""
        self.answer = asyncio.get_running_loop().create_future()

    def carry_out(self, node: NodeContext) -> None:
        """Put on record that it is done in this turn."""
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

    def put_on_record(self, node: NodeContext, event: Event) -> Position:
        """Append the event that says it, and be told when all of this turn is on disk."""
        at = node.emit(event)
        node.journal.send_when_durable(self, at.to_bytes(8, "big"))
        node.kernel.wake()
        return at

    def refuse(self, why: str) -> None:
        """Leave it undone."""
        self.refusal = why
        if not self.answer.done():
            self.answer.set_result(None)

    def write(self, data: bytes) -> None:
        """Record that the log has it."""
        if not self.answer.done():
            self.answer.set_result(int.from_bytes(data, "big"))
