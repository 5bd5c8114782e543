"""The leaders of a cluster in the log: epochs rise by one, time does not go back."""

import pytest

from eventstore.format.event_parsing import Event
from eventstore.format.node_events import (
    BrokerStarted,
    BrokerStopped,
    CheckpointBegun,
    LeaderProved,
)
from eventstore.format.records import GENESIS, decode_record, encode_record
from projections.audit.log_verifier import EpochCheck


def leads(epoch: int) -> Event:
    return BrokerStarted("1", epoch=epoch, leader="n1" if epoch else "")


def found(*records: tuple[int, list[Event]], begin: int = 1) -> list[tuple[int, str]]:
    """Return what is wrong with records of these times and events."""
    problems: list[tuple[int, str]] = []
    check = EpochCheck(lambda sequence, what: problems.append((sequence, what)), begin)
    for sequence, (time_ms, events) in enumerate(records, begin):
        data = encode_record(
            previous=GENESIS, node="c1", time_ms=time_ms, events=events, payloads=[]
        )
        record = decode_record(sequence, data)
        check.take(record, record.events())
    return problems


@pytest.mark.parametrize(
    "records",
    [
        [(1, [leads(0)]), (2, [BrokerStopped()]), (1, [leads(0)])],
        [(1, [leads(1)]), (2, [LeaderProved(1)]), (2, [leads(2)]), (3, [leads(3)])],
        [(1, [leads(1)]), (1, [CheckpointBegun(1, epoch=1)]), (9, [LeaderProved(1)])],
    ],
)
def test_leaders_that_follow_each_other(records: list[tuple[int, list[Event]]]) -> None:
    assert found(*records) == []


@pytest.mark.parametrize(
    ("records", "sequence", "said"),
    [
        ([(1, [leads(2)])], 1, "epoch 2 follows epoch 0"),
        ([(1, [leads(1)]), (2, [leads(1)])], 2, "epoch 1 follows epoch 1"),
        ([(1, [leads(1)]), (2, [leads(3)])], 2, "epoch 3 follows epoch 1"),
        ([(1, [leads(1)]), (2, [leads(0)])], 2, "epoch 0 follows epoch 1"),
        ([(5, [leads(1)]), (2, [leads(2)])], 2, "is 3 ms before the record before it"),
        ([(1, [leads(1)]), (2, [LeaderProved(2)])], 2, "has epoch 2, but its leader has epoch 1"),
        (
            [(1, [leads(1)]), (2, [CheckpointBegun(1)])],
            2,
            "has epoch 0, but its leader has epoch 1",
        ),
    ],
)
def test_errors_are_reported_at_their_position(
    records: list[tuple[int, list[Event]]], sequence: int, said: str
) -> None:
    ((where, what),) = found(*records)
    assert where == sequence
    assert said in what


def test_a_log_that_was_cut_begins_with_any_epoch() -> None:
    cut = [(1, [CheckpointBegun(4, epoch=7)]), (2, [leads(8)])]
    assert found(*cut, begin=90) == []
    assert found((1, [leads(5)]), (2, [leads(6)]), begin=90) == []
    assert found((1, [CheckpointBegun(4, epoch=7)]), (2, [leads(9)]), begin=90) != []
