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
                "rule": entry.rule,
                "node": entry.node,
                "at": entry.at,
                "session": entry.session,
                "what": entry.what,
                "position": format_position(entry.at),
                "next": complete(findings.next_step(entry, several=several)),
            }
            for entry in outcome.violations
        ],
        "compared": [
            {**asdict(entry), "position": format_position(entry.as_of)}
            for entry in outcome.compared
        ],
        "latencies": [asdict(entry) for entry in outcome.latencies],
        "slowest": [asdict(entry) for entry in outcome.slowest],
        "drops": [asdict(entry) for entry in outcome.drops],
        "interval_ms": outcome.interval_ms,
        "rates": [asdict(entry) for entry in outcome.rates],
    }
