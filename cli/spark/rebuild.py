"""``foldmq spark rebuild``: rebuilds the broker's state from the log."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Row

from cli.common import text
from cli.common.tables import Column
from cli.logs.point_resolution import parse_point
from cli.spark.job_runner import Job, nothing, run_job
from cli.spark.output import as_of, output_target, write_rows
from cli.spark.spark_flags import RebuildFlags, SparkFlags
from eventstore.format.positions import format_position
from spark.jobs.jobs import rebuild

_PAYLOAD_LIMIT = 40


@dataclass(frozen=True, slots=True)
class _StateView:
    """The output format of a projection."""

    noun: str
    order: Sequence[str]
    columns: Sequence[Column[Row]]


def _plain(title: str, field: str = "", *, right: bool = False, wide: bool = False) -> Column[Row]:
    key = field or title
    return Column(title, lambda row: row[key], right=right, wide=wide)


def _name(title: str) -> Column[Row]:
    return Column(title, lambda row: row[title], name=True)


def _size(title: str, field: str) -> Column[Row]:
    return Column(
        title, lambda row: None if row[field] is None else text.size(row[field]), right=True
    )


def _position(title: str, field: str) -> Column[Row]:
    return Column(title, lambda row: format_position(row[field]), right=True)


def _payload(row: Row) -> str | None:
    payload = row["payload"]
    return None if payload is None else text.payload_text(payload, _PAYLOAD_LIMIT)


def _since(row: Row) -> str | None:
    return None if row["since"] is None else text.clock(row["since"])


def _yes(title: str, field: str) -> Column[Row]:
    return Column(title, lambda row: "yes" if row[field] else "no")


_NODE = _plain("node", wide=True)
_SESSION, _TOPIC, _FILTER = _name("session"), _name("topic"), _name("filter")
_QOS = _plain("qos", right=True)
_SINCE = Column("since", _since, wide=True)
_PAYLOAD: Column[Row] = Column("payload", _payload, ready=True)

_VIEWS = {
    "sessions": _StateView(
        "session",
        ("node", "session"),
        (
            _NODE,
            _SESSION,
            Column("state", lambda row: "connected" if row["connected"] else "away"),
            _yes("clean", "clean"),
            Column("subscriptions", lambda row: len(row["subscriptions"]), right=True),
            Column("in flight", lambda row: row["inflight"] + row["releasing"], right=True),
            _plain("inbound", right=True),
            _plain("queued", right=True),
            _size("bytes", "queued_bytes"),
        ),
    ),
    "retained": _StateView(
        "retained message",
        ("node", "topic"),
        (
            _NODE,
            _TOPIC,
            _QOS,
            _position("position", "ref"),
            _size("size", "size"),
            _PAYLOAD,
        ),
    ),
    "pending": _StateView(
        "packet identifier",
        ("node", "session", "direction", "packet_id"),
        (
            _NODE,
            _SESSION,
            _plain("direction"),
            _plain("packet", "packet_id", right=True),
            _plain("state"),
            _QOS,
            _position("message", "ref"),
            _SINCE,
            _FILTER,
        ),
    ),
    "queues": _StateView(
        "queue",
        ("node", "session", "filter"),
        (
            _NODE,
            _SESSION,
            _FILTER,
            _QOS,
            _plain("queued", right=True),
            _size("bytes", "queued_bytes"),
            _position("oldest", "oldest"),
            _SINCE,
        ),
    ),
    "wills": _StateView(
        "will",
        ("node", "session"),
        (_NODE, _SESSION, _TOPIC, _QOS, _yes("retain", "retain"), _PAYLOAD),
    ),
}


def run_rebuild(flags: SparkFlags, what: str, options: RebuildFlags) -> None:
    """Rebuild one of the projections and write it.

    Raises UsageError for invalid flags, CutOff for a deleted moment.
    """
    view = _VIEWS[what]
    to = output_target(options.output, options.format, options.limit)
    moment = None if options.at is None else parse_point(options.at)

    def work(job: Job, _nothing: None) -> None:
        with job.busy("reading the log"):
            log = job.log.pinned()
            frame = rebuild(log, what)
        write_rows(job, frame, to, view.order, view.columns, view.noun, as_of(log))

    run_job(flags, moment, nothing, work)
