"""The statuses of several logs as one, and as rows of a table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cli.commands.status_totals import added_up
from cli.common import text
from cli.top.rates import between, between_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.logs.log_brokers import LogBrokers
    from cli.top.columns import Row
    from cli.top.rates import Rates

_TOPICS = 50
"""Topics of a status, as a broker sends them."""


def totals_of_logs(
    statuses: Mapping[str, Any], before: Mapping[str, Any], brokers: LogBrokers | None
) -> tuple[dict[str, Any], Rates | None, list[Row]]:
    """Return status and rates for the replies of all logs, and a row for each of several logs.

    ``statuses`` and ``before`` are these and the previous replies by node; ``brokers`` were asked.
    """
    pairs = {node: (before[node], status) for node, status in statuses.items() if node in before}
    rates = between_all(list(pairs.values()))
    if brokers is None or not brokers.several:
        (status,) = statuses.values()
        return status, rates, []
    each = {node: between(*pair) for node, pair in pairs.items()}
    return status_of_logs(statuses, brokers), rates, log_rows(statuses, each, brokers)


def status_of_logs(statuses: Mapping[str, Any], brokers: LogBrokers) -> dict[str, Any]:
    """Return one status for those of several logs: figures added up, problems with their log."""
    found = list(statuses.values())
    total = added_up(found)
    for part in ("connections", "sessions"):
        limit = total[part]["limit"]
        # The clients are divided evenly.
        total[part]["limit"] = limit and limit * len(found)
    trouble = [
        f"log {text.name(node)} does not answer, and is not included: {why}"
        for node, why in brokers.absent.items()
    ]
    for node, status in statuses.items():
        reasons = list(status["trouble"])
        outage = (status["log"] or {}).get("trouble")
        if outage and not any(outage in reason for reason in reasons):
            reasons.append(outage)
        trouble += [f"log {text.name(node)}: {reason}" for reason in reasons]
    return {
        **total,
        "node": brokers.owner,
        "time_ms": max(status["time_ms"] for status in found),
        "trouble": trouble,
        "ready": total["ready"] and not brokers.absent,
        **({"topics": _busiest(found)} if "topics" in found[0] else {}),
    }


def _busiest(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the busiest topics of all logs; a log counts what its own clients publish."""
    topics: Counter[str] = Counter()
    for status in found:
        topics.update(dict(status["topics"]))
    return [(topic, round(rate, 1)) for topic, rate in topics.most_common(_TOPICS)]


def log_rows(
    statuses: Mapping[str, Any], rates: Mapping[str, Rates | None], brokers: LogBrokers
) -> list[Row]:
    """Return a row for each log, also for one whose broker does not answer."""
    return [
        {"log": node, "status": statuses.get(node), "rates": rates.get(node)}
        for node in brokers.nodes
    ]
