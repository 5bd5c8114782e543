"""The history of one message: what happened to it, to its copies, and to it at destinations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from eventstore import display
from eventstore.format.destination_events import Forwarded, ForwardLost, ForwardRefused
from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import Position, format_position, from_runs, position, sequence_of
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import stamp
from projections.past.stored_projections import ProjectionReader
from projections.state.destinations import Destinations, DestinationState
from projections.views.replay_view import place_text
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from projections.past.subscriber_state import SubscriberState

DeliveryOutcome: TypeAlias = Literal[
    "queued",
    "in_flight",
    "releasing",
    "acknowledged",
    "refused",
    "assigned",
    "returned",
    "expired",
    "dropped",
    "gone",
]
"""The outcome of one copy. ``releasing``: PUBREC was received, PUBCOMP is awaited. ``refused``: the
client answered with an error. ``assigned``: a shared subscription assigned it to a member.
``returned``: the member left, and the shared subscription has it again. ``expired``: in the queue.
``gone``: the session ended before the copy was complete."""


class StoryStep(NamedTuple):
    """One event in the history of a message or a copy of it."""

    at: Position
    time_ms: int
    what: str
    """queued, delivered, redelivered, acked, received, completed, refused, assigned, returned,
    expired, dropped, session_ended, or held: a checkpoint found it in this state. For the message
    itself released, discarded, replaced (its packet identifier was used again), expired (it is
    no longer retained), carried (repeated under its position) or repeated (at this position
    from now on)."""
    pid: int = 0
    """Packet identifier, 0 when there is none."""
    detail: str = ""
    """Cause, reason, reason code other than 0, or member; for ``held``, the state of the copy."""
    limits: Mapping[str, Any] | None = None
    """For ``dropped``: the limits at that time, by the names of their settings; None: not
    recorded."""


@dataclass(slots=True, eq=False)
class DeliveryCopy:
    """The copy of a message for one session."""

    story: MessageStory
    session: str
    filter: str
    qos: int
    retain: bool
    outcome: DeliveryOutcome = "queued"
    pid: int = 0
    steps: list[StoryStep] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class MessageStory:
    """The history of one message and all its copies.

    For a message from before the first record of the log, some fields may be None: not known.
    """

    ref: Position
    """Its first known position."""
    time_ms: int | None = None
    session: str | None = None
    """Client identifier of its publisher."""
    topic: str | None = None
    qos: int | None = None
    retain: bool = False
    will: bool = False
    size: int | None = None
    expires: int = 0
    """Unix time in seconds at which it expires; 0: never, or not known."""
    pid: int = 0
    """Packet identifier under which it was published; 0 at QoS 0 and for a will."""
    before: int = 0
    """Sequence of the first record of the log, if the message was published before it; otherwise
    0."""
    steps: list[StoryStep] = field(default_factory=list)
    subscriber: SubscriberState | None = None
    """The subscriptions of the chosen session; None: no session was chosen, the message has not
    taken effect, or they are not known."""
    beginning: str = ""
    """A sentence about the cut of the log, if that is why ``standing`` is not known."""
    effective: bool = False
    """Whether it was routed to subscribers: at QoS 2 with its PUBREL."""
    effective_at: Position = 0
    """Position of the event with which it took effect; 0: not known."""
    copies: list[DeliveryCopy] = field(default_factory=list)
    share: str = ""
    """The shared subscription that another log assigned it to, the only one that gets it; its QoS
    is not known then."""

    @property
    def known(self) -> bool:
        """Return whether anything is known of the message."""
        return self.topic is not None or bool(self.steps or self.copies)


def topic_of(event: MessagePublished | MessagesCarried | RetainedSnapshot, offset: int) -> str:
    """Return the topic of one of an event's messages."""
    if isinstance(event, RetainedSnapshot):
        return event.topics[offset]
    return event.topics[event.which[offset] if event.which else 0]


_READ: Final = 2048
"""Records behind the message that are searched for the event of a destination."""
_AT_ONCE: Final = 64
_KINDS: Final = frozenset({"Forwarded", "ForwardRefused", "ForwardLost"})


class ForwardOutcome(NamedTuple):
    """What became of a message that was due to a destination."""

    to: str
    outcome: Literal["waiting", "sent", "refused", "lost", "passed"]
    """``passed``: its cursor is behind the message, but the event is further on in the log."""
    at: Position = 0
    """Position of the event; of ``waiting`` and ``passed`` the cursor."""
    time_ms: int = 0
    detail: str = ""

    def text(self) -> str:
        """Return the outcome as a line."""
        to = display.name(self.to)
        if self.outcome == "waiting":
            return f"waiting for {to}, whose cursor is {place_text(self.at)}"
        if self.outcome == "passed":
            return f"{to} is past it, with its cursor at {place_text(self.at)}"
        when = stamp(self.at, self.time_ms)
        if self.outcome == "sent":
            return f"{when}  sent to {to} by then"
        return f"{when}  {self.outcome} by {to}: {display.escaped(self.detail)}"

    def as_object(self) -> dict[str, object]:
        """Return the outcome as a JSON object."""
        found: dict[str, object] = {"to": self.to, "outcome": self.outcome}
        found["position"] = format_position(self.at)
        if self.time_ms:
            found["time"] = display.iso(self.time_ms)
        if self.detail:
            found["reason"] = self.detail
        return found


async def find_forwards(source: LogSource, story: MessageStory) -> list[ForwardOutcome]:
    """Return what became of a message at each destination that it was due to.

    Destinations are those of the stored projections. Raises as ``LogSource.records``.
    """
    at, topic = story.effective_at, story.topic
    if not at or topic is None or not story.qos:
        return []
    reader = ProjectionReader(source, source.stream.removeprefix(LOG_STREAM_PREFIX))
    mark = await reader.mark()
    if mark is None or not mark.destinations:
        return []
    destinations = Destinations()
    destinations.load(mark.destinations)
    due = {
        name: state
        for name, state in destinations.items()
        if state.after < at and any(matches(each, topic) for each in state.filters)
    }
    outcomes: dict[str, ForwardOutcome] = {}
    sequence, last = sequence_of(at), min(source.last, sequence_of(at) + _READ)
    while sequence <= last and outcomes.keys() < due.keys():
        until = min(last, sequence + _AT_ONCE - 1)
        async for record in source.records(sequence, until):
            if any(raw["e"] in _KINDS for raw in record.raw_events):
                base = position(record.sequence, 0)
                events = [(base + index, event) for index, event in record.events()]
                _take(events, record.time_ms, story.ref, at, due, outcomes)
        sequence = until + 1
    return [outcomes.get(name) or _by_cursor(name, state, at) for name, state in due.items()]


def _take(
    events: Iterable[tuple[Position, Event]],
    time_ms: int,
    ref: Position,
    at: Position,
    due: dict[str, DestinationState],
    outcomes: dict[str, ForwardOutcome],
) -> None:
    """Note what the events of a record say of a message."""
    for place, event in events:
        if not isinstance(event, Forwarded | ForwardRefused | ForwardLost):
            continue
        if event.to not in due or event.to in outcomes:
            continue
        if isinstance(event, ForwardRefused):
            if ref in from_runs(event.refs):
                reason = f"{event.code} {event.reason}" if event.code else event.reason
                outcomes[event.to] = ForwardOutcome(event.to, "refused", place, time_ms, reason)
        elif isinstance(event, ForwardLost):
            if event.after < at <= event.until:
                outcomes[event.to] = ForwardOutcome(event.to, "lost", place, time_ms, event.reason)
        elif event.through >= at:
            outcomes[event.to] = ForwardOutcome(event.to, "sent", place, time_ms)


def _by_cursor(name: str, state: DestinationState, at: Position) -> ForwardOutcome:
    outcome: Literal["waiting", "passed"] = "passed" if state.through >= at else "waiting"
    return ForwardOutcome(name, outcome, state.through)
