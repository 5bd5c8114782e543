"""Rates and percentiles between two replies to ``status``, and the statuses of several logs as one.

Everything is computed from the broker's own counters and clock. After a restart of the broker the
counters begin at 0 again; then there are no rates.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

from cli.commands.status import added_up
from cli.common import text
from cli.logs.log_brokers import LogBrokers

_TOTALS = {
    "bytes_in": ("bytes", "in"),
    "bytes_out": ("bytes", "out"),
    "packets_in": ("packets", "in"),
    "packets_out": ("packets", "out"),
    "accepted": ("connections", "accepted"),
    "records": ("log", "records"),
    "events": ("log", "events"),
    "log_bytes": ("log", "bytes"),
    "turns": ("kernel", "turns"),
    "handled": ("kernel", "handled"),
    "cpu": ("process", "cpu_s"),
}
"""The path in a status to the counter of a rate."""
_IDENTITY = ("node", "pid", "started_ms")
"""The fields of a status that another run of the broker has otherwise."""
_TOPICS = 50
"""Topics of a status, as a broker sends them."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in seconds; ``inf`` is beyond the histogram."""

    p50: float
    p90: float
    p99: float
    count: int
    """Number of values."""


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second between two moments."""

    seconds: float
    """Seconds between the moments."""
    messages_in: tuple[float, ...]
    """By QoS: 0, 1, 2."""
    messages_out: tuple[float, ...]
    bytes_in: float
    bytes_out: float
    packets_in: float
    packets_out: float
    accepted: float
    """Connections."""
    records: float
    """Written to the log."""
    events: float
    log_bytes: float
    turns: float
    handled: float
    """Messages handled by actors."""
    cpu: float
    """Processor seconds: 1 is one core."""
    dropped: dict[str, float]
    """Messages by reason, only reasons above 0."""
    commit: Percentiles | None
    """Time until records were on disk; None: there were no records."""
    lag: Percentiles | None
    """Delay of the event loop."""


def between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Rates | None:
    """Return the rates between two replies to ``status``.

    None if no time passed, or if the broker was restarted.
    """
    return between_all([(before, after)])


def between_all(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Rates | None:
    """Return the rates of several brokers together, of pairs of replies from the same broker.

    Those of a broker that was restarted are not known, and not included; None if none are known.
    """
    usable: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    total: Counter[tuple[str, str]] = Counter()
    for before, after in pairs:
        rises = _rises(before, after)
        if rises is not None:
            usable.append((before, after))
            total.update(rises)
    if not usable:
        return None
    return Rates(
        max(_seconds(*pair) for pair in usable),
        messages_in=tuple(total["in", str(qos)] for qos in range(3)),
        messages_out=tuple(total["out", str(qos)] for qos in range(3)),
        dropped={name: rate for (kind, name), rate in total.items() if kind == "dropped" and rate},
        commit=_percentiles_of(usable, "commit"),
        lag=_percentiles_of(usable, "lag"),
        **{name: total["total", name] for name in _TOTALS},
    )


def _seconds(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    return float(after["time_ms"] - before["time_ms"]) / 1000


def _rises(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[tuple[str, str], float] | None:
    """Return the rises of all counters per second; None if no time passed, or they were reset."""
    seconds = _seconds(before, after)
    if seconds <= 0 or any(before[key] != after[key] for key in _IDENTITY):
        return None
    pairs = {
        ("total", name): (_total(before, *key), _total(after, *key))
        for name, key in _TOTALS.items()
    }
    for way in ("in", "out"):
        for qos, counts in enumerate(
            zip(before["messages"][way], after["messages"][way], strict=True)
        ):
            pairs[way, str(qos)] = counts
    for reason, count in after["dropped"].items():
        pairs["dropped", reason] = before["dropped"].get(reason, 0), count
    if any(new < old for old, new in pairs.values()):
        return None
    return {key: (new - old) / seconds for key, (old, new) in pairs.items()}


def difference(before: Sequence[int], after: Sequence[int]) -> list[int] | None:
    """Return the increase of the counts of a histogram; None if they were reset."""
    if len(before) != len(after):
        return None
    added = [new - old for old, new in zip(before, after, strict=True)]
    return None if any(count < 0 for count in added) else added


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the quantile ``share`` (0 to 1) of the values, ``inf`` if unknown.

    ``counts[i]`` is for values in ``(bounds[i - 1], bounds[i]]``, the last one for all above;
    within two bounds an even distribution is assumed. There must be values.
    """
    rank = share * sum(counts)
    below = 0
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * max(0.0, rank - below) / count
        below += count
    return math.inf


def _percentiles_of(
    pairs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str
) -> Percentiles | None:
    """Return the percentiles of the values between all pairs that have the same histogram."""
    bounds: Sequence[float] | None = None
    total: list[int] = []
    for before, after in ((before.get(name), after.get(name)) for before, after in pairs):
        if before is None or after is None or before["bounds"] != after["bounds"]:
            continue
        added = difference(before["counts"], after["counts"])
        if added is None or bounds not in (None, after["bounds"]):
            continue
        bounds = after["bounds"]
        total = [old + new for old, new in zip(total, added, strict=True)] if total else added
    if bounds is None or not any(total):
        return None
    p50, p90, p99 = (percentile(bounds, total, share) for share in (0.5, 0.9, 0.99))
    return Percentiles(p50, p90, p99, sum(total))


def waiting(status: Mapping[str, Any]) -> float:
    """Return the number of messages queued or in flight."""
    census = status.get("census") or {}
    return float(census.get("queued", 0) + census.get("in_flight", 0))


def totals_of_logs(
    statuses: Mapping[str, Any], before: Mapping[str, Any], brokers: LogBrokers | None
) -> tuple[dict[str, Any], Rates | None, list[dict[str, Any]]]:
    """Return status and rates for the replies of all logs, and a row for each of several logs.

    ``statuses`` and ``before`` are these and the previous replies by node; ``brokers`` were asked.
    """
    pairs = {node: (before[node], status) for node, status in statuses.items() if node in before}
    rates = between_all(list(pairs.values()))
    if brokers is None or not brokers.several:
        (status,) = statuses.values()
        return status, rates, []
    each = {node: between(*pair) for node, pair in pairs.items()}
    rows = [
        {"log": node, "status": statuses.get(node), "rates": each.get(node)}
        for node in brokers.nodes  # also those that do not answer
    ]
    return status_of_logs(statuses, brokers), rates, rows


def status_of_logs(statuses: Mapping[str, Any], brokers: LogBrokers) -> dict[str, Any]:
    """Return one status for those of several logs: figures added up, problems with their log."""
    each = list(statuses.values())
    total = added_up(each)
    for part in ("connections", "sessions"):
        limit = total[part]["limit"]
        # The clients are divided evenly.
        total[part]["limit"] = limit and limit * len(each)
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
        "time_ms": max(status["time_ms"] for status in each),
        "trouble": trouble,
        "ready": total["ready"] and not brokers.absent,
        **({"topics": _busiest(each)} if "topics" in each[0] else {}),
    }


def _busiest(statuses: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the busiest topics of all logs; a log counts what its own clients publish."""
    topics: Counter[str] = Counter()
    for status in statuses:
        topics.update(dict(status["topics"]))
    return [(topic, round(rate, 1)) for topic, rate in topics.most_common(_TOPICS)]


def _total(status: Mapping[str, Any], group: str, key: str) -> float:
    # A recovering broker has no log yet.
    return float((status.get(group) or {}).get(key, 0))
