"""The input and the result of an audit: claims of a broker, and an :class:`Outcome`.

Everything here is plain and holds no Spark: it can be pickled, compared and rendered anywhere.
Times are Unix times in milliseconds unless a name says otherwise; positions are packed
(``eventstore.format.positions``).
"""

from dataclasses import dataclass, field

from eventstore.format.positions import Position
from projections.audit.rule_table import Rule, Violation
from projections.log_proof import Doubt, proven_spans

MAX_VIOLATIONS = 1000
"""Maximum violations of a rule that are kept; more are counted."""

BROKER, PROJECTIONS = "broker", "projections"
SESSION_CLAIM, RETAINED_CLAIM, ALL_CLAIM = "session", "retained", "all"


@dataclass(frozen=True, slots=True)
class StateClaim:
    """A statement about a session or a retained message, to be compared with the log.

    A claim of the kind ``all`` states that the claims contain every session and every topic that
    existed at its bound: then claims are compared both ways.
    """

    where: str
    """The source of the statement: ``broker`` or ``projections``."""
    node: str
    kind: str
    """``session``, ``retained`` or ``all``."""
    name: str
    """Client identifier or topic; empty for ``all``."""
    bound: Position
    """The claim describes the state before the event at this position."""
    digest: str | None
    """See ``projections.state.digests``; None: the session or message does not exist."""


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """The audited part of a node's log."""

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
    doubts: tuple[Doubt, ...] = ()
    """Its parts about which nothing can be said."""
    audited: int | None = None
    """Number of entries before the first damaged record; None: there is none."""

    @property
    def audited_entries(self) -> int:
        """The number of entries for which the audit holds."""
        return self.entries if self.audited is None else self.audited

    @property
    def proven(self) -> list[tuple[int, int]]:
        """The times for which the audit holds, Unix time in milliseconds."""
        return proven_spans(self.begins_ms, self.ends_ms, self.doubts) if self.records else []


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """The last start of a node's broker."""

    at: Position
    """Position of its BrokerStarted."""
    time_ms: int
    crashed: bool
    """Whether the log proves that the previous broker ended without a clean shutdown."""
    interrupted: bool
    """It ended while it wrote a turn: the written part is void."""


@dataclass(frozen=True, slots=True)
class NodeRecovery:
    """The state that a node's broker recovered at its last start."""

    summary: NodeSummary
    start: BrokerStart | None
    """None: the log contains no start."""
    sessions: int = 0
    """Number of sessions; the numbers below refer to these."""
    connected: int = 0
    """Sessions whose connections ended with the previous broker."""
    clean: int = 0
    """Sessions that ended with their connections."""
    wills: int = 0
    """Wills published since their connections ended."""
    inflight: int = 0
    """Deliveries without PUBACK or PUBREC, kept with their packet identifiers."""
    releasing: int = 0
    """Deliveries without PUBCOMP."""
    inbound: int = 0
    """QoS 2 messages of clients without PUBREL."""
    queued: int = 0
    """Messages in queues."""
    resumed: int = 0
    """Sessions resumed by their clients since."""

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.summary.node

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """The parts of the log about which nothing can be said."""
        return self.summary.doubts

    @property
    def proven(self) -> list[tuple[int, int]]:
        """The other parts of the log, in Unix milliseconds."""
        return self.summary.proven


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule."""

    rule: Rule
    checked: int
    """Number of checked items: see :attr:`unit`."""
    unit: str
    """The unit of ``checked``: records, deliveries, messages, ..."""
    violations: int
    """Number of violations, including those that are not kept."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Message counts of a node in one interval of :attr:`Outcome.interval_ms`."""

    node: str
    at_ms: int
    """Start of the interval."""
    published: int
    """Messages published by clients (QoS 1 and 2, and retained at QoS 0), including wills."""
    delivered: int
    """First deliveries at QoS 1 and 2."""
    completed: int
    """Deliveries that their clients acknowledged completely: PUBACK or PUBCOMP."""
    dropped: int


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Latencies from publication of messages to acknowledgement of their delivery, for one QoS."""

    qos: int
    """QoS of the delivery."""
    bounds_ms: tuple[int, ...]
    """Upper bounds of the buckets, exclusive; longer latencies count in the last bucket."""
    counts: tuple[int, ...]
    """Number of deliveries in each bucket."""
    p50_ms: int
    """Upper bound of the bucket with the median."""
    p99_ms: int
    max_ms: int
    """The longest latency, exact."""


@dataclass(frozen=True, slots=True)
class SlowSession:
    """One of the sessions with the longest latencies from publication to acknowledgement."""

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
    """The number of compared claims about a node."""

    where: str
    node: str
    sessions: int
    retained: int
    as_of: Position
    """The last position with a claim."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an audit."""

    nodes: tuple[NodeSummary, ...]
    rules: tuple[RuleResult, ...]
    """One for each of :data:`RULES`, in their order; ``state`` only if there were claims."""
    violations: tuple[Violation, ...]
    """At most :data:`MAX_VIOLATIONS` for each rule, ordered by rule, node and position."""
    rates: tuple[RatePoint, ...]
    """By node and time; empty intervals are left out."""
    interval_ms: int
    """Length of the intervals of :attr:`rates`."""
    latencies: tuple[LatencyHistogram, ...]
    """For QoS 1 and 2, if there were deliveries."""
    slowest: tuple[SlowSession, ...]
    """Slowest first."""
    drops: tuple[DropCount, ...]
    """Most first."""
    compared: tuple[ClaimsCompared, ...]
    seconds: float
    """Duration of the audit."""
    notes: tuple[str, ...] = field(default=())
    """Parts that were not checked, and why, as text."""
    recoveries: tuple[NodeRecovery, ...] = ()
    """What the brokers recovered, in the order of ``nodes``; empty if it was not asked for."""

    @property
    def kept(self) -> bool:
        """Whether all guarantees were kept."""
        return not any(rule.violations for rule in self.rules)
