"""Shared parts of all audit reports: verdict, violations by rule, next command to run.

Times are in UTC, as a report may be read in another time zone.
"""

import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Final

from eventstore.display import count_of, escaped, name
from eventstore.format.positions import format_position
from projections.audit.audit_outcome import LatencyHistogram, Outcome, RuleResult
from projections.audit.rule_table import Rule, Violation
from projections.log_proof import SET_BACK, statement

_MESSAGE = re.compile(r"\bmessage (\d+\.\d+)\b")
_WHAT_LIMIT: Final = 500
_TYPED_LIMIT: Final = 200
"""Maximum characters of a client identifier in a proposed command."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A violated rule."""

    result: RuleResult
    promise: str
    shown: tuple[Violation, ...]
    """Its first violations."""

    @property
    def more(self) -> int:
        """Number of further violations."""
        return self.result.violations - len(self.shown)


def entry_count(outcome: Outcome) -> int:
    """Return the number of audited entries."""
    return sum(node.audited_entries for node in outcome.nodes)


def verdict(outcome: Outcome) -> str:
    """Return the verdict in one line; it names only guarantees that the log has cases of."""
    rules = sum(rule.checked > 0 or rule.violations > 0 for rule in outcome.rules)
    parts = sum(len(node.doubts) for node in outcome.nodes)
    but = f"; nothing can be said about {count_of(parts, 'part')}" if parts else ""
    where = extent(outcome) + but
    if not outcome.kept:
        broken = [rule for rule in outcome.rules if rule.violations]
        total = sum(rule.violations for rule in broken)
        counted = f"{len(broken)} of {count_of(rules, 'guarantee')}, {count_of(total, 'violation')}"
        return f"BROKEN: {counted}, in {where}"
    if not entry_count(outcome):
        return "nothing to audit: the log is empty"
    return f"kept: {count_of(rules, 'guarantee')}, in {where}"


def not_proven(outcome: Outcome) -> list[str]:
    """Return what cannot be said about the logs, as sentences."""
    several = len(outcome.nodes) > 1
    return [
        f"{name(node.node) + ': ' if several else ''}{statement(doubt, _utc_text)}"
        for node in outcome.nodes
        for doubt in node.doubts
    ]


def _utc_text(time_ms: int) -> str:
    return f"{utc(time_ms)} UTC"


def extent(outcome: Outcome) -> str:
    """Return the entries and the times for which the verdict holds, as text."""
    audited = [node for node in outcome.nodes if node.records]
    if not audited:
        return "an empty log"
    nodes = name(audited[0].node) if len(audited) == 1 else f"the logs of {len(audited)} nodes"
    spans = [part for node in audited for part in node.proven]
    if len(audited) > 1 and spans:
        spans = [(min(begin for begin, _ in spans), max(end for _, end in spans))]
    times = "".join(f", {span(*part)}" for part in spans)
    return f"{counted_entries(entry_count(outcome))} of {nodes}{times}"


def extent_ms(outcome: Outcome) -> tuple[int, int] | None:
    """Return the first and the last time in the logs; None if they are empty."""
    nodes = [node for node in outcome.nodes if node.records]
    if not nodes:
        return None
    return min(node.begins_ms for node in nodes), max(node.ends_ms for node in nodes)


def counted_entries(count: int) -> str:
    """Return a number of entries as text."""
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def span(begins_ms: int, ends_ms: int) -> str:
    """Return a span of time in UTC; the date only once if both ends are on one day."""
    begins, ends = utc(begins_ms), utc(ends_ms)
    if begins[:10] == ends[:10]:
        ends = ends[11:]
    return f"{begins} to {ends} UTC{SET_BACK if ends_ms < begins_ms else ''}"


def utc(time_ms: int) -> str:
    """Return a time (Unix, milliseconds) in UTC, to the second."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def milliseconds(value: int) -> str:
    """Return a duration with its unit: 12 ms, 3.4 s, 2.1 min, 5 h."""
    for limit, unit, unit_ms in ((1000, "ms", 1), (60, "s", 1000), (60, "min", 60_000)):
        number = value / unit_ms
        if number < limit:
            return f"{number:.3g} {unit}"
    return f"{value / 3_600_000:,.3g} h"


def longest_latency(latency: LatencyHistogram) -> str:
    """Return the longest latency, which is exact."""
    return milliseconds(latency.max_ms)


def broken_rules(outcome: Outcome, most: int) -> list[BrokenRule]:
    """Return the violated rules, in order, each with its first violations."""
    by_rule = {
        rule: tuple(violations)
        for rule, violations in groupby(
            sorted(outcome.violations, key=attrgetter("rule")), attrgetter("rule")
        )
    }
    return [
        BrokenRule(result, result.rule.promise, by_rule.get(result.rule, ())[:most])
        for result in outcome.rules
        if result.violations
    ]


def violation_text(violation: Violation) -> str:
    """Return the description of a violation as one printable line."""
    text = violation.what
    return text if text.isprintable() and len(text) <= _WHAT_LIMIT else escaped(text, _WHAT_LIMIT)


def next_step(violation: Violation, *, several: bool) -> str:
    """Return the command that shows more of a violation, without the flags that select the log.

    ``several``: there is more than one node.
    """
    at = format_position(violation.at)
    node = f" --node {shlex.quote(violation.node)}" if several else ""
    if violation.rule in (Rule.CHAIN, Rule.TURN):
        return f"foldmq log verify{node}"
    session = violation.session
    if session is None or not session.isprintable() or not 0 < len(session) <= _TYPED_LIMIT:
        return f"foldmq log{node} --from {at} -n 1"
    typed = "=" + shlex.quote(session) if session.startswith("-") else " " + shlex.quote(session)
    message = _MESSAGE.search(violation.what)
    if violation.rule == Rule.STATE:
        return f"foldmq replay{node} --session{typed} --at {at}"
    if message is not None:
        return f"foldmq why{node} --position {message[1]} --client{typed}"
    return f"foldmq log{node} --session{typed} --to {at} -n 10"
