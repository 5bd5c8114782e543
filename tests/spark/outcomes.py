"""Outcomes of audits for the tests of reports, including the worst ones."""

import random

from eventstore.format.positions import position
from projections.audit.audit_outcome import (
    ClaimsCompared,
    DropCount,
    LatencyHistogram,
    NodeSummary,
    Outcome,
    RatePoint,
    RuleResult,
    SlowSession,
)
from projections.audit.rule_table import RULES, Rule, Violation

BEGINS_MS = 1_780_000_000_000
BOUNDS = tuple(2**bit for bit in range(21))

HOSTILE = (
    "<script>alert(1)</script>",
    "\x1b[31mred\x1b[0m\x07",
    "left\u202eright\u2066mark",
    "$\\frac{$1$}",
    "'; rm -rf / #\"",
    "a" * 65_535,
    "--help",
    "\u5de5\u5834 \u0645\u0635\u0646\u0639",
    "\x00\x7f\x85\u2028line",
)


def kept(seconds: int = 600, nodes: int = 1) -> Outcome:
    """Give what an audit finds when nothing is wrong."""
    chance = random.Random(5)
    names = [f"n{number}" for number in range(1, nodes + 1)]
    rates = tuple(
        RatePoint(
            node,
            BEGINS_MS + second * 1000,
            published=(
                published := 4000 + chance.randint(-300, 300) + (3000 if second > 400 else 0)
            ),
            delivered=int(published * 1.4),
            completed=int(published * 1.4) - chance.randint(0, 200),
            dropped=chance.randint(0, 90) if 420 < second < 460 else 0,
        )
        for node in names
        for second in range(seconds)
        if not 100 < second < 130
    )
    return Outcome(
        nodes=tuple(
            NodeSummary(
                node,
                1,
                16_240,
                BEGINS_MS,
                BEGINS_MS + seconds * 1000,
                16_240,
                5_000_083,
                5_000_083,
                727_000_000,
            )
            for node in names
        ),
        rules=tuple(RuleResult(rule, 1_234_567, "messages", 0) for rule in RULES),
        violations=(),
        rates=rates,
        interval_ms=1000,
        latencies=(
            LatencyHistogram(1, BOUNDS, _counts(chance, 5), 32, 512, 9_120),
            LatencyHistogram(2, BOUNDS, _counts(chance, 7), 128, 1024, 65_000),
        ),
        slowest=tuple(
            SlowSession(
                names[0],
                f"reader-{number:05}",
                5000 - number,
                512 >> number % 4,
                4096 >> number % 3,
                9_120 - number * 300,
            )
            for number in range(12)
        ),
        drops=(
            DropCount(names[0], "queue_messages", 7_315),
            DropCount(names[0], "slow_reader", 950),
            DropCount(names[0], "unsubscribed", 12),
        ),
        compared=(ClaimsCompared("broker", names[0], 981, 102, position(16_240, 3)),),
        seconds=61.94,
    )


def _counts(chance: random.Random, middle: int) -> tuple[int, ...]:
    counts = [0] * len(BOUNDS)
    for _ in range(20_000):
        counts[min(len(BOUNDS) - 1, max(0, round(chance.gauss(middle, 1.6))))] += 1
    return tuple(counts)


def broken() -> Outcome:
    """Give what is found in a log in which much is wrong, with names that try to break out."""
    good = kept(nodes=2)
    violations = (
        tuple(
            Violation(
                Rule.PACKET_ID_REUSE,
                position(12 + number, number),
                f"packet identifier {number} was already in flight",
                session=name,
                node="n1",
            )
            for number, name in enumerate(HOSTILE)
        )
        + tuple(
            Violation(
                Rule.UNDELIVERED,
                position(99, number),
                f"message {98}.{number} was neither delivered nor queued nor dropped",
                session="reader-00007",
                node="n2",
            )
            for number in range(1000)
        )
        + (
            Violation("chain", position(77, 0), "record 77 does not continue record 76", node="n1"),
            Violation(
                Rule.STATE,
                position(5000, 0),
                "<b>another</b>\x1b[2J digest",
                session="reader-00003",
                node="n1",
            ),
        )
    )
    count = {
        Rule.PACKET_ID_REUSE: len(HOSTILE),
        Rule.UNDELIVERED: 12_345,
        "chain": 1,
        Rule.STATE: 1,
    }
    return Outcome(
        nodes=good.nodes,
        rules=tuple(
            RuleResult(rule.rule, rule.checked, rule.unit, count.get(rule.rule, 0))
            for rule in good.rules
        ),
        violations=violations,
        rates=good.rates,
        interval_ms=good.interval_ms,
        latencies=good.latencies,
        slowest=tuple(
            SlowSession("n1", name, 10, 1 << number, 4 << number, 9 << number)
            for number, name in enumerate(HOSTILE)
        ),
        drops=(*good.drops, DropCount("n2", "<i>\x1b[1m", 3)),
        compared=good.compared,
        seconds=good.seconds,
        notes=("the broker did not answer in time: it was not compared <hr>",),
    )


def nothing() -> Outcome:
    """Give what is found in an empty log."""
    return Outcome(
        nodes=(NodeSummary("n1", 0, 0, 0, 0, 0, 0, 0, 0),),
        rules=tuple(RuleResult(rule, 0, "records", 0) for rule in RULES if rule != Rule.STATE),
        violations=(),
        rates=(),
        interval_ms=1000,
        latencies=(),
        slowest=(),
        drops=(),
        compared=(),
        seconds=1.2,
    )


def silent() -> Outcome:
    """Return the outcome for a log in which clients connected and one published without
    subscribers."""
    return Outcome(
        nodes=(NodeSummary("n1", 1, 3, BEGINS_MS, BEGINS_MS + 5000, 3, 4, 4, 900),),
        rules=tuple(RuleResult(rule, 4, "records", 0) for rule in RULES if rule != Rule.STATE),
        violations=(),
        rates=(RatePoint("n1", BEGINS_MS, 1, 0, 0, 0),),
        interval_ms=1000,
        latencies=(),
        slowest=(),
        drops=(),
        compared=(),
        seconds=1.2,
    )
