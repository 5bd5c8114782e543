"""What an audit takes in and gives back: claims of a broker, and an :class:`Outcome`.

Everything here is plain and holds no Spark: it can be pickled, compared and rendered anywhere.
Times are Unix times in milliseconds unless a name says otherwise; positions are packed
(``eventstore.format.positions``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventstore.format import Position

CHAIN = "chain"
TURN = "turn"
CHECKPOINT = "checkpoint"
PACKET_ID_REUSE = "packet_id_reuse"
UNDELIVERED = "undelivered"
DELIVERED_TWICE = "delivered_twice"
QOS = "qos"
ORDER = "order"
NO_SUBSCRIPTION = "no_subscription"
ACKNOWLEDGEMENT = "acknowledgement"
QUEUE = "queue"
RETAINED = "retained"
SESSION = "session"
OWNERSHIP = "ownership"
EVENT = "event"
STATE = "state"

RULES: Mapping[str, str] = {
    CHAIN: "the records follow each other without a gap, each linked to the one before",
    TURN: "a turn is whole: its events are in one record, or in parts that follow each other",
    CHECKPOINT: "what checkpoints repeat, and what cuts carry over, is what there was",
    PACKET_ID_REUSE: "no packet identifier is given out while it is in flight",
    UNDELIVERED: "every QoS 1 or 2 message is delivered, queued or dropped with a reason for "
    "every session that subscribed",
    DELIVERED_TWICE: "no message is delivered to a session under two packet identifiers",
    QOS: "a message is delivered at its own QoS or at the granted one, whichever is lower",
    ORDER: "messages of a publisher on a topic are delivered in the order in which they took "
    "effect, and again in that order after a reconnect",
    NO_SUBSCRIPTION: "nothing is delivered without a subscription that matches",
    ACKNOWLEDGEMENT: "acknowledgements only for what was delivered, releases only for what came",
    QUEUE: "what leaves a queue is what stood at its head",
    RETAINED: "the retained message of a topic is the one that was retained last",
    SESSION: "a session is resumed when it was to be kept, and only then, and expires only while "
    "its client is away",
    OWNERSHIP: "a session has one connection at a time, and one node that owns it",
    EVENT: "events fit what was before",
    STATE: "the broker has the state that the log tells of",
}
"""Rule -> what it promises, in the order in which they are told."""

MOST = 1000
"""Violations of a rule that are kept; more are counted."""

BROKER, PROJECTIONS = "broker", "projections"
SESSION_CLAIM, RETAINED_CLAIM, ALL_CLAIM = "session", "retained", "all"


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody says of a session or a retained message, to be compared with the log.

    A claim of the kind ``all`` says that every session and every topic that there was at its bound
    is among the claims: then claims are compared both ways.
    """

    where: str
    """Who says so: ``broker`` or ``projections``."""
    node: str
    kind: str
    """``session``, ``retained`` or ``all``."""
    name: str
    """Client identifier or topic; empty for ``all``."""
    bound: Position
    """It was so when all before this position had happened."""
    digest: str | None
    """See ``projections.state.digests``; None: there is none."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A place in the log where a promise was broken."""

    rule: str
    node: str
    at: Position
    session: str | None
    what: str
    """For a person; names that clients chose stand in it escaped and shortened."""


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """How much of the log of a node was audited."""

    node: str
    first: int
    """Stream sequence of the first record."""
    last: int
    begins_ms: int
    ends_ms: int
    records: int
    events: int
    entries: int
    bytes: int
    """Stored bytes of all records."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What became of one rule."""

    rule: str
    checked: int
    """How many things were looked at: see :attr:`unit`."""
    unit: str
    """What ``checked`` counts: records, deliveries, messages, ..."""
    violations: int
    """How many there are, those that are not kept included."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """What happened on a node in one interval of :attr:`Outcome.interval_ms`."""

    node: str
    at_ms: int
    """When the interval begins."""
    published: int
    """Messages that clients published (QoS 1 and 2, and retained at QoS 0), wills included."""
    delivered: int
    """First deliveries at QoS 1 and 2."""
    completed: int
    """Deliveries that their clients acknowledged to the end: PUBACK or PUBCOMP."""
    dropped: int


@dataclass(frozen=True, slots=True)
class Latency:
    """From the publication of a message to the acknowledgement of its delivery, for one QoS."""

    qos: int
    """QoS of the delivery."""
    bounds_ms: tuple[int, ...]
    """Upper bounds of the buckets, exclusive; what is above the last is in the last bucket."""
    counts: tuple[int, ...]
    """Deliveries in each bucket, as many as there are bounds."""
    p50_ms: int
    """Upper bound of the bucket in which the median lies."""
    p99_ms: int
    max_ms: int
    """The longest one, exact."""


@dataclass(frozen=True, slots=True)
class SlowSession:
    """One of the sessions that took longest from publication to acknowledgement."""

    node: str
    session: str
    completed: int
    p50_ms: int
    p99_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True)
class Drops:
    """Messages that a node dropped for one reason."""

    node: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Compared:
    """How much of somebody's claims about a node was compared."""

    where: str
    node: str
    sessions: int
    retained: int
    as_of: Position
    """The last position for which anything was claimed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an audit found."""

    nodes: tuple[NodeSummary, ...]
    rules: tuple[RuleResult, ...]
    """One for each of :data:`RULES`, in their order; ``state`` only when there were claims."""
    violations: tuple[Violation, ...]
    """At most :data:`MOST` for each rule, ordered by rule, node and position."""
    rates: tuple[RatePoint, ...]
    """By node and time; intervals in which nothing happened are left out."""
    interval_ms: int
    """Length of the intervals of :attr:`rates`."""
    latencies: tuple[Latency, ...]
    """For QoS 1 and 2, where there were any."""
    slowest: tuple[SlowSession, ...]
    """Slowest first."""
    drops: tuple[Drops, ...]
    """Most first."""
    compared: tuple[Compared, ...]
    seconds: float
    """How long the audit took."""
    notes: tuple[str, ...] = field(default=())
    """What could not be looked at, and why: for a person."""

    @property
    def kept(self) -> bool:
        """All promises were kept."""
        return not any(rule.violations for rule in self.rules)
