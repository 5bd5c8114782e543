"""The report of an audit as JSON."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from eventstore.display import iso
from eventstore.format.positions import format_position
from projections.audit.audit_outcome import Outcome
from projections.log_proof import proof_object
from spark.report import findings


def audit_json(outcome: Outcome, complete: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the report as JSON values; names are as the clients chose them.

    Positions are given as text (``position``) and packed (``at``), times in milliseconds since 1970
    and in ISO 8601. ``complete`` adds the flags that select the log to a command.
    """
    several = len(outcome.nodes) > 1
    return {
        "kept": outcome.kept,
        "seconds": round(outcome.seconds, 3),
        "notes": list(outcome.notes),
        "nodes": [
            {
                **{key: value for key, value in asdict(node).items() if key != "doubts"},
                "begins": iso(node.begins_ms) if node.records else None,
                "ends": iso(node.ends_ms) if node.records else None,
                **proof_object(node.proven, node.doubts),
            }
            for node in outcome.nodes
        ],
        "rules": [{**asdict(rule), "promise": rule.rule.promise} for rule in outcome.rules],
        "violations": [
            {
                "rule": one.rule,
                "node": one.node,
                "at": one.at,
                "session": one.session,
                "what": one.what,
                "position": format_position(one.at),
                "next": complete(findings.next_step(one, several=several)),
            }
            for one in outcome.violations
        ],
        "compared": [
            {**asdict(one), "position": format_position(one.as_of)} for one in outcome.compared
        ],
        "latencies": [asdict(one) for one in outcome.latencies],
        "slowest": [asdict(one) for one in outcome.slowest],
        "drops": [asdict(one) for one in outcome.drops],
        "interval_ms": outcome.interval_ms,
        "rates": [asdict(one) for one in outcome.rates],
    }
