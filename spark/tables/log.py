"""``Log``: the tables of one or several logs, for jobs and notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format.event_parsing import UnreadableEvent, entries
from eventstore.format.positions import MAX_INDEX, Position, format_position, position, sequence_of
from eventstore.format.records import decode_record
from spark.runtime.session import set_shuffle_partitions
from spark.tables.discovery import find_logs
from spark.tables.node_names import nodes_of
from spark.tables.options import SourceOptions
from spark.tables.planning import plan_ranges, shuffle_partitions
from spark.tables.stored_log import RecordRange, open_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The bounds of a log."""

    stream: str
    begins: int
    """Sequence of the first existing record: more than 1 if the log was cut."""
    ends: int
    """Sequence of the last existing record."""
    first: int
    """Sequence of the first record to read."""
    last: int
    """Sequence of the last record to read."""
    whole: bool
    """Whether that record is read to its end."""


@dataclass(frozen=True)
class Log:
    """One or several logs: the options of the source, without ``rows`` and ``columns``.

    ``session`` is that of Spark, or returns it: then it is called when Spark is needed.
    """

    session: SparkSession | Callable[[], SparkSession] = field(repr=False)
    options: Mapping[str, str] = field(repr=False)

    @property
    def spark(self) -> SparkSession:
        """The session of Spark."""
        return self.session() if callable(self.session) else self.session

    def entries(self, *columns: str) -> DataFrame:
        """Return a row for each position."""
        return self._table("entries", columns)

    def events(self, *columns: str) -> DataFrame:
        """Return a row for each event."""
        return self._table("events", columns)

    def records(self, *columns: str) -> DataFrame:
        """Return a row for each record."""
        return self._table("records", columns)

    def until(self, moment: str | int) -> Log:
        """Return the log up to a position (``12``, ``12.3``) or an ISO time, both included."""
        return self.having(until=str(moment))

    def since(self, moment: str | int) -> Log:
        """Return the log from a position or an ISO time, included."""
        return self.having(**{"from": str(moment)})

    def only(
        self, *, types: Iterable[str] | None = None, sessions: Iterable[str] | None = None
    ) -> Log:
        """Return the log restricted to events of some types and sessions; None: all.

        Unlike a filter of a query, this does not read the rest. (Spark 4.3 can push filters into
        the source as well, but then one DataFrame must not be used twice: see docs/spark.md.)
        """
        names = {"types": types, "sessions": sessions}
        chosen = {name: json.dumps(list(few)) for name, few in names.items() if few is not None}
        return self.having(**chosen)

    def to_its_end(self) -> Log:
        """Return the log without the end that :meth:`until` set."""
        kept = {name: value for name, value in self.options.items() if name.lower() != "until"}
        return replace(self, options=kept)

    def having(self, **options: str) -> Log:
        """Return the log with other options; ``stream`` replaces ``node``."""
        kept = {
            name: value
            for name, value in self.options.items()
            if name.lower() != "node" or "stream" not in options
        }
        return replace(self, options={**kept, **options})

    def pinned(self) -> Log:
        """Return the log with a fixed end: its current one, if it has no ``until``.

        An event takes effect as a whole: a position within it is moved to its last entry. Raises
        NoLog, NatsUnavailable and others, as planning does.
        """
        ends = {part.stored.stream: format_position(_end_of(part)) for part in self.ranges()}
        if not ends:
            return self
        return self.having(until=json.dumps(ends), stream=",".join(ends))

    def ranges(self) -> list[RecordRange]:
        """Return the current range to read of each log; empty logs are left out."""
        options = SourceOptions.read(self.options)
        return plan_ranges(find_logs(options), options, options.pushed)

    def fit_shuffles(self, ranges: Iterable[RecordRange] | None = None) -> int:
        """Set the session's number of shuffle partitions by the size of the log; return it.

        A number that the operator has set stays. Spark's own default, 200, makes thousands of tasks
        for a log of a few records. ``ranges`` are those of the log, if they are known.
        """
        cores = self.spark.sparkContext.defaultParallelism
        parts = self.ranges() if ranges is None else ranges
        return set_shuffle_partitions(self.spark, shuffle_partitions(parts, cores))

    def bounds(self) -> dict[str, LogBounds]:
        """Return the bounds of each node's log as of now, by the node's name.

        Logs without records are omitted. No job of Spark is run. Raises as :meth:`pinned`, and
        BadOption when two logs are of one node.
        """
        ranges = self.ranges()
        nodes = nodes_of(part.stored for part in ranges)
        return {
            nodes[part.stored.stream]: LogBounds(
                part.stored.stream,
                part.stored.first,
                part.stored.last,
                part.first,
                part.last,
                whole=part.until is None,
            )
            for part in ranges
        }

    def _table(self, rows: str, columns: tuple[str, ...]) -> DataFrame:
        from spark.tables.source import register  # not before: it needs PySpark

        register(self.spark)
        options = {**self.options, "rows": rows}
        if columns:
            options["columns"] = ",".join(columns)
        return self.spark.read.format("foldmq").options(**options).load()


def _end_of(part: RecordRange) -> Position:
    """Return the last position of a range: the last one of the event that contains ``until``."""
    until = part.until
    if until is None:
        return position(part.last, MAX_INDEX)
    if sequence_of(until) != part.last:
        return until
    end = until
    # If this record cannot be read, the job that reads it reports that.
    with (
        open_records(part.stored, part.last, part.last) as records,
        suppress(CorruptLog, UnknownLogFormat, UnreadableEvent),
    ):
        for sequence, data in records:
            for index, event in decode_record(sequence, data).events():
                first = position(sequence, index)
                if first <= until:
                    end = max(until, first + entries(event) - 1)
    return end
