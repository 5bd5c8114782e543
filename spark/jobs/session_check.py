"""Checks the events of a session after its broker restarted.

Whatever was acknowledged or in flight when the broker ended is in the log before its
``BrokerStarted``. The log behind it shows the memory of the new broker: it ends the open
connections, publishes their wills, resumes sessions in their former state, and sends packets in
flight again under the same packet identifiers. :class:`SessionRecovery` checks that for one
session; it is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import Position, from_runs
from projections.audit.single_event_rules import is_clean_start
from projections.state.session import SessionState, Will
from projections.state.single_session import SessionFold
from protocol.mqtt.sparkplug import is_death, with_timestamp

_AT_RESTART: Final = frozenset({"broker_restarted", "session_failed"})
"""Close reasons of connections left open by the previous broker; the second applies if an actor
failed with it."""
_WILL_DROPPED: Final = ("reserved_topic", "not_permitted", "topic_levels", "personal_keys")
"""Reasons for which a due will may not have been published."""
_WHILE_OFFLINE: Final = (
    *(Queued, MessageDropped, Expired, SessionSnapshot, RetainedSnapshot),
    Assigned,
)
"""Events permitted for an offline session, and for a shared subscription at any time. A drop here
concerns a message that was not queued: only an UNSUBSCRIBE removes messages from a queue."""
_WITH_OPENING: Final = (WillArmed, SessionSnapshot, RetainedSnapshot)
"""Events permitted between the beginning of a connection and the redelivered PUBRELs."""
_MAX: Final = 100
"""Maximum findings kept for one session."""


class RecoveryFinding(NamedTuple):
    """A violation found after a recovery."""

    at: Position
    what: str


class StateBefore(NamedTuple):
    """The state of a session at the start of the broker."""

    connected: bool
    clean: bool
    will: bool
    inflight: int
    releasing: int
    inbound: int
    queued: int


class SessionRecovery:
    """Follows a session over the start of its broker at position ``started``.

    None: the log has no start, and the session is only folded. ``whole`` is as for
    ``projections.state.single_session.SessionFold``.
    """

    def __init__(self, session: str, started: Position | None, whole: Position = 0) -> None:
        self.fold = SessionFold(session, whole)
        self.findings: list[RecoveryFinding] = []
        self.before: StateBefore | None = None
        """None: the session did not exist."""
        self.resumed = False
        """Whether the client has resumed the session."""
        self._started = started
        self._check: Callable[[Event, Position, bytes | None], None] | None = None
        """None before the start of the broker."""
        self._payload: bytes | None = None
        """Payload of the last armed will, if known."""
        self._will: Will | None = None
        self.fired = False
        """Whether its will was published because its connection had ended with the previous
        broker."""
        self._published = False
        """Whether the message of the will was published, or need not be."""
        self._messages = 0
        """Number of messages published for it."""
        self._generation = 0
        self._unsent: dict[int, None] = {}
        """Packet identifiers that remain to be redelivered, in order."""
        self._unreleased: set[int] = set()
        """Those of them whose PUBREL is redelivered."""
        self._opened_at: Position = 0

    def take(self, event: Event, at: Position, time_ms: int, payload: bytes | None = None) -> None:
        """Take the session's next event; ``payload``: of wills, and as for ``SessionFold``."""
        if self._check is None and self._started is not None and at >= self._started:
            self._begin()
        if self._check is not None:
            self._check(event, at, payload)
        elif type(event) is WillArmed:
            self._payload = payload
        self.fold.take(event, at, time_ms, payload)

    def finish(self, torn: Position | None = None) -> None:
        """End the check; events from the position ``torn`` on are not checked."""
        if self._started is None:
            return
        if self._check is None:
            self._begin()
        if self._check == self._ending:
            self._report(self._started, "its connection was not ended after the broker was started")
        if self._check == self._resuming and (torn is None or self._opened_at < torn):
            self._released(self._opened_at)

    def _report(self, at: Position, what: str) -> None:
        if len(self.findings) < _MAX:
            self.findings.append(RecoveryFinding(at, what))

    def _begin(self) -> None:
        """Record the state at the start of the broker."""
        state = self.fold.state
        if state is None:
            self._check = self._none
            return
        self.before = _before(state)
        self._will, self._generation = state.will, state.generation
        self._check = self._ending if state.connected else self._away

    # Permitted events, one method for each stage.

    def _ending(self, event: Event, at: Position, payload: bytes | None) -> None:
        """Check an event while the end of the session's old connection is not recorded yet."""
        if isinstance(event, (WillFired, MessagePublished)):
            self._about_will(event, at, payload)
        elif isinstance(event, SessionClosed):
            if event.reason not in _AT_RESTART:
                self._report(
                    at, f"its connection ended as {event.reason!r:.40}, after it had ended"
                )
            if event.generation != self._generation:
                self._report(at, f"connection {event.generation} ended, it was {self._generation}")
            clean = self.before is not None and self.before.clean
            waits = self._will is not None and self._will.delay and not clean
            if self._will is not None and event.grace:
                waits, self._will = True, self._will._replace(grace=event.grace)
            if self._will is not None and not self.fired and not waits:
                self._report(at, "its will was not published when its connection ended")
            if self.fired and not self._published:
                self._report(at, "its will was not published though it says so")
            kept = not clean or (self._will is not None and self._will.grace > 0)
            self._check = self._away if kept else self._none
        elif isinstance(event, MessageDropped) and event.reason in _WILL_DROPPED:
            self._published = True  # a will that may not be published
        elif not _may_happen_offline(event):
            self._report(at, f"{type(event).__name__} before its connection was ended")

    def _away(self, event: Event, at: Position, payload: bytes | None) -> None:
        """Check an event while the client is offline."""
        state = self.fold.state
        if isinstance(event, SessionOpened) and state is not None:
            self._opened(event, state, at)
        elif isinstance(event, SessionExpired):
            self._check = self._none
        elif isinstance(event, (WillFired, MessagePublished)):
            if self._will is not None and not self._will.wait:
                self._will = None  # published before the connection ends, if at all
            self._about_will(event, at, payload)
        elif isinstance(event, WillCancelled) and self._will is not None and self._will.wait:
            self._will = None  # the client is back in time
        elif not _may_happen_offline(event):
            self._report(at, f"{type(event).__name__} while its client was offline")

    def _none(self, event: Event, at: Position, _payload: bytes | None) -> None:
        """Check an event while the session does not exist."""
        if isinstance(event, SessionOpened):
            if event.resumed:
                self._report(at, "a session was resumed that did not exist")
            self._check = self._settled
        else:
            self._report(at, f"{type(event).__name__} for a session that did not exist")

    def _resuming(self, event: Event, at: Position, _payload: bytes | None) -> None:
        """Check an event while packets in flight are redelivered, which precedes all else.

        PUBRELs are in the turn of the connection's beginning. PUBLISHes may need to be loaded.
        """
        if self._unreleased and not isinstance(event, (Redelivered, *_WITH_OPENING)):
            if not (isinstance(event, SessionClosed) and event.reason == "session_failed"):
                self._released(at)
            self._unreleased = set()
        follow = self._FOLLOW.get(type(event))
        if follow is not None:
            follow(self, event, at)

    def _settled(self, _event: Event, _at: Position, _payload: bytes | None) -> None:
        """End the check: the state before the start no longer matters."""

    # Checks.

    def _about_will(
        self, event: WillFired | MessagePublished, at: Position, payload: bytes | None
    ) -> None:
        will = self._will
        if isinstance(event, WillFired):
            if will is None or self.fired:
                self._report(at, "a will was published that was not armed")
            self.fired = True
            # At QoS 0 only retained messages are recorded.
            self._published = will is None or not (will.qos or will.retain)
        elif self.fired and event.will and self._messages:
            self._report(at, "its will was published a second time")
        elif not event.will or not self.fired or will is None:
            self._report(at, "a message was published without its client")
        else:
            self._published = True
            self._messages = 1
            if (event.topics, event.qos, event.retain) != ([will.topic], will.qos, will.retain):
                self._report(at, "another message was published than its will")
            elif not _same(will.topic, payload, self._payload):
                self._report(at, "its will was published with another payload")

    def _opened(self, event: SessionOpened, state: SessionState, at: Position) -> None:
        kept = not state.clean and not is_clean_start(event)
        if event.resumed != kept:
            self._report(at, "its state was thrown away" if kept else "it was resumed though clean")
        if event.generation != state.generation + 1:
            self._report(
                at, f"connection {event.generation} was opened, the last was {state.generation}"
            )
        self.resumed = event.resumed
        self._unsent = dict.fromkeys((*state.releasing, *state.inflight))
        self._unreleased, self._opened_at = set(state.releasing), at
        self._check = self._resuming if event.resumed else self._settled

    def _released(self, at: Position) -> None:
        """Check that all PUBRELs were sent again, at a position at which they must be."""
        if self._unreleased:
            packets = f"packet {min(self._unreleased)}"
            if len(self._unreleased) > 1:
                packets += f" and {len(self._unreleased) - 1} more"
            self._report(
                at, f"the PUBREL of {packets} was not sent again when its client reconnected"
            )

    def _sent_again(self, event: Redelivered, at: Position) -> None:
        if event.cause != "resumed":
            self._released(at)
            self._unreleased = set()
            return
        for number, pid in enumerate(from_runs(event.pids)):
            if pid not in self._unsent:
                self._report(at + number, f"packet {pid} was sent again, but was not in flight")
            elif pid != next(iter(self._unsent)):
                self._report(at + number, f"packet {pid} was sent again out of order")
            self._unsent.pop(pid, None)
            self._unreleased.discard(pid)

    def _answered(self, event: Acked | Received | Completed, _at: Position) -> None:
        for pid in from_runs(event.pids):
            self._unsent.pop(pid, None)

    def _sent(self, _event: Delivered, at: Position) -> None:
        if self._unsent:
            self._report(
                at, f"a message was sent before packet {next(iter(self._unsent))} was redelivered"
            )
            self._unsent = {}

    def _left(self, _event: SessionClosed, _at: Position) -> None:
        self._check = self._settled

    _FOLLOW: ClassVar[dict[type, Callable[[SessionRecovery, Any, Position], None]]] = {
        Redelivered: _sent_again,
        Acked: _answered,
        Received: _answered,
        Completed: _answered,
        Delivered: _sent,
        SessionClosed: _left,
    }


def _may_happen_offline(event: Event) -> bool:
    if isinstance(event, MessageDropped) and event.queued >= 0:
        return False
    return isinstance(event, _WHILE_OFFLINE)


def _same(topic: str, one: bytes | None, other: bytes | None) -> bool:
    """Return whether two payloads of a will are equal, if both are known.

    The timestamp of a Sparkplug death is set when it is published.
    """
    if one is None or other is None:
        return True
    return one == other or (is_death(topic) and with_timestamp(one, 0) == with_timestamp(other, 0))


def _before(state: SessionState) -> StateBefore:
    return StateBefore(
        state.connected,
        state.clean,
        state.will is not None,
        len(state.inflight),
        len(state.releasing),
        len(state.inbound),
        state.queued,
    )
