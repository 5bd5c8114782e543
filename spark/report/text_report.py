"""The report of an audit for a terminal: the verdict, then the violations and their places."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from eventstore.display import count_of, escaped, name, size
from eventstore.format.positions import format_position
from projections.audit.audit_outcome import NodeSummary, Outcome
from spark.report import findings

VIOLATIONS: Final = 5
"""Maximum violations shown for each rule."""
SLOWEST: Final = 5
"""Number of sessions shown."""
_NAME: Final = 40
_WITHIN: Final = (">half within", ">99 %", ">longest")


def audit_text(outcome: Outcome, complete: Callable[[str], str] = str) -> str:
    """Return the report; every line of it is printable.

    ``complete`` adds the flags that select the log to a command.
    """
    return "\n".join(audit_lines(outcome, complete)) + "\n"


def audit_lines(outcome: Outcome, complete: Callable[[str], str] = str) -> Iterator[str]:
    """Yield the lines of the report, as :func:`audit_text`."""
    yield findings.verdict(outcome)
    for doubt in findings.not_proven(outcome):
        yield f"not proven: {doubt}"
    for note in outcome.notes:
        yield f"note: {escaped(note, 500)}"
    yield from _violations(outcome, complete)
    if any(node.records for node in outcome.nodes):
        yield from _nodes(outcome)
        yield from _rules(outcome)
        yield from _compared(outcome)
        yield from _traffic(outcome)
    yield ""
    yield f"audited in {outcome.seconds:,.1f} s"


def _violations(outcome: Outcome, complete: Callable[[str], str]) -> Iterator[str]:
    several = len(outcome.nodes) > 1
    for broken in findings.broken_rules(outcome, VIOLATIONS):
        yield ""
        yield f"{broken.result.rule}: {count_of(broken.result.violations, 'violation')}"
        yield f"  the guarantee: {broken.promise}"
        for violation in broken.shown:
            where = [name(violation.node, _NAME)] if several else []
            where.append(f"at {format_position(violation.at)}")
            if violation.session is not None:
                where.append(name(violation.session))
            yield f"  {' '.join(where)}: {findings.violation_text(violation)}"
            yield f"    {complete(findings.next_step(violation, several=several))}"
        if broken.more:
            yield f"  and {broken.more:,} more"


def _nodes(outcome: Outcome) -> Iterator[str]:
    yield ""
    several = len(outcome.nodes) > 1
    head = ["node", "records", "events", "entries", ">stored", "first", "last"]
    yield from table_lines(
        head + ["from", "to (UTC)"] * several,
        [
            [
                name(node.node, _NAME),
                node.records,
                node.events,
                node.entries,
                size(node.bytes),
                node.first,
                node.last,
                *([_when(node, node.begins_ms), _when(node, node.ends_ms)] if several else []),
            ]
            for node in outcome.nodes
        ],
    )


def _when(node: NodeSummary, time_ms: int) -> str:
    return findings.utc(time_ms) if node.records else "-"


def _rules(outcome: Outcome) -> Iterator[str]:
    yield ""
    yield from table_lines(
        ("guarantee", "checked", "", "broken"),
        [
            (
                rule.rule,
                rule.checked,
                rule.unit,
                rule.violations if rule.checked or rule.violations else "nothing to check",
            )
            for rule in outcome.rules
        ],
    )


def _compared(outcome: Outcome) -> Iterator[str]:
    if outcome.compared:
        yield ""
    for claims in outcome.compared:
        yield (
            f"compared with {escaped(claims.where)} of {name(claims.node, _NAME)}: "
            f"{count_of(claims.sessions, 'session')}, "
            f"{count_of(claims.retained, 'retained message')}, "
            f"as of {format_position(claims.as_of)}"
        )


def _traffic(outcome: Outcome) -> Iterator[str]:
    if outcome.latencies:
        yield ""
        yield from table_lines(
            ("publication to acknowledgement", "deliveries", *_WITHIN),
            [
                (
                    f"QoS {latency.qos}",
                    sum(latency.counts),
                    findings.milliseconds(latency.p50_ms),
                    findings.milliseconds(latency.p99_ms),
                    findings.longest_latency(latency),
                )
                for latency in outcome.latencies
            ],
        )
    else:
        yield ""
        yield "no delivery was acknowledged: there are no latencies"
    if outcome.slowest:
        yield ""
        several = len(outcome.nodes) > 1
        yield from table_lines(
            ("slowest sessions", *(["node"] if several else []), "deliveries", *_WITHIN),
            [
                (
                    name(session.session, _NAME),
                    *([name(session.node, _NAME)] if several else []),
                    session.completed,
                    findings.milliseconds(session.p50_ms),
                    findings.milliseconds(session.p99_ms),
                    findings.milliseconds(session.max_ms),
                )
                for session in outcome.slowest[:SLOWEST]
            ],
        )
    if outcome.drops:
        yield ""
        reasons: Counter[str] = Counter()
        for drop in outcome.drops:
            reasons[drop.reason] += drop.count
        yield from table_lines(
            ("dropped because of", "messages"),
            [(escaped(reason, _NAME), count) for reason, count in reasons.most_common()],
        )


Cell: TypeAlias = str | int | float | None


def table_lines(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """Yield the lines of a table; text in it must be escaped already.

    Numbers are right-aligned, and so is text below a title that begins with ``>``.
    """
    right = [
        title.startswith(">") or any(isinstance(row[at], int | float) for row in rows)
        for at, title in enumerate(head)
    ]
    titles = [title.removeprefix(">") for title in head]
    shown = [titles, *([_text(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[at]) for row in shown) for at in range(len(head))]
    for row in shown:
        cells = zip(row, widths, right, strict=True)
        yield "  ".join(_padded(cell, width, right=end) for cell, width, end in cells).rstrip()


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _padded(cell: str, width: int, *, right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if right else cell + room


def _width(text: str) -> int:
    """Return the width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )
