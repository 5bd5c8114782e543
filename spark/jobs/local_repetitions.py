"""Rules of cuts, of repeated deliveries and of several nodes for small logs: plain Python.

They find what ``checkpoint_rules``, ``duplicate_rule`` and ``ownership_rule`` find with Spark.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from eventstore.display import name as shown
from eventstore.format.events import NATS_SESSION
from eventstore.format.positions import format_position
from projections.audit.rule_table import Rule, Violation
from spark.jobs.duplicate_rule import classify_copy, deliveries_of
from spark.jobs.fact_schema import CARRIED, EFFECT, EVENTS, RELEASED, RETAINED, SENT, WILL
from spark.jobs.ownership_rule import SKEW_MS
from spark.jobs.session_result_rows import CONNECTED, NEEDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from eventstore.format.positions import Position
    from spark.jobs.local_facts import LocalFacts
    from spark.jobs.local_retained import History
    from spark.jobs.log_summary import LogSummary


def classify_local_copies(facts: LocalFacts, found: Sequence[Any]) -> list[tuple[str, str]]:
    """Return (rule, what) for unexpected deliveries: rows with node, session, at and ref."""
    wanted: dict[tuple[str, str], set[Position]] = defaultdict(set)
    for row in found:
        wanted[row["node"], row["session"]].add(row["ref"])
    first: dict[tuple[str, str, Position], Position] = {}
    for node, session, data in facts.rows(EVENTS, "node", "session", "data"):
        refs = wanted.get((node, session))
        if refs is None:
            continue
        for ref, at in deliveries_of(session, data):
            if ref in refs:
                key = node, session, ref
                first[key] = min(at, first.get(key, at))
    effects: dict[tuple[str, Position], Position] = {}
    messages = {(row["node"], row["ref"]) for row in found}
    for kind in (EFFECT, RELEASED):
        for node, ref, at in facts.rows(kind, "node", "ref", "at"):
            if (node, ref) in messages:
                effects[node, ref] = min(at, effects.get((node, ref), at))
    return [
        classify_copy(
            row["ref"],
            row["at"],
            first[row["node"], row["session"], row["ref"]],
            effects.get((row["node"], row["ref"])),
        )
        for row in found
    ]


def changed_repetitions(facts: LocalFacts, logs: Mapping[str, LogSummary]) -> Iterator[Violation]:
    """Yield repeated messages that differ from their publication or did not exist."""
    columns = ("node", "ref", "topic", "check", "expires", "session", "at")
    carried = list(facts.rows(CARRIED, *columns))
    messages = {(node, ref) for node, ref, *_ in carried}
    published: dict[tuple[str, Position], list[tuple[Any, ...]]] = defaultdict(list)
    for kind in (EFFECT, SENT, WILL) if carried else ():
        for node, ref, *content in facts.rows(kind, *columns[:-1]):
            if (node, ref) in messages:
                published[node, ref].append(tuple(content))
    retained = {(node, ref) for node, ref in facts.rows(RETAINED, "node", "ref")} if carried else ()
    seen = set()
    for node, ref, topic, check, expires, session, at in carried:
        # A checkpoint may omit the publisher.
        repeated = (topic, check, expires, session or None)
        changed = any(_differs(repeated, one) for one in published.get((node, ref), ()))
        missing = (node, ref) not in published and (node, ref) not in retained
        if (node, at) in seen:
            continue
        if missing and _is_judged(logs[node], ref, at):
            seen.add((node, at))
            what = f"repeats message {format_position(ref)}, which did not exist"
            yield _of_topic(Violation(Rule.CHECKPOINT, at, what, node=node), topic)
        if changed:
            seen.add((node, at))
            what = f"repeats message {format_position(ref)} with different content"
            yield _of_topic(Violation(Rule.CHECKPOINT, at, what, node=node), topic)


def _is_judged(log: LogSummary, ref: Position, at: Position) -> bool:
    """Return whether a message that is repeated at a position must have been in the log before."""
    return ref >= log.complete and at < log.trusted


def _differs(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether values that are known of both differ."""
    return any(
        mine is not None and its is not None and mine != its
        for mine, its in zip(one, other, strict=True)
    )


def missing_repetitions(
    facts: LocalFacts, results: pa.Table, history: History, logs: Mapping[str, LogSummary]
) -> Iterator[Violation]:
    """Yield messages that are needed behind a cut and were not repeated.

    ``results`` are those of the sessions.
    """
    cuts = {
        node: {cut.at: cut.first for cut in log.cuts if log.whole <= cut.at < log.trusted}
        for node, log in logs.items()
    }
    if not any(cuts.values()):
        return
    needed: list[tuple[str, Position, str | None, Position]] = []
    for node, at, session, refs in _rows(results, NEEDED, "node", "at", "session", "refs"):
        needed += [(node, at, session, ref) for ref in refs]
    for (node, _), some in history.items():
        for cut, first in cuts[node].items():
            needed += [
                (node, cut, None, one.ref)
                for one in some
                if one.digest and one.at < cut < one.until and one.ref < first
            ]
    kept = set()
    for node, at, ref in facts.rows(CARRIED, "node", "at", "ref"):
        kept |= {(node, cut, ref) for cut, first in cuts[node].items() if first <= at < cut}
    for node, cut, session, ref in needed:
        if (node, cut, ref) not in kept:
            what = f"cuts off message {format_position(ref)}, which is still needed"
            yield Violation(Rule.CHECKPOINT, cut, what, session=session, node=node)


def double_owners(results: pa.Table) -> Iterator[Violation]:
    """Yield connections of a session to a node while it was connected to another one."""
    connections: dict[str, list[tuple[int, str, Position, int]]] = defaultdict(list)
    for node, session, at, refs in _rows(results, CONNECTED, "node", "session", "at", "refs"):
        if session != NATS_SESSION:
            connections[session].append((refs[0], node, at, refs[1]))
    for session, some in connections.items():
        # Connections to one node do not overlap: only the earlier one that ends last counts.
        last: tuple[int, str, Position] | None = None
        for begins, node, at, ends in sorted(some):
            if last is not None and last[1] != node and last[0] > begins + SKEW_MS:
                since = format_position(last[2])
                what = f"connected while it had a connection to node {last[1]}, since {since}"
                yield Violation(Rule.OWNERSHIP, at, what, session=session, node=node)
            mine = (ends, node, at)
            last = mine if last is None else max(last, mine)


def _rows(results: pa.Table, kind: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    found = results.filter(pc.equal(results.column("kind"), kind))
    return zip(*(found.column(name).to_pylist() for name in columns), strict=True)


def _of_topic(violation: Violation, topic: str) -> Violation:
    return violation._replace(what=f"{violation.what}: topic {shown(topic)}")
