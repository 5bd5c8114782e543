"""The metrics of the destinations of the outbox, whose names come from settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from eventstore.metric_types import Kind, Metric, Numbers


def _metric(name: str, meaning: str, value: Callable[[Mapping[str, Any]], float]) -> Metric:
    kind: Kind = "counter" if name.endswith("_total") else "gauge"

    def read(rows: Sequence[Mapping[str, Any]]) -> Numbers:
        return {(row["name"],): value(row) for row in rows}

    return Metric(f"foldmq_outbox_{name}", kind, meaning, "destinations", ("to",), read)


DESTINATION_METRICS: Final = (
    _metric(
        "up",
        "1 while a destination of the outbox takes messages.",
        lambda row: float(row["state"] == "sending"),
    ),
    _metric(
        "behind_seconds",
        "Age of the oldest message that a destination does not have yet; 0: it has all.",
        lambda row: row["behind_ms"] / 1000,
    ),
    _metric(
        "behind_records",
        "Records of the log behind the cursor of a destination.",
        lambda row: row["records_behind"],
    ),
    _metric(
        "sent_messages_total",
        "Messages stored by a destination since the process of the outbox started.",
        lambda row: row["sent"] or 0,
    ),
    _metric(
        "refused_messages",
        "Messages that a destination refused and does not have.",
        lambda row: row["refused"],
    ),
    _metric(
        "lost_ranges_total",
        "Ranges of the log that were not sent to a destination.",
        lambda row: row["losses"],
    ),
    _metric(
        "retries_total",
        "Batches to a destination that were sent again.",
        lambda row: row["retries"] or 0,
    ),
    _metric(
        "batch_seconds",
        "Duration of the last batch to a destination.",
        lambda row: row["batch_seconds"] or 0.0,
    ),
)
