"""The rules of the audit in logs whose shared subscriptions have members in several logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.plainaudit import audit_plainly
from simulation.partition_shares import run
from simulation.partitions import PartitionWorld

from eventstore.format import TurnAssembler, decode_record
from spark.storage import CheckedRecord


def checked(world: PartitionWorld) -> Iterator[CheckedRecord]:
    """Yield the records of a log, those that were cut off too."""
    history = sorted(world.disk.stream.history.items())
    records = [decode_record(at, data) for at, data in history]
    turns = TurnAssembler()
    whole = {part.sequence for record in records for part in turns.take(record)[1]}
    for one in records:
        yield CheckedRecord(one.sequence, b"", one, void=one.sequence not in whole)


@pytest.mark.parametrize("seed", range(3))
def test_no_rule_is_broken_where_members_are_in_other_logs(seed: int) -> None:
    worlds: list[PartitionWorld] = []
    run(seed, worlds.extend)
    assert len(worlds) > 1
    for world in worlds:
        assert audit_plainly(world.name, checked(world)) == []
