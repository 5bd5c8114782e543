"""What a salvage makes of the records of a damaged store, without a NATS server."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from eventstore.format.records import decode_record
from eventstore.reading.damaged_log import Rescue
from eventstore.reading.salvage_plan import Plan, StoredLog
from eventstore.reading.stored_blocks import framed
from projections.past.salvage_needs import SalvageNeeds

SOURCE = "/old"
"""The damaged directory, as the new log names it."""


class _Written:
    """A log that is written to memory."""

    def __init__(self, begin: int) -> None:
        self.records: dict[int, bytes] = {}
        self.sequence = begin - 1

    async def append(self, data: bytes) -> None:
        self.sequence += 1
        self.records[self.sequence] = data

    async def check_end(self, link: bytes) -> None:
        assert decode_record(self.sequence, self.records[self.sequence]).link == link


def salvaged(
    folder: Path,
    records: Mapping[int, bytes],
    lost: Collection[int],
    mark: tuple[int, bytes] | None = None,
) -> dict[int, bytes]:
    """Return the records that a salvage makes of a store that lacks some records.

    ``mark`` are sequence and link of the last record that was noted as acknowledged.
    """
    file = folder / "damaged.blk"
    node = decode_record(*next(iter(records.items()))).node
    file.write_bytes(
        b"".join(
            framed(number, f"foldmq.log.{node}", data)
            for number, data in records.items()
            if number not in lost
        )
    )
    plan = Plan(StoredLog([file], node, lambda *_: None), mark)
    work = Rescue(plan, node, SOURCE, "1")
    work.fold(SalvageNeeds)
    log: Any = _Written(plan.begin)
    writing = work.write(log, lambda *_: None)
    try:
        writing.send(None)
    except StopIteration:
        return dict(log.records)
    raise AssertionError("a salvage to memory waits for nothing")
