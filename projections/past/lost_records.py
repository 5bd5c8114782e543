"""The records that ``foldmq salvage`` gave up in a log, for readers that do not fold all of it."""

from collections.abc import Mapping, Sequence

from eventstore.display import log_prefix
from eventstore.errors import naming_log
from eventstore.format.node_events import LogSalvaged
from eventstore.format.records import Record
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from projections.log_proof import Doubt, LogProof, lost_before_cut, statement


async def lost_records(source: LogSource, end: int, first: int = 0) -> list[Doubt]:
    """Return the parts of a log up to a record that were given up, in order.

    ``first``: only those that end with that record or behind it. What the source has read already
    is not read again. Raises as :meth:`LogSource.records`.
    """
    first = max(first, source.begin)
    salvages = await _salvages_between(source, first, end)
    if (ended := await salvage_around(source, end)) is not None:
        salvages[ended.sequence] = ended
    proof = LogProof()
    for sequence in sorted(salvages):
        take_salvages(proof, salvages[sequence])
    return proof.doubts


def lost_before(source: LogSource) -> list[Doubt]:
    """Return what was given up of the records that were cut off since."""
    return lost_before_cut(source.cut.event.lost) if source.cut is not None else []


def take_salvages(proof: LogProof, record: Record) -> None:
    """Fold the salvage with which a record begins, if it does."""
    if is_salvage(record):
        for _, event in record.events():
            if isinstance(event, LogSalvaged):
                proof.take(event, record.sequence, record.time_ms)


def is_salvage(record: Record) -> bool:
    """Return whether a record says that those before it were given up."""
    return any(raw["e"] == "LogSalvaged" for raw in record.raw_events[:1])


async def _salvages_between(source: LogSource, first: int, last: int) -> dict[int, Record]:
    seen = source.seen
    low, high = max(first, seen.first), min(last, seen.last)
    parts = [(first, last)] if high < low else [(first, low - 1), (high + 1, last)]
    salvages = {at: record for at, record in seen.salvages.items() if low <= at <= high}
    for begin, end in parts:
        async for record in read_listed(source, _salvages, begin, end):
            if is_salvage(record):
                salvages[record.sequence] = record
    return salvages


def _salvages(index: LogIndex) -> Sequence[int]:
    return index.rare("LogSalvaged")


async def salvage_around(source: LogSource, sequence: int) -> Record | None:
    """Return the record about a salvage that gave up a record; None: it was not given up.

    Raises as :meth:`LogSource.records`.
    """
    if not source.begin <= sequence < source.last:
        return None
    if any(each.raw_events for each in await source.some([sequence]) if each.sequence == sequence):
        return None
    async for record in source.records(sequence + 1, source.last):
        if record.raw_events:  # records that were given up have none
            return record if is_salvage(record) else None
    return None


async def lost_in(
    logs: Mapping[str, LogSource], starts: Mapping[str, LogPoint], ends: Mapping[str, LogPoint]
) -> list[str]:
    """Return what cannot be said of parts of logs, because records were given up there.

    Raises as :meth:`LogSource.records`.
    """
    notes = []
    for log, source in logs.items():
        first, until = starts[log].sequence, min(ends[log].sequence, source.last)
        if first <= until:
            with naming_log(log):
                doubts = await lost_records(source, until, first)
            notes += [log_prefix(log) + statement(doubt) for doubt in doubts]
    return notes
