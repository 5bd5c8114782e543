"""What differs between two states of a session or a node: comparable facts, their text and JSON.

The facts of a session are smaller than its view, since those of all sessions are kept at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from eventstore import display
from eventstore.format.positions import Position
from projections.views.replay_view import replay_view
from projections.views.session_text import OF_MEMBERS, expiry_text, options_text, will_text

if TYPE_CHECKING:
    from projections.state.node_state import NodeState
    from projections.state.session import SessionState, Will

Retained = tuple["Position", int]
"""Position and size of a retained message."""


class Granted(NamedTuple):
    """The values that the broker granted for a subscription."""

    qos: int
    options: int = 0
    """Subscription options of MQTT 5, see ``Subscribed``."""
    identifier: int = 0
    """Subscription identifier of MQTT 5; 0: none."""


class ReplayFacts(NamedTuple):
    """How far a replay has read."""

    through: str
    state: str
    sent: int


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The compared facts of a session."""

    connected: bool
    subscriptions: dict[str, Granted]
    """By topic filter."""
    in_flight: frozenset[tuple[int, Position]]
    """Packet identifier and message of each incomplete delivery."""
    queue: tuple[int, int, dict[str, tuple[Position, Position]]]
    """Messages, bytes, and the first and last queued message of each filter."""
    inbound: frozenset[int]
    will: Will | None
    """Without its position."""
    expiry: int | None = None
    """Session expiry interval in seconds; None: the setting of the broker."""
    replays: dict[str, ReplayFacts] = field(default_factory=dict)
    """By the filter of the subscription."""


NO_SESSION = SessionFacts(False, {}, frozenset(), (0, 0, {}), frozenset(), None)
"""Stands for a session that does not exist."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The compared facts of a node."""

    sessions: dict[str, SessionFacts]
    retained: dict[str, Retained]
    """By topic."""
    entries: int


def state_facts(
    state: NodeState, session: str | None, origin: Callable[[Position], Position]
) -> StateFacts:
    """Return the compared facts of a state, or of one session only if ``session`` is set.

    ``origin`` returns the position of a retained message before checkpoints repeated it: it counts
    as the same message.
    """
    chosen = {
        name: session_facts(held)
        for name, held in state.sessions.items()
        if session is None or name == session
    }
    retained = {}
    if session is None:
        retained = {
            message.topic: (origin(message.ref), len(message.payload))
            for message in state.retained.all()
        }
    return StateFacts(chosen, retained, state.entries)


def session_facts(state: SessionState) -> SessionFacts:
    """Return the compared facts of a session."""
    will = state.will
    sent = [
        (packet_id, delivery.ref)
        for table in (state.inflight, state.releasing)
        for packet_id, delivery in table.items()
    ]
    ends = {
        held.filter: ends
        for held in state.subscriptions.values()
        if held.queue is not None and (ends := held.queue.ends()) is not None
    }
    return SessionFacts(
        state.connected,
        {held.filter: Granted(held.qos, held.options, held.identifier) for held in state.active()},
        frozenset(sent),
        (state.queued, state.queued_bytes, ends),
        frozenset(state.inbound),
        None if will is None else will._replace(ref=0, grace=0),
        state.expiry,
        {
            name: ReplayFacts(view.through, view.state, view.sent)
            for name, held in state.replays.items()
            if held.replay is not None and (view := replay_view(held.replay))
        },
    )


class ChangedSession(NamedTuple):
    """A session before and after; None: it did not exist."""

    name: str
    old: SessionFacts | None
    new: SessionFacts | None

    @property
    def mark(self) -> str:
        """``+`` for a session that was added, ``-`` for one that was removed, else ``~``."""
        return _mark(self.old, self.new)

    def lines(self, where: str = "") -> Iterator[str]:
        """Yield the differences as text; ``where`` follows the name."""
        yield f"{self.mark} session {display.name(self.name)}{where}"
        for line in session_diff(self.old or NO_SESSION, self.new or NO_SESSION, self.name):
            yield f"    {line}"


class ChangedRetained(NamedTuple):
    """A retained message that differs."""

    mark: str
    """``+``: added, ``-``: removed, ``~``: replaced."""
    topic: str
    size: int
    """Payload bytes, of a removed message before."""

    def line(self, where: str = "") -> str:
        """Return the difference as text."""
        return f"{self.mark} retained {display.name(self.topic)}, {display.size(self.size)}{where}"


def _mark(old: object, new: object) -> str:
    return "+" if old is None else "-" if new is None else "~"


def sessions_changed(old: StateFacts, new: StateFacts) -> Iterator[ChangedSession]:
    """Yield the sessions that differ, in order."""
    for name in sorted(old.sessions.keys() | new.sessions.keys()):
        was, now = old.sessions.get(name), new.sessions.get(name)
        if was != now:
            yield ChangedSession(name, was, now)


def retained_changes(
    old: Mapping[str, Retained], new: Mapping[str, Retained]
) -> Iterator[ChangedRetained]:
    """Yield the retained messages that differ, in order."""
    for topic in sorted(old.keys() | new.keys()):
        was, now = old.get(topic), new.get(topic)
        if was != now:
            yield ChangedRetained(_mark(was, now), topic, (now or was or (0, 0))[1])


def session_diff(old: SessionFacts, new: SessionFacts, name: str = "") -> Iterator[str]:
    """Yield the differences of a session; ``name`` is that of a shared subscription."""
    if old.connected != new.connected:
        yield "connected" if new.connected else "no longer connected"
    for topic_filter in sorted(old.subscriptions.keys() | new.subscriptions.keys()):
        was, now = old.subscriptions.get(topic_filter), new.subscriptions.get(topic_filter)
        shown = f"subscription {display.name(topic_filter)}"
        if was is not None and now is not None:
            short = was[1:] == now[1:]
            change = f"QoS {was.qos} -> {now.qos}" if short else f"{_text(was)} -> {_text(now)}"
            if was != now:
                yield f"~ {shown} {change}"
        elif (granted := was or now) is not None:
            qos = OF_MEMBERS if topic_filter == name else _text(granted)
            yield f"{_mark(was, now)} {shown} {qos}"
    for topic_filter in sorted(old.replays.keys() & new.replays.keys()):
        earlier, later = old.replays[topic_filter], new.replays[topic_filter]
        if earlier != later:
            yield f"~ replay {display.name(topic_filter)} {_read(earlier)} -> {_read(later)}"
    if old.in_flight != new.in_flight:
        ended, come = len(old.in_flight - new.in_flight), len(new.in_flight - old.in_flight)
        end = "ended with the session" if new is NO_SESSION else "completed"
        changes = (f"{come:,} sent" * bool(come), f"{ended:,} {end}" * bool(ended))
        yield (
            f"in flight {len(old.in_flight):,} -> {len(new.in_flight):,} messages "
            f"({', '.join(filter(None, changes))})"
        )
    if old.queue != new.queue:
        sizes = f"{display.size(old.queue[1])} -> {display.size(new.queue[1])}"
        yield f"queued {old.queue[0]:,} -> {new.queue[0]:,} messages, {sizes}"
    if old.inbound != new.inbound:
        yield f"inbound QoS 2 {len(old.inbound):,} -> {len(new.inbound):,} messages"
    if old.will != new.will:
        yield "will removed" if new.will is None else f"will {will_text(new.will)}"
    if old.expiry != new.expiry and new is not NO_SESSION:
        before = "" if old is NO_SESSION else f"{expiry_text(old.expiry)} -> "
        yield f"session expiry {before}{expiry_text(new.expiry)}"


def _read(replay: ReplayFacts) -> str:
    return f"{replay.state} at {replay.through or 'its beginning'}, {replay.sent:,} sent"


def _text(granted: Granted) -> str:
    identifier = f", identifier {granted.identifier}" if granted.identifier else ""
    return f"QoS {granted.qos}{options_text(granted.options)}{identifier}"


def diff_object(old: StateFacts, new: StateFacts) -> dict[str, object]:
    """Return the differences as a JSON object."""
    changed = {
        name: {"from": _session_object(was), "to": _session_object(now)}
        for name, was, now in sessions_changed(old, new)
        if was is not None and now is not None
    }
    kinds = {"+": "added", "-": "removed", "~": "replaced"}
    retained: dict[str, list[str]] = {kind: [] for kind in kinds.values()}
    for each in retained_changes(old.retained, new.retained):
        retained[kinds[each.mark]].append(each.topic)
    return {
        "entries": new.entries - old.entries,
        "sessions_added": sorted(new.sessions.keys() - old.sessions.keys()),
        "sessions_removed": sorted(old.sessions.keys() - new.sessions.keys()),
        "sessions_changed": changed,
        "retained": retained,
    }


def _session_object(facts: SessionFacts) -> dict[str, object]:
    will = facts.will
    return {
        "connected": facts.connected,
        "subscriptions": {name: granted.qos for name, granted in facts.subscriptions.items()},
        "subscription_options": {
            name: {"options": granted.options, "identifier": granted.identifier}
            for name, granted in facts.subscriptions.items()
            if granted.options or granted.identifier
        },
        "in_flight": sorted(packet_id for packet_id, _ in facts.in_flight),
        "queued": facts.queue[0],
        "queued_bytes": facts.queue[1],
        "inbound": sorted(facts.inbound),
        "will": will and {key: getattr(will, key) for key in ("topic", "qos", "retain", "delay")},
        "expiry": facts.expiry,
        **(
            {"replays": {name: read._asdict() for name, read in facts.replays.items()}}
            if facts.replays
            else {}
        ),
    }
