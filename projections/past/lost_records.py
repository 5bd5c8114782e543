"""The records that ``foldmq salvage`` gave up in a log, for readers that do not fold all of it."""

from eventstore.format.node_events import LogSalvaged
from eventstore.format.records import decode_record, mentions
from eventstore.reading.log_source import LogSource
from projections.log_proof import Doubt, LogProof

_WORDS = (b'"LogSalvaged"',)


async def lost_records(source: LogSource, last: int) -> list[Doubt]:
    """Return the parts of a log up to a record that were given up, in order.

    Of the records that are not indexed, only those with such an event are decoded. Raises
    CorruptLog or CutMeanwhile for one that cannot be read.
    """
    index, begin = source.index, source.begin
    records = []
    ranges = [(begin, last)]
    if not index.empty:
        ranges = [(begin, min(index.first - 1, last)), (max(begin, index.last + 1), last)]
        listed = [one for one in index.rare("LogSalvaged") if begin <= one <= last]
        records = await source.some(listed) if listed else []
    for first, end in ranges:
        if first <= end:
            async for sequence, data in source.stored(first, end):
                if mentions(data, _WORDS):
                    records.append(decode_record(sequence, data))
    proof = LogProof()
    for record in sorted(records, key=lambda record: record.sequence):
        for _, event in record.events():
            if isinstance(event, LogSalvaged):
                proof.take(event, record.sequence, record.time_ms)
    return proof.doubts
