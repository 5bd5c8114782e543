"""The fold of one session from its events alone, wherever the log begins.

``projections.state.node_state.NodeState`` folds the whole log of a node. This module applies its
rules to a single session: callers that sort the events of a log by session (an audit, a query) get
the same states.
"""

import itertools
from collections.abc import Sequence

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MessagePublished,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.node_events import RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import Position, from_runs
from eventstore.format.records import payload_bounds
from eventstore.format.stored_properties import block_bounds
from projections.state.retained import RetainedMessage, messages_of, repeated_messages
from projections.state.session import EVOLVE, SessionState
from projections.state.snapshot import Part, decode_session


class SessionFold:
    """The state of one session; ``state`` is None while the session does not exist.

    ``whole`` is the position of the CheckpointCompleted from which the state of a log that was cut
    is known; snapshots before it count. It is 0 for a log that begins with its first record.
    """

    __slots__ = ("_parts", "pending", "session", "state", "whole")

    def __init__(self, session: str, whole: Position = 0) -> None:
        self.session = session
        self.whole = whole
        self.state: SessionState | None = None
        self.pending: dict[Position, RetainedMessage] = {}
        """Its unreleased retained QoS 2 messages, if payloads were passed."""
        self._parts: list[Part] = []

    def take(self, event: Event, at: Position, time_ms: int, payload: bytes | None = None) -> None:
        """Fold the next event of the session.

        ``payload`` is the event's part of its record's payload area, from its first block of
        properties on, or None to ignore payloads: then ``pending`` stays empty. Raises ValueError,
        KeyError, IndexError or TypeError for inconsistent events.
        """
        kind = type(event)
        change = EVOLVE.get(kind)
        if change is None:
            self._other(event, at, payload)
            return
        state = self.state
        if state is None:
            state = SessionState(self.session)
            if kind is SessionOpened:
                self.state = state
        change(state, event, at, time_ms)
        if type(event) is SessionClosed:
            if state.clean:
                self.pending = {}
                if state.will is None:
                    self._gone()
        elif type(event) is SessionOpened:
            if not event.resumed:
                self.pending = {}
        elif payload is not None and type(event) is MessagePublished:
            if event.retain and event.qos == 2 and not event.will:
                sent = messages_of(event, at, time_ms, split_area(event, payload))
                self.pending.update((message.ref, message) for message in sent)
        elif self.pending and type(event) is Released:
            for ref in from_runs(event.refs):
                self.pending.pop(ref, None)

    def _gone(self) -> None:
        self.state = None
        self.pending = {}

    def _other(self, event: Event, at: Position, payload: bytes | None) -> None:
        """Fold an event that does not concern the session's state."""
        if type(event) is SessionExpired:
            self._gone()
        elif at >= self.whole:
            return
        elif type(event) is SessionSnapshot:
            if event.part == 0:
                self._parts = []
            self._parts.append(event.state)
            if event.last:
                parts, self._parts = self._parts, []
                self.state = decode_session(self.session, parts)
        elif type(event) is RetainedSnapshot and payload is not None:
            for message in repeated_messages(event, split_area(event, payload)):
                self.pending.setdefault(message.ref, message)


def split_area(event: MessagePublished | RetainedSnapshot, area: bytes) -> Sequence[bytes]:
    """Return the distinct blocks and the payloads in an event's part of the payload area."""
    bounds = payload_bounds(event)
    blocks = block_bounds(event)
    begin = min((start for start, _ in blocks), default=bounds[0])
    spans = [*blocks, *itertools.pairwise(bounds)]
    return [area[start - begin : stop - begin] for start, stop in spans]
