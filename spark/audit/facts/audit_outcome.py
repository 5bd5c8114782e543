"""The input and the result of an audit: claims of a broker, and an :class:`Outcome`.

Everything here is plain and holds no Spark: it can be pickled, compared and rendered anywhere.
Times are Unix times in milliseconds unless a name says otherwise; positions are packed
(``eventstore.format.positions``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.format import Position
    from projections.audit import Rule, Violation

MOST_VIOLATIONS = 1000
"""Violations of a rule that are kept; more are counted."""

BROKER, PROJECTIONS = "broker", "projections"
SESSION_CLAIM, RETAINED_CLAIM, ALL_CLAIM = "session", "retained", "all"


@dataclass(frozen=True, slots=True)
class StateClaim:
    """A statement about a session or a retained message, to be compared with the log.

    A claim of the kind ``all`` says that every session and every topic that there was at its bound
    is among the claims: then claims are compared both ways.
    """

    where: str
    """The source of the statement: ``broker`` or ``projections``."""
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
    """The result of one rule."""

    rule: Rule
    checked: int
    """How many things were looked at: see :attr:`unit`."""
    unit: str
    """What ``checked`` counts: records, deliveries, messages, ..."""
    violations: int
    """How many there are, those that are not kept included."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Message counts of a node in one interval of :attr:`Outcome.interval_ms`."""

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
class LatencyHistogram:
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
class DropCount:
    """Messages that a node dropped for one reason."""

    node: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class ClaimsCompared:
    """How many claims about a node were compared."""

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
    """At most :data:`MOST_VIOLATIONS` for each rule, ordered by rule, node and position."""
    rates: tuple[RatePoint, ...]
    """By node and time; intervals in which nothing happened are left out."""
    interval_ms: int
    """Length of the intervals of :attr:`rates`."""
    latencies: tuple[LatencyHistogram, ...]
    """For QoS 1 and 2, where there were any."""
    slowest: tuple[SlowSession, ...]
    """Slowest first."""
    drops: tuple[DropCount, ...]
    """Most first."""
    compared: tuple[ClaimsCompared, ...]
    seconds: float
    """How long the audit took."""
    notes: tuple[str, ...] = field(default=())
    """What could not be looked at, and why: for a person."""

    @property
    def kept(self) -> bool:
        """All promises were kept."""
        return not any(rule.violations for rule in self.rules)
