"""The steps of shared subscriptions in the log of one session, for ``shared_subscription_audit``.

A shared subscription is a session, and so is each of its members. The history of its messages is
distributed over the events of all of them: this module extracts the steps of each session.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Queued,
    Refused,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.positions import Position, from_runs
from projections.audit.expected_messages import ExpectedMessage
from projections.state.session import SHARED_HOME, SessionState
from projections.state.waiting_queue import QOS_MASK

SHARE: Final = "$share/"
"""Prefix of the identifier of a shared subscription, and of the filter of its members."""

BEGUN, ENDED, ASSIGNED, REQUEUED = "begun", "ended", "assigned", "requeued"
"""Steps of the shared subscription itself. REQUEUED: returned messages were queued again; if
``number`` is 1, another log may have returned them."""
JOINED, LEFT, CONNECTED, DISCONNECTED = "joined", "left", "connected", "disconnected"
"""Steps of its members. ``number`` of JOINED is the granted QoS."""
SENT, HELD, KEPT, FINISHED, RETURNED, GONE = (
    "sent", "held", "kept", "finished", "returned", "gone",
)  # fmt: skip
"""Steps of messages that a member has. SENT: with a packet identifier, at the QoS ``number``.
HELD: a checkpoint found them with the member. KEPT: they wait for it. FINISHED: the client
accepted or refused them. GONE: the session of the member ended."""


class SharedStep(NamedTuple):
    """One step in the history of a shared subscription, its members or its messages."""

    group: str
    """Identifier of the shared subscription."""
    at: Position
    turn: Position
    """Position at which its turn begins; 0: found in a state at the beginning of the log."""
    what: str
    member: str = ""
    refs: Sequence[Position] = ()
    number: int = 0
    levels: Sequence[int] = ()
    """For ASSIGNED: the QoS of each message, 0 where it is not known."""
    streams: Sequence[tuple[str, Hashable, Position]] = ()
    """For ASSIGNED by topic: topic and publisher of each message, and the position at which it
    took effect; messages that were returned before are left out."""


class SharedSteps:
    """Extracts the steps of one session."""

    def __init__(self, session: str, tell: Callable[[SharedStep], object], *, begun: bool) -> None:
        self.begun = begun
        """False: the state of the session at the beginning of the log is not known yet."""
        self._session = session
        self._report = tell
        self._connected = False
        self._clean = False
        self._home = False
        """Whether this is a shared subscription to which other logs return messages."""
        self._groups: set[str] = set()
        """Shared subscriptions that the session is a member of."""
        self._sent: dict[int, tuple[str, Position]] = {}
        """Packet identifier -> delivery to the session as a member that is not finished."""

    def begin(self, state: SessionState | None, at: Position) -> None:
        """Begin with a state that was found in the log, or without a session."""
        self.begun = True
        if state is None:
            return
        if self._session.startswith(SHARE):
            self._home = any(held.options & SHARED_HOME for held in state.active())
            self._report(SharedStep(self._session, at, 0, BEGUN))
            return
        self._connected, self._clean = state.connected, state.clean
        for held in state.active():
            if held.filter.startswith(SHARE):
                self._groups.add(held.filter)
                self._step(held.filter, at, 0, JOINED, number=held.qos)
                if state.connected:
                    self._step(held.filter, at, 0, CONNECTED)
        for pid, sent in (*state.inflight.items(), *state.releasing.items()):
            group = sent.subscription.filter
            if group.startswith(SHARE):
                self._sent[pid] = group, sent.ref
                self._step(group, at, 0, HELD, [sent.ref], number=sent.flags & QOS_MASK)

    def take(self, event: Event, at: Position, turn: Position) -> None:
        """Process the session's next event."""
        taker = _HANDLERS.get(type(event))
        if taker is not None:
            taker(self, event, at, turn)

    def assigned(
        self,
        event: Assigned,
        messages: Sequence[ExpectedMessage | None],
        at: Position,
        turn: Position,
    ) -> None:
        """Process messages that this shared subscription assigned to a member.

        None in ``messages``: a member had returned it, or it was published before the log begins.
        """
        levels = [0 if message is None else message.qos for message in messages]
        streams = [
            (message.topic, message.stream[-1], message.at)
            for message in messages
            if message is not None and event.by_topic
        ]
        refs = from_runs(event.refs)
        self._report(
            SharedStep(event.session, at, turn, ASSIGNED, event.member, refs, 0, levels, streams)
        )

    def _step(
        self,
        group: str,
        at: Position,
        turn: Position,
        what: str,
        refs: Sequence[Position] = (),
        number: int = 0,
    ) -> None:
        self._report(SharedStep(group, at, turn, what, self._session, refs, number))

    # Sessions.

    def _opened(self, event: SessionOpened, at: Position, turn: Position) -> None:
        if self._session.startswith(SHARE):
            self._report(SharedStep(self._session, at, turn, BEGUN))
            return
        if not event.resumed:
            self._end(at, turn)
        self._connected, self._clean = True, event.clean
        for group in sorted(self._groups):
            self._step(group, at, turn, CONNECTED)

    def _closed(self, event: SessionClosed, at: Position, turn: Position) -> None:
        if self._session.startswith(SHARE):
            return
        self._connected = False
        for group in sorted(self._groups | {group for group, _ in self._sent.values()}):
            self._step(group, at, turn, DISCONNECTED)
        if self._clean if event.expiry is None else not event.expiry:
            self._end(at, turn)

    def _expired(self, _event: SessionExpired, at: Position, turn: Position) -> None:
        if self._session.startswith(SHARE):
            self._report(SharedStep(self._session, at, turn, ENDED))
        else:
            self._end(at, turn)

    def _end(self, at: Position, turn: Position) -> None:
        self._finish([*self._sent], GONE, at, turn)
        for group in sorted(self._groups):
            self._step(group, at, turn, LEFT)
        self._groups.clear()

    def _subscribed(self, event: Subscribed, at: Position, turn: Position) -> None:
        if self._session.startswith(SHARE):
            self._home = self._home or any(options & SHARED_HOME for options in event.options)
            return
        filters: Sequence[Any] = event.filters  # readers of columns have lists in place of tuples
        for topic_filter, qos in filters:
            if topic_filter.startswith(SHARE):
                self._groups.add(topic_filter)
                self._step(topic_filter, at, turn, JOINED, number=qos)
                if self._connected:
                    self._step(topic_filter, at, turn, CONNECTED)

    def _unsubscribed(self, event: Unsubscribed, at: Position, turn: Position) -> None:
        for topic_filter in event.filters:
            if topic_filter in self._groups:
                self._groups.discard(topic_filter)
                self._step(topic_filter, at, turn, LEFT)

    # Messages.

    def _delivered(self, event: Delivered, at: Position, turn: Position) -> None:
        group = event.filter
        if group.startswith(SHARE):
            refs = from_runs(event.refs)
            self._sent.update(
                zip(from_runs(event.pids), ((group, ref) for ref in refs), strict=False)
            )
            self._step(group, at, turn, SENT, refs, number=event.qos)

    def _queued(self, event: Queued, at: Position, turn: Position) -> None:
        if event.filter.startswith(SHARE):
            self._step(event.filter, at, turn, KEPT, from_runs(event.refs))
        elif event.behind >= 0:
            refs = from_runs(event.refs)
            number = int(self._home)
            self._report(SharedStep(event.session, at, turn, REQUEUED, "", refs, number))

    def _finished(self, event: Acked | Refused | Completed, at: Position, turn: Position) -> None:
        if self._sent:
            self._finish(from_runs(event.pids), FINISHED, at, turn)

    def _finish(self, pids: Iterable[int], what: str, at: Position, turn: Position) -> None:
        by_group: dict[str, list[Position]] = defaultdict(list)
        for pid in pids:
            sent = self._sent.pop(pid, None)
            if sent is not None:
                by_group[sent[0]].append(sent[1])
        for group, refs in by_group.items():
            self._step(group, at, turn, what, refs)

    def _returned(self, event: Returned, at: Position, turn: Position) -> None:
        for pid in from_runs(event.pids):
            self._sent.pop(pid, None)
        self._step(event.filter, at, turn, RETURNED, from_runs(event.refs))


_HANDLERS: Final[dict[type, Callable[[SharedSteps, Any, Position, Position], None]]] = {
    SessionOpened: SharedSteps._opened,
    SessionClosed: SharedSteps._closed,
    SessionExpired: SharedSteps._expired,
    Subscribed: SharedSteps._subscribed,
    Unsubscribed: SharedSteps._unsubscribed,
    Delivered: SharedSteps._delivered,
    Queued: SharedSteps._queued,
    Acked: SharedSteps._finished,
    Refused: SharedSteps._finished,
    Completed: SharedSteps._finished,
    Returned: SharedSteps._returned,
}
