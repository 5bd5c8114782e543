"""The records that ``foldmq salvage`` gave up in a log, for readers that do not fold all of it."""

from eventstore.format.node_events import LogSalvaged
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.log_source import LogSource
from projections.log_proof import Doubt, LogProof


async def lost_records(source: LogSource, last: int) -> list[Doubt]:
    """Return the parts of a log up to a record that were given up, in order.

    Raises as :meth:`LogSource.records`.
    """
    proof = LogProof()
    listed = read_listed(source, lambda index: index.rare("LogSalvaged"), source.begin, last)
    async for record in listed:
        if any(raw["e"] == "LogSalvaged" for raw in record.raw_events[:1]):
            for _, event in record.events():
                if isinstance(event, LogSalvaged):
                    proof.take(event, record.sequence, record.time_ms)
    return proof.doubts
