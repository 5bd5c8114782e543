"""The position from which the whole state of a node is known from its log.

A log that was cut begins with a checkpoint, which repeats the state: the state is known from its
``CheckpointCompleted`` on, and everything repeated before it counts. See
``projections.state.node_state``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.display import name as shown
from eventstore.errors import CorruptLog, CutOff
from eventstore.format.node_events import CheckpointCompleted
from eventstore.format.positions import Position, position
from eventstore.format.turn_parts import TurnAssembler
from spark.runtime.marked_errors import name_log_in_errors
from spark.tables.discovery import find_logs
from spark.tables.log import Log
from spark.tables.node_names import nodes_of
from spark.tables.options import SourceOptions
from spark.tables.planning import plan_log
from spark.tables.point_options import PointOption
from spark.tables.record_frames import record_opener
from spark.tables.stored_log import StoredLog


@dataclass(frozen=True)
class StateStarts:
    """The beginnings of the logs of some nodes."""

    whole: Mapping[str, Position] = field(default_factory=dict)
    """By node, for logs that were cut: the position from which on the state is known."""

    def of(self, node: str) -> Position:
        """Return the position from which the state of a node is known; 0: its first record."""
        return self.whole.get(node, 0)

    def repeated(self) -> Column:
        """Return a column: whether a row is before the position from which the state is known."""
        if not self.whole:
            return F.lit(False)
        places = chain.from_iterable((F.lit(node), F.lit(at)) for node, at in self.whole.items())
        known_from = F.create_map(*places)[F.col("node")]
        return F.coalesce(F.col("position") < known_from, F.lit(False))


def state_starts(log: Log) -> StateStarts:
    """Return the beginnings of logs. Reads the beginnings of cut logs in this process.

    Raises CutOff if a log, or the selected part of it, ends before its state is known, and
    SparkFailure if it never is, or a record is damaged.
    """
    options = replace(SourceOptions.read(log.options), start=PointOption())
    whole: dict[str, Position] = {}
    logs = [stored for stored in find_logs(options) if stored.last >= stored.first]
    nodes = nodes_of(logs)
    for stored in logs:
        if stored.first > 1:
            node = nodes[stored.stream]
            with name_log_in_errors(stored.stream):
                whole[node], end = _known_from(stored)
            _check_until(stored, node, whole[node], end, options)
    return StateStarts(whole)


def _known_from(stored: StoredLog) -> tuple[Position, int]:
    """Return the position where the first checkpoint in a log is complete, and its turn."""
    begin = position(stored.first, 0)
    open_record = record_opener([CheckpointCompleted.__name__], None)
    turns = TurnAssembler()
    for sequence, data in stored.read(stored.first, stored.last):
        for record in turns.take(open_record(sequence, data))[1]:
            for index, event in record.events():
                if isinstance(event, CheckpointCompleted) and event.begun >= begin:
                    return position(record.sequence, index), sequence
    raise CorruptLog(stored.first - 1, "is missing, and no complete checkpoint follows it")


def _check_until(
    stored: StoredLog, node: str, known_from: Position, end: int, options: SourceOptions
) -> None:
    """Raise CutOff if a log is read only up to before the ``end`` of the turn at ``known_from``."""
    part = plan_log(stored, options, options.pushed)
    if part is None or part.last < end or (part.until is not None and part.until < known_from):
        raise CutOff(
            f"the state of node {shown(node)} cannot be known there: its log begins with record "
            f"{stored.first}, what was before that was cut off; states can be rebuilt from record "
            f"{end} on"
        )
