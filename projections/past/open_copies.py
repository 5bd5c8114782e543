"""The copies of followed messages that are not complete, by session and packet identifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from eventstore.format.events import Acked, Completed, Received, Redelivered, Refused, Returned
from eventstore.format.positions import Position, from_runs
from projections.past.message_story import DeliveryCopy, DeliveryOutcome, StoryStep
from protocol.mqtt.reason_codes import FAILURE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.past.message_story import MessageStory

DeliveryAnswer: TypeAlias = Redelivered | Acked | Received | Refused | Completed | Returned
_ANSWERS: Final[dict[type, tuple[str, DeliveryOutcome]]] = {
    Acked: ("acked", "acknowledged"),
    Received: ("received", "releasing"),
    Refused: ("refused", "refused"),
    Completed: ("completed", "acknowledged"),
    Returned: ("returned", "returned"),
}
"""Type of event that ends or continues a delivery -> name of its step, outcome of the copy."""


class OpenCopies:
    """Copies of messages whose histories are not complete."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[int, DeliveryCopy]] = {}
        """The copies that were sent, by session and packet identifier."""
        self._open: dict[str, set[DeliveryCopy]] = {}

    def begin(
        self, story: MessageStory, session: str, topic_filter: str, qos: int, *, retain: bool
    ) -> DeliveryCopy:
        """Add a copy to the history of a message."""
        copy = DeliveryCopy(story, session, topic_filter, qos, retain)
        story.copies.append(copy)
        self._open.setdefault(session, set()).add(copy)
        return copy

    def sent(self, copy: DeliveryCopy, pid: int) -> None:
        """Note that a copy was sent under a packet identifier."""
        copy.pid = pid
        self._sent.setdefault(copy.session, {})[pid] = copy

    def answered(self, event: DeliveryAnswer, at: Position, ms: int) -> None:
        """Add an event about sent copies to their histories."""
        sent = self._sent.get(event.session)
        if not sent:
            return
        codes = from_runs(getattr(event, "reasons", ()))
        for offset, pid in enumerate(from_runs(event.pids)):
            copy = sent.get(pid)
            if copy is None:
                continue
            code = codes[offset] if codes else 0
            detail = f"0x{code:02x}" if code else ""
            if isinstance(event, Redelivered):
                copy.steps.append(StoryStep(at + offset, ms, "redelivered", pid, event.cause))
                continue
            what, copy.outcome = _ANSWERS[type(event)]
            if code >= FAILURE:
                copy.outcome = "refused"
            copy.steps.append(StoryStep(at + offset, ms, what, pid, detail))
            if copy.outcome != "releasing":
                self.settle(copy)

    def settle(self, copy: DeliveryCopy) -> None:
        """Stop following a copy: its history is complete."""
        opened = self._open.get(copy.session)
        if opened is not None:
            opened.discard(copy)
            if not opened:
                del self._open[copy.session]
        sent = self._sent.get(copy.session)
        if sent is not None and sent.get(copy.pid) is copy:
            del sent[copy.pid]
            if not sent:
                del self._sent[copy.session]

    def end_session(self, session: str, at: Position, ms: int, reason: str) -> None:
        """Complete the copies for a session that ended."""
        for copy in sorted(self._open.get(session, ()), key=lambda one: one.story.ref):
            copy.outcome = "gone"
            copy.steps.append(StoryStep(at, ms, "session_ended", detail=reason))
            self.settle(copy)

    def awaited(self) -> Iterator[tuple[Literal["sent", "held"], str]]:
        """Yield the sessions with open copies: ``sent`` if one was sent, else ``held``."""
        for name, copies in self._open.items():
            yield "sent" if any(one.outcome != "queued" for one in copies) else "held", name
