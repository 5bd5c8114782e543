"""``foldmq spark recovery-check``: checks the broker's state after its last start."""

import dataclasses
from collections.abc import Iterator

from cli.common import text
from cli.spark.claimed_states import (
    ClaimedStates,
    claims_of_brokers,
    no_claims,
    with_open_ends,
)
from cli.spark.job_runner import Job, run_job, write_result
from cli.spark.spark_flags import SparkFlags
from eventstore.format.positions import format_position
from projections.audit.audit_outcome import BrokerStart, NodeRecovery
from projections.log_proof import proof_object, spans_text, statement
from spark.jobs.recovery_job import RecoveryOutcome, recovery_check

_LISTED = 20
_KEPT = (
    ("sessions", "session", "sessions"),
    ("queued", "queued message", "queued messages"),
    ("inflight", "delivery in flight", "deliveries in flight"),
    ("releasing", "delivery without PUBCOMP", "deliveries without PUBCOMP"),
    ("inbound", "message without PUBREL", "messages without PUBREL"),
)
_SINCE = (
    ("connected", "connection ended", "connections ended"),
    ("clean", "clean session ended", "clean sessions ended"),
    ("wills", "will published", "wills published"),
    ("resumed", "session resumed", "sessions resumed"),
)


def run_recovery_check(flags: SparkFlags, *, alone: bool, as_json: bool) -> bool:
    """Check the last start of each log, print the result; return whether it is correct.

    Raises NoLiveBroker if the broker is to be compared and does not answer.
    """

    def work(job: Job, claims: ClaimedStates) -> RecoveryOutcome:
        with job.busy("checking the recovery") as tell:
            result = recovery_check(job.log, claims.rows, tell=tell)
        ends = tuple(map(statement, claims.ends.values()))
        return dataclasses.replace(result, notes=(*result.notes, *claims.notes, *ends))

    gather = with_open_ends(no_claims if alone else claims_of_brokers)
    outcome = run_job(flags, None, gather, work)
    if as_json:
        write_result(text.json_line(recovery_object(outcome)))
    else:
        for line in recovery_lines(outcome):
            write_result(line)
    return outcome.kept


def recovery_lines(outcome: RecoveryOutcome) -> Iterator[str]:
    """Yield the result as text, the verdict first."""
    wrong = sum(outcome.counts.values())
    if wrong:
        first = outcome.violations[0]
        yield (
            f"not recovered: {text.count_of(wrong, 'violation')}, the first at "
            f"{format_position(first.at)} of node {text.name(first.node)}"
        )
    else:
        yield f"recovered: the state matches the log{_extent(outcome)}"
    for violation in outcome.violations[:_LISTED]:
        whose = f" {text.name(violation.session)}" if violation.session is not None else ""
        where = f"{text.name(violation.node)} {format_position(violation.at)}{whose}"
        yield f"  {violation.rule}: {where}: {violation.what}"
    if wrong > _LISTED:
        yield f"  and {wrong - _LISTED:,} more"
    for node in outcome.nodes:
        yield from _start_lines(node)
        for doubt in node.doubts:
            yield f"  {statement(doubt)}"
    yield from outcome.notes
    for compared in outcome.compared:
        yield (
            f"compared with the broker of {text.name(compared.node)}: "
            f"{text.count_of(compared.sessions, 'session')} and "
            f"{text.count_of(compared.retained, 'retained message')}, as of "
            f"{format_position(compared.as_of)}"
        )


def _extent(outcome: RecoveryOutcome) -> str:
    """Return for which part of the logs the result holds."""
    parts = sum(len(node.doubts) for node in outcome.nodes)
    but = f"; nothing can be said about {text.count_of(parts, 'part')}" if parts else ""
    if len(outcome.nodes) != 1:
        return f", {text.count_of(len(outcome.nodes), 'log')}{but}"
    spans = spans_text(outcome.nodes[0].proven)
    return f", {spans}{but}" if spans else but


def _start_lines(node: NodeRecovery) -> Iterator[str]:
    if node.start is None:
        yield f"node {text.name(node.node)}: the log contains no start"
        return
    yield f"node {text.name(node.node)}: {_start(node.start)}"
    for title, figures in (("it had", _KEPT), ("since then", _SINCE)):
        counts = ((getattr(node, field), noun, many) for field, noun, many in figures)
        parts = (f"{count:,} {noun if count == 1 else many}" for count, noun, many in counts)
        yield f"  {title}: {', '.join(parts)}"


def _start(start: BrokerStart) -> str:
    how = " after a crash" if start.crashed else ""
    void = ", in the middle of a turn, which was discarded" if start.interrupted else ""
    at = format_position(start.at)
    return f"started at {at} on {text.clock(start.time_ms)}{how}{void}"


def recovery_object(outcome: RecoveryOutcome) -> dict[str, object]:
    """Return the result as a JSON object."""
    return {
        "recovered": outcome.kept,
        "violations": dict(outcome.counts),
        "listed": [
            {
                "rule": violation.rule,
                "node": violation.node,
                "position": format_position(violation.at),
                "session": violation.session,
                "what": violation.what,
            }
            for violation in outcome.violations
        ],
        "nodes": [_node_object(node) for node in outcome.nodes],
        "compared": [
            {
                "node": comparison.node,
                "sessions": comparison.sessions,
                "retained": comparison.retained,
                "as_of": format_position(comparison.as_of),
            }
            for comparison in outcome.compared
        ],
        "seconds": round(outcome.seconds, 3),
        "notes": list(outcome.notes),
    }


def _node_object(node: NodeRecovery) -> dict[str, object]:
    start = node.start
    start_object = None
    if start is not None:
        start_object = {
            "position": format_position(start.at),
            "time": text.iso(start.time_ms),
            "crashed": start.crashed,
            "interrupted": start.interrupted,
        }
    fields = {field: getattr(node, field) for field, *_ in (*_KEPT, *_SINCE)}
    return {
        "node": node.node,
        "start": start_object,
        **fields,
        **proof_object(node.proven, node.doubts),
    }
