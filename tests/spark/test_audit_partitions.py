"""The rules of the audit in logs whose shared subscriptions have members in several logs."""

import pytest
from harness.plainaudit import audit_plainly, checked_records
from simulation.partition_shares import run
from simulation.partitions import PartitionWorld


@pytest.mark.parametrize("seed", range(3))
def test_no_rule_is_broken_where_members_are_in_other_logs(seed: int) -> None:
    worlds: list[PartitionWorld] = []
    run(seed, worlds.extend)
    assert len(worlds) > 1
    for world in worlds:
        assert audit_plainly(world.name, checked_records(world.disk.stream.history)) == []
