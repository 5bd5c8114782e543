"""The figures of an audit: numbers of checked items, latencies, slowest sessions, drops."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from projections.audit.audit_outcome import DropCount, LatencyHistogram, RuleResult, SlowSession
from projections.audit.audit_results import bounded, quantile
from projections.audit.rule_table import RULES, Rule
from projections.audit.unfinished_deliveries import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from projections.audit.audit_outcome import NodeSummary
    from projections.audit.audit_results import AuditTotals


def rule_results(
    nodes: Sequence[NodeSummary],
    totals: AuditTotals,
    violations: Mapping[str, int],
    *,
    checkpoints: int,
    claims: bool,
    retained_claims: int,
    owed: int = 0,
    copies: int = 0,
) -> tuple[RuleResult, ...]:
    """Return the numbers of checked items and violations of each rule.

    ``checkpoints`` includes cuts, ``owed`` and ``copies`` are those between logs.
    """
    records = sum(one.records for one in nodes)
    counts = totals.counts
    figures = {rule: counts[f"cases {rule}"] for rule in RULES}
    figures |= {
        Rule.CHAIN: records,
        Rule.TURN: records,
        Rule.CHECKPOINT: checkpoints,
        Rule.SHARED: counts["assigned"],
        Rule.RETAINED: counts["retained"],
        Rule.OWNERSHIP: counts["opened"],
        Rule.EXCHANGE: owed,
        Rule.COPY: copies,
        Rule.EVENT: sum(one.events for one in nodes),
        Rule.STATE: counts["claims"] + retained_claims,
    }
    figures[Rule.UNDELIVERED] += counts["owed"]
    return tuple(
        RuleResult(rule, figures[rule], rule.checked, violations.get(rule, 0))
        for rule in RULES
        if claims or rule != Rule.STATE
    )


def latencies(totals: AuditTotals) -> tuple[LatencyHistogram, ...]:
    """Return the latencies of each QoS."""
    bounds = tuple(1 << number for number in range(BUCKETS))
    found = []
    for qos, buckets in sorted(totals.latencies.items()):
        longest = totals.longest_ms[qos]
        used = max((number for number, count in enumerate(buckets) if count), default=0) + 1
        p50, p99 = (bounded(quantile(buckets, share), longest) for share in (0.5, 0.99))
        found.append(LatencyHistogram(qos, bounds[:used], tuple(buckets[:used]), p50, p99, longest))
    return tuple(found)


def slowest(totals: AuditTotals) -> tuple[SlowSession, ...]:
    """Return the slowest sessions, slowest first."""
    return tuple(
        SlowSession(node, session, completed, p50, p99, longest)
        for p99, longest, p50, completed, node, session in sorted(totals.slowest, reverse=True)
    )


def drops(told: Iterable[tuple[str, Mapping[str, int]]]) -> tuple[DropCount, ...]:
    """Return the drops of (node, count by reason), most first."""
    sums: Counter[tuple[str, str]] = Counter()
    for node, counts in told:
        for reason, count in counts.items():
            sums[node, reason] += count
    return tuple(DropCount(node, reason, count) for (node, reason), count in sums.most_common())
