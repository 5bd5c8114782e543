"""The history of one message: what happened to it, and to its copy for each session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from eventstore.format.events import MessagePublished
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import Position
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
    """queued, delivered, redelivered, acked, received, pubrel_repeated, completed, refused,
    assigned, returned, expired, dropped, session_ended, or held: a checkpoint found it in this
    state. For the message itself released, discarded, replaced (its packet identifier was used
    again), expired (it is no longer retained), carried (repeated under its position) or repeated
    (at this position from now on)."""
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
    not_proven: list[str] = field(default_factory=list)
    """What cannot be said about the time since it was published, because records were lost."""

    @property
    def known(self) -> bool:
        """Return whether anything is known of the message."""
        return self.topic is not None or bool(self.steps or self.copies)


def topic_of(event: MessagePublished | MessagesCarried | RetainedSnapshot, offset: int) -> str:
    """Return the topic of one of an event's messages."""
    if isinstance(event, RetainedSnapshot):
        return event.topics[offset]
    return event.topics[event.which[offset] if event.which else 0]
