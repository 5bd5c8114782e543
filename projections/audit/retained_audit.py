"""Follows what is retained in a log, and compares it with checkpoints, deliveries and claims.

It holds the messages that are retained at one moment, like a broker; what has happened is
forgotten.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any, Final

from eventstore.display import name as shown
from eventstore.format.positions import Position, format_position
from projections.audit.audit_outcome import BROKER, PROJECTIONS
from projections.audit.audit_results import AuditPlan, AuditResults, Row
from projections.audit.facts import (
    CLAIMED_TOPIC,
    CLEARED,
    EXPIRED_SO,
    GRANT,
    OWED,
    REPEATED_SO,
    RETAINED,
)
from projections.audit.log_summary import BEYOND_ALL, LogSummary
from projections.audit.rule_table import Rule
from protocol.mqtt.subscription_options import NO_LOCAL
from protocol.mqtt.topic_trie import TopicTrie
from protocol.mqtt.topics import matches

RETAINED_COLUMNS: Final = (
    "node", "kind", "at", "session", "ref", "time_ms", "number", "check", "topic", "digest",
    "before", "expires",
)  # fmt: skip


def fold_retained(plan: AuditPlan, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the results for each log; ``rows`` are sorted by node, position and kind."""
    results = AuditResults(plan.since)
    for node, group in groupby(rows, key=itemgetter(0)):
        log = plan.logs.get(node)
        if log is None:
            continue
        audit = RetainedAudit(log, plan.complete.get(node, ()), results)
        for row in group:
            audit.take(*row[1:])
            yield from results.full()
        audit.finish()
    yield from results.rest()


class _Held:
    """A message that is retained on a topic."""

    __slots__ = ("at", "digest", "expires", "origin", "publisher", "qos", "ref", "topic", "until")

    def __init__(
        self, topic: str, at: Position, ref: Position, qos: int, digest: str, expires: int,
        publisher: str,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.at = at
        self.until: Position = BEYOND_ALL
        """Where it was replaced or removed."""
        self.ref = ref
        self.origin = ref
        """Where it was published, also if a checkpoint has repeated it; 0: not known."""
        self.qos = qos
        self.digest = digest
        self.expires = expires
        self.publisher = publisher


class RetainedAudit:
    """Processes the facts of one log that concern retained messages, in order.

    Behind lost records nothing is known until a checkpoint has repeated what is retained.
    """

    def __init__(
        self, log: LogSummary, complete: Sequence[tuple[Position, str]], results: AuditResults
    ) -> None:
        self._log = log
        self._results = results
        self._counts = results.totals.counts
        self._held: dict[str, _Held] = {}
        """By topic, in the order of the last changes."""
        self._topics: TopicTrie[str] = TopicTrie()
        """Topics with a message that is sent at QoS 1 or 2."""
        self._by_ref: dict[Position, list[_Held]] = defaultdict(list)
        """Messages that are retained, or were in the present turn."""
        self._ended: deque[_Held] = deque()
        """The latter ones."""
        marks: list[tuple[Position, Any]] = []
        reached: Position = 0
        for checkpoint in log.checkpoints:
            if checkpoint.begun >= log.whole:
                marks.append((checkpoint.completed, (reached, checkpoint.begun)))
                reached = max(reached, checkpoint.begun)
        marks += [(cut.at, cut.first) for cut in log.cuts if log.whole <= cut.at < log.trusted]
        self._marks = sorted(marks, key=itemgetter(0), reverse=True)
        """Ends of checkpoints with the range of positions that they must have repeated, and cuts
        with the first remaining position; the next one last."""
        self._complete = sorted(
            (claim for claim in complete if self._judges(claim[0])), key=itemgetter(0), reverse=True
        )
        self._erasures = sorted(
            (
                (span.at, topic, span.begin, span.end)
                for topic, spans in log.outline.erased.items()
                for span in spans
                if log.whole <= span.at < log.unsure
            ),
            reverse=True,
        )
        """What was erased: the next erasure last."""
        self._erased: dict[str, tuple[Position, _Held]] = {}
        """Messages that an erasure must remove in its turn."""
        self._claimed: set[tuple[str, str]] = set()
        """Source and topic of claims."""
        self._unclaimed: list[tuple[Position, str, _Held]] = []
        self._later: dict[tuple[str, str | None], list[tuple[Position, str]]] = defaultdict(list)
        """Topic and digest -> wrong claims of projections: they may be true later."""

    def take(
        self, kind: int, at: Position, session: str | None, ref: Position, time_ms: int,
        number: int, check: Position | None, topic: str, digest: str | None, before: str | None,
        expires: int,
    ) -> None:  # fmt: skip
        """Take the next fact."""
        if kind == CLAIMED_TOPIC:
            self._pass(at - 1)
            self._claim(at, topic, before or "", digest)
            return
        self._pass(at)
        if kind == RETAINED:
            if at >= self._log.complete:
                self._counts["retained"] += 1
                new = _Held(topic, at, ref, number >> 2, digest or "", expires, session or "")
                self._change(new, number & 3, check, before, time_ms)
        elif kind == GRANT:
            if at >= self._log.whole:
                self._grant(session or "", at, number, topic, time_ms // 1000)
        else:
            self._counts["retained"] += 1
            if at >= self._log.whole:
                self._forget(time_ms)
                self._replay(session or "", at, ref, number == 1, topic, expires)

    def finish(self) -> None:
        """Do the remaining checks at the end of the log."""
        self._pass(BEYOND_ALL)
        for at, held in self._erased.values():
            what = f"message {format_position(held.ref)} was erased, but stays retained"
            self._report(Rule.ERASURE, at, what, held.topic)
        for bound, where, held in self._unclaimed:
            # A message removed later may have been removed before the projections were read.
            if (where, held.topic) not in self._claimed and (
                where == BROKER or held.until == BEYOND_ALL
            ):
                what = "does not have a retained message that is in the log"
                self._wrong_claim(bound, held.topic, where, what)
        for (topic, _), claims in self._later.items():
            for bound, what in claims:
                self._wrong_claim(bound, topic, PROJECTIONS, what)

    def _report(
        self, rule: str, at: Position, what: str, topic: str | None, session: str | None = None
    ) -> None:
        if topic is not None:
            what = f"{what}: topic {shown(topic)}"
        self._results.violation(rule, self._log.node, session, at, what)

    # Changes.

    def _change(
        self, new: _Held, how: int, old: Position | None, digest: str | None, turn: Position
    ) -> None:
        topic, at = new.topic, new.at
        before = self._held.pop(topic, None)
        if how == REPEATED_SO:
            new.origin = 0 if before is None else before.origin
        if topic in self._erased and how != REPEATED_SO:
            del self._erased[topic]
        if at >= self._log.whole:
            self._check_change(new, how, before, old, digest)
        if before is not None:
            before.until = at
            self._ended.append(before)
        self._forget(turn)
        if new.digest:
            self._held[topic] = new
            self._by_ref[new.ref].append(new)
            self._later.pop((topic, new.digest), None)
        sent = before is not None and before.qos > 0
        if new.digest and new.qos:
            if not sent:
                self._topics.set(topic, topic)
        elif sent:
            self._topics.discard(topic)

    def _forget(self, turn: Position) -> None:
        """Forget messages that ended before a turn began."""
        ended = self._ended
        while ended and ended[0].until <= turn:
            former = ended.popleft()
            places = self._by_ref[former.ref]
            places.remove(former)
            if not places:
                del self._by_ref[former.ref]

    def _check_change(
        self,
        new: _Held,
        how: int,
        before: _Held | None,
        old: Position | None,
        digest: str | None,
    ) -> None:
        """Check that a repetition or an end fits what was retained."""
        if how == REPEATED_SO:
            if before is not None and (before.ref, before.digest) == (old, digest):
                return
            what = f"repeats message {format_position(old or 0)}, but "
            if before is None:
                what += "nothing is retained on its topic"
            else:
                what += f"retained last on its topic was another one, {format_position(before.ref)}"
            self._report(Rule.RETAINED, new.at, what, new.topic)
        elif how in (CLEARED, EXPIRED_SO):
            if before is None:
                what = "a retained message ended, but there was none"
                self._report(Rule.EXPIRY, new.at, what, new.topic)
            # The time of a record is that of its first event, which may be a second before the
            # others.
            elif how == EXPIRED_SO and not 0 < before.expires <= new.expires:
                what = f"retained message {format_position(before.ref)} expired too early"
                self._report(Rule.EXPIRY, new.at, what, new.topic)

    # Checkpoints, cuts and complete claims.

    def _pass(self, here: Position) -> None:
        """Pass the marks before the event behind a position."""
        while self._marks and self._marks[-1][0] <= here:
            at, value = self._marks.pop()
            if isinstance(value, tuple):
                self._check_repeated(at, *value)
            else:
                needed = (held.ref for held in self._held.values() if held.ref < value)
                self._results.needed(self._log.node, None, at, needed)
        while self._erasures and self._erasures[-1][0] <= here:
            at, topic, begin, end = self._erasures.pop()
            held = self._held.get(topic)
            if held is not None and begin <= held.origin < end:
                self._counts[f"cases {Rule.ERASURE}"] += 1
                self._erased[topic] = at, held
        while self._complete and self._complete[-1][0] <= here:
            bound, where = self._complete.pop()
            self._unclaimed += [
                (bound, where, held)
                for held in self._held.values()
                if (where, held.topic) not in self._claimed
            ]

    def _check_repeated(self, completed: Position, since: Position, begun: Position) -> None:
        """Report messages from before the beginning of a checkpoint that it left out, once."""
        for held in takewhile(lambda held: held.at < begun, self._held.values()):
            if held.at >= since:
                what = "the checkpoint does not repeat the retained message "
                what += format_position(held.ref)
                self._report(Rule.CHECKPOINT, completed, what, held.topic)

    # Deliveries.

    def _grant(self, session: str, at: Position, bits: int, topic_filter: str, second: int) -> None:
        """Add the messages that a session must get for a filter."""
        for topic in self._topics.match(topic_filter):
            held = self._held[topic]
            # It may have expired before the log records it: the additional second is that of the
            # record's time.
            if 0 < held.expires <= second + 1:
                continue
            if not (bits & NO_LOCAL and held.publisher == session):
                self._results.add(OWED, self._log.node, session, at, topic_filter, held.ref)

    def _replay(
        self, session: str, at: Position, ref: Position, sent: bool, topic_filter: str, second: int
    ) -> None:  # fmt: skip
        """Check the delivery of a retained message, which existed when the turn began or later."""
        there = self._by_ref.get(ref, ())
        message = f"message {format_position(ref)}"
        if not there:
            self._report(
                Rule.RETAINED, at, f"{message} was sent as retained, but is not", None, session
            )
        for held in there:
            # The broker may have read the clock a second before the record began.
            if 0 < held.expires < second - 1:
                what = f"retained {message} was sent {second - held.expires} s after it expired"
                self._report(Rule.EXPIRY, at, what, held.topic, session)
            # A queued message may wait in the queue of another filter, which it must not overtake.
            if sent and not matches(topic_filter, held.topic):
                what = f"retained {message} does not match the filter it was sent for"
                self._report(Rule.NO_SUBSCRIPTION, at, what, held.topic, session)

    # Claims.

    def _judges(self, bound: Position) -> bool:
        """Return whether the log is complete at the bound of a claim."""
        log = self._log
        return log.whole <= bound <= min(log.end, log.trusted)

    def _claim(self, bound: Position, topic: str, where: str, digest: str | None) -> None:
        """Compare what is retained before ``bound`` with a claim.

        Projections contain the position of publication, not that of the effect, and may be newer
        than their mark: for them it suffices that the claim is true later.
        """
        self._claimed.add((where, topic))
        if not self._judges(bound):
            self._counts["retained claims beyond"] += digest is not None
            return
        held = self._held.get(topic)
        if digest == (None if held is None else held.digest):
            return
        if digest is None:
            what = "does not have a retained message that is in the log"
        elif held is None:
            what = "has a retained message that is not in the log"
        else:
            what = "has another retained message than the log has"
        if where == PROJECTIONS:
            self._later[topic, digest].append((bound, what))
        else:
            self._wrong_claim(bound, topic, where, what)

    def _wrong_claim(self, bound: Position, topic: str, where: str, what: str) -> None:
        as_of = f"as of {format_position(bound)}"
        self._report(Rule.STATE, bound, f"the {where} {what}, {as_of}", topic)
