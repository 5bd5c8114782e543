"""Reads logs into facts: ranges of records, checked and scanned once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from eventstore.errors import CorruptLog
from eventstore.format.records import decode_record
from projections.audit.fact_buffer import FactChunk
from projections.audit.histogram import MIN_MS, interval_ms
from projections.audit.local_facts import reduce_collections
from spark.runtime.marked_errors import name_log_in_errors
from spark.tables.discovery import find_logs
from spark.tables.node_names import nodes_of
from spark.tables.options import FAILFAST, PERMISSIVE, SourceOptions
from spark.tables.planning import RecordTimes, group_ranges, plan_ranges, split_ranges
from spark.tables.row_filter import PushedFilters
from spark.tables.stored_log import RecordRange

_NOT_OURS: Final = frozenset({"rows", "columns", "from", "types", "sessions", "mode", "pushdown"})


def read_facts(options: Mapping[str, str], *, strict: bool) -> Iterator[FactChunk]:
    """Yield the facts of the logs that options of the source name, up to ``until``.

    Options that exclude earlier records are ignored. Raises the errors of reading a log; damage is
    one only if ``strict``.
    """
    chosen = SourceOptions.read({**fact_options(options, strict=strict), "partitions": "1"})
    for part in chain.from_iterable(plan_facts(chosen)):
        yield from facts_in(part)


def whole_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a log without those that leave out a part of it before its end."""
    return {name: value for name, value in options.items() if name.lower() not in _NOT_OURS}


def fact_options(options: Mapping[str, str], *, strict: bool) -> dict[str, str]:
    """Return the options for the facts of whole logs; ``strict``: damage is an error."""
    return {**whole_options(options), "mode": FAILFAST if strict else PERMISSIVE}


@dataclass(frozen=True, slots=True)
class FactRange:
    """A range of a log, and the values common to all ranges of that log."""

    range: RecordRange
    node: str
    """The node that wrote the log."""
    interval_ms: int
    """Minimum length of the intervals in which events are counted."""
    strict: bool = False
    """Whether damage is an error."""


def plan_facts(options: SourceOptions) -> list[list[FactRange]]:
    """Return the ranges that each task reads: large logs in parts, small ones together."""
    ranges = plan_ranges(find_logs(options), options, PushedFilters())
    nodes = nodes_of(part.stored for part in ranges)
    pieces = split_ranges(ranges, options.partitions)
    large = {piece.stored.stream for piece in pieces if piece.first > piece.stored.first}
    lengths = {
        part.stored.stream: _interval_ms(part) for part in ranges if part.stored.stream in large
    }
    strict = options.mode == FAILFAST
    return [
        [
            FactRange(
                piece,
                nodes[piece.stored.stream],
                lengths.get(piece.stored.stream, MIN_MS),
                strict,
            )
            for piece in group
        ]
        for group in group_ranges(pieces, options.partitions)
    ]


def _interval_ms(records: RecordRange) -> int:
    """Return the interval length for a log that is read in parts.

    It keeps the number of intervals of all parts together small.
    """
    times = RecordTimes(records.stored)
    try:
        return interval_ms(times.of(records.first), times.of(records.last))
    except CorruptLog:  # reported by the task that reads it
        return MIN_MS


def facts_in(part: FactRange) -> Iterator[FactChunk]:
    """Yield the facts of a range."""
    from projections.audit.fact_scan import FactScan  # not to plan: it takes long to import
    from spark.tables.record_checks import RecordChecker

    stored = part.range.stored
    with name_log_in_errors(stored.stream), reduce_collections():
        scan = FactScan(part.node, part.range.until, part.interval_ms, strict=part.strict)
        for record in RecordChecker(part.range, decode_record, strict=part.strict).records():
            scan.take(record)
            yield from scan.facts.full()
        yield from scan.finish()
