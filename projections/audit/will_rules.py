"""Checks that a will is published or discarded as its connection's end requires: rule ``will``.

A will is armed when its client connects. DISCONNECT with the reason code 0x00 discards it
[MQTT-3.1.2-10, MQTT-3.14.4-3]. Any other end of the connection publishes it [MQTT-3.1.2-8], or
starts its delay if the session continues. A will in its delay is discarded if the client returns in
time [MQTT-3.1.3-9], and published when the delay has passed or the session ends.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

from eventstore.display import name as shown
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MessageDropped,
    MessagePublished,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.positions import Position, format_position
from projections.audit.log_outline import LogOutline
from projections.audit.rule_table import Rule, Violation
from projections.state.session import SessionState
from protocol.mqtt.sparkplug import is_death, with_timestamp

_LEVEL_5: Final = 5
_LATE_MS: Final = 3_600_000
"""Milliseconds after its delay from which a will that still exists is overdue."""
_WITHHELD: Final = frozenset(
    {"not_permitted", "reserved_topic", "topic_levels", "personal_keys", "erased"}
)
"""Reasons for which a due will is dropped."""

_UNARMED: Final = {
    "published": "the will was published a second time",
    "discarded": "the will was published, but it had been discarded",
}
"""How a will ended before -> what is wrong if it is published."""

_WillOwner = TypeVar("_WillOwner", bound=WillArmed | MessagePublished)


def with_content(event: _WillOwner, area: memoryview) -> _WillOwner:
    """Return a will, or its publication, with a checksum of its content as ``at``.

    Events that are passed to the audit of sessions have no payload area. The content consists of
    the properties and the payload. For the death message of a Sparkplug node the time may be set at
    its publication: then neither the time nor the size counts.
    """
    if isinstance(event, WillArmed):
        size, topic = event.size, event.topic
    else:
        size = event.sizes if isinstance(event.sizes, int) else event.sizes[0]
        topic = event.topics[0]
    block = area[event.at - sum(event.blocks) : event.at]
    payload = bytes(area[event.at : event.at + size])
    if not is_death(topic):
        return replace(event, at=crc32(payload, crc32(block)))
    return replace(event, at=crc32(with_timestamp(payload, 0), crc32(block)))


class _Publication(NamedTuple):
    """A will that has to be published."""

    fired: Position
    topic: str
    qos: int
    retain: bool
    armed: WillArmed | None
    """None: it was armed before the first record of the log."""
    ref: Position
    """Where it was armed."""


class WillAudit:
    """Follows the will of one session; ``cases`` is called for each will that ended."""

    def __init__(
        self,
        report: Callable[[Violation], object],
        cases: Callable[[str], object],
        outline: LogOutline,
    ) -> None:
        self._violations = report
        self._cases = cases
        self._outline = outline
        self._armed: tuple[Position, WillArmed] | None = None
        self._turn: Position = -1
        self._opened = False
        """Whether the client connected in this turn."""
        self._delay = 0
        """The delay of the will that ended last."""
        self._ended = ""
        """How the will of the connection ended: "published", "discarded", or empty."""
        self._before = ""
        """The same, also after the connection has ended."""
        self._publication: _Publication | None = None
        """The will that still has to be published in this turn."""
        self._required: dict[str, tuple[Position, str]] = {}
        """Event that must follow in this turn, "closed", "opened", "resumed" or "ended" -> the
        position that requires it, and the error text if it does not follow."""

    def take(
        self, event: Event, state: SessionState | None, at: Position, ms: int, turn: Position
    ) -> None:
        """Check the session's next event; ``state`` is the state before it."""
        if turn != self._turn:
            self.end_turn()
            self._turn, self._opened = turn, False
        taker = _HANDLERS.get(type(event))
        if taker is not None:
            taker(self, event, state, at, ms)

    def end_turn(self) -> None:
        """Report events that had to follow in the turn and did not."""
        if self._publication is not None:
            self._report(self._publication.fired, "the will fired, but its message is not recorded")
            self._publication = None
        for at, what in self._required.values():
            self._report(at, what)
        self._required.clear()

    def finish(self, state: SessionState | None) -> None:
        """Check what is left at the end of the log."""
        self.end_turn()
        if state is None or state.will is None or state.connected:
            return
        due = max(state.closed_ms + state.will.wait * 1000, self._outline.settled_since())
        if self._outline.runs and self._outline.ends_ms > due + _LATE_MS:
            self._report(
                state.will.ref, "the will was never published although its delay has passed"
            )

    def _report(self, at: Position, what: str) -> None:
        self._violations(Violation(Rule.WILL, at, what))

    # Connections.

    def _on_opened(
        self, event: SessionOpened, state: SessionState | None, at: Position, _ms: int
    ) -> None:
        self._opened, self._ended, self._before, self._armed = True, "", "", None
        self._settle("opened")
        if event.resumed:
            self._settle("resumed")
            self._contradict("ended")
        else:
            self._settle("ended")
            self._contradict("resumed")
        if state is not None and state.will is not None:
            self._report(
                at, "the client came back while its will was neither published nor discarded"
            )

    def _on_closed(
        self, event: SessionClosed, state: SessionState | None, at: Position, _ms: int
    ) -> None:
        self._settle("closed")
        will, ended = state.will if state is not None else None, self._ended
        self._ended = ""
        if state is None or (will is None and not ended):
            return
        self._cases(Rule.WILL)
        stays = not state.clean if event.expiry is None else bool(event.expiry)
        delay = will.delay if will is not None else self._delay
        orderly = event.reason == "disconnect" and not event.code
        if orderly:
            self._require("discarded", ended, at, "the client sent DISCONNECT")
        elif event.grace:
            if ended:
                what = f"the will was {ended}, but it had to wait {event.grace} s for its client"
                self._report(at, what)
        elif event.reason == "taken_over" and delay:
            self._taken_over(ended, at)
        elif delay and stays and event.reason != "taken_over":
            if ended:
                self._report(at, f"the will was {ended} before its delay of {delay} s")
        else:
            self._require("published", ended, at, f"the connection ended ({event.reason})")

    def _require(self, required: str, ended: str, at: Position, why: str) -> None:
        if ended != required:
            outcome = f"was {ended}" if ended else "stays"
            self._report(at, f"the will {outcome} although it had to be {required}: {why}")

    def _taken_over(self, ended: str, at: Position) -> None:
        """Check a delayed will: discarded if the session continues, published if it ends."""
        if ended == "discarded":
            what = "the will was discarded, but its session ended when its client was taken over"
            self._required["resumed"] = at, what
        elif ended == "published":
            what = "the will was published, but its session continues with a new connection"
            self._required["ended"] = at, what
        else:
            self._report(at, "the will stays although another connection took over its session")

    def _on_expired(
        self, _event: SessionExpired, state: SessionState | None, at: Position, _ms: int
    ) -> None:
        self._settle("ended")
        self._contradict("resumed")
        if state is not None and state.will is not None:
            self._report(at, "the session was removed, but its will was not published")

    def _settle(self, what: str) -> None:
        self._required.pop(what, None)

    def _contradict(self, what: str) -> None:
        """Report an event that can no longer follow."""
        owed = self._required.pop(what, None)
        if owed is not None:
            self._report(*owed)

    # The will.

    def _on_armed(
        self, event: WillArmed, state: SessionState | None, at: Position, _ms: int
    ) -> None:
        if not self._opened:
            self._report(at, "a will was armed although its client did not connect then")
        elif state is not None and state.will is not None:
            self._report(at, "a second will was armed for a connection")
        if event.delay and state is not None and state.level < _LEVEL_5:
            self._report(at, "a will has a delay, which only MQTT 5 has")
        self._armed = at, event
        self._ended = ""

    def _on_fired(
        self, _event: WillFired, state: SessionState | None, at: Position, ms: int
    ) -> None:
        will = state.will if state is not None else None
        if state is None or will is None:
            self._report(at, _UNARMED.get(self._before, "a will was published that was not armed"))
            self._publication = None
            return
        armed = self._armed[1] if self._armed is not None and self._armed[0] == will.ref else None
        self._publication = _Publication(at, will.topic, will.qos, will.retain, armed, will.ref)
        self._ended, self._delay = "published", will.delay
        self._before = self._ended
        if state.connected:
            self._required["closed"] = at, "the will was published, but its connection continues"
            return
        self._cases(Rule.WILL)
        if ms < state.closed_ms + will.wait * 1000:
            self._required["ended"] = at, "the will was published before its delay had passed"

    def _on_cancelled(
        self, _event: WillCancelled, state: SessionState | None, at: Position, _ms: int
    ) -> None:
        if state is None or state.will is None:
            self._report(at, "a will was discarded that was not armed")
            return
        if self._outline.gave_up(state.will.ref, at):
            return  # the salvage discarded it
        self._ended, self._delay = "discarded", state.will.delay
        self._before = self._ended
        if state.connected:
            self._required["closed"] = at, "the will was discarded, but its connection continues"
            return
        self._cases(Rule.WILL)
        # A will that waits only because the broker ended is discarded when the client reconnects.
        needed = "opened" if state.will.grace and not state.will.delay else "resumed"
        self._required[needed] = at, "the will was discarded, but its client did not come back"

    def _on_published(
        self, event: MessagePublished, _state: SessionState | None, at: Position, _ms: int
    ) -> None:
        if not event.will:
            return
        owed, self._publication = self._publication, None
        if owed is None:
            self._report(at, "a message was published as a will, but none was due")
            return
        if owed.topic in self._outline.erased and owed.armed is not None and owed.armed.size:
            self._cases(Rule.ERASURE)
            if 0 < (erased := self._outline.erased_at(owed.topic, owed.ref)) < at:
                what = f"a will was published, but was erased at {format_position(erased)}"
                self._violations(Violation(Rule.ERASURE, at, what))
        differs = [*_differences(event, owed)]
        if differs:
            what = f"the will for {shown(owed.topic)} was published with another"
            self._report(at, f"{what} {' and '.join(differs)} than it was armed with")

    def _on_dropped(
        self, event: MessageDropped, _state: SessionState | None, _at: Position, _ms: int
    ) -> None:
        if self._publication is not None and event.reason in _WITHHELD and not event.refs:
            self._publication = None


_HANDLERS: Final[dict[type, Callable[[WillAudit, Any, Any, Position, int], None]]] = {
    SessionOpened: WillAudit._on_opened,
    SessionClosed: WillAudit._on_closed,
    SessionExpired: WillAudit._on_expired,
    WillArmed: WillAudit._on_armed,
    WillFired: WillAudit._on_fired,
    WillCancelled: WillAudit._on_cancelled,
    MessagePublished: WillAudit._on_published,
    MessageDropped: WillAudit._on_dropped,
}


def _differences(event: MessagePublished, owed: _Publication) -> list[str]:
    """Return the names of the fields in which a will and its publication differ."""
    size = event.sizes if isinstance(event.sizes, int) else sum(event.sizes)
    names = []
    if event.count != 1 or event.topics != [owed.topic]:
        names.append("topic")
    if event.qos != owed.qos:
        names.append("QoS")
    if event.retain != owed.retain:
        names.append("RETAIN")
    if owed.armed is not None:
        armed = owed.armed
        if [*event.blocks] != [*armed.blocks] or event.at != armed.at:
            names.append("content")
        elif size != armed.size and not is_death(owed.topic):
            names.append("size")
    return names
