"""A log has the same rows, audit and fold in format 1, in format 2, and in any mix of both."""

import random
from functools import cache
from typing import Any

import pytest
from foldedlogs import simulated_records
from harness.plainaudit import violations
from simulation.fold import compare_states, fold

from eventstore.format.records import GENESIS, Record, decode_record, encode_record, link_of
from spark.tables.columns import Columns
from spark.tables.decoder import Decoder
from spark.tables.record_frames import record_opener
from spark.tables.row_filter import RowFilter

SEED = 11


@cache
def written() -> list[bytes]:
    """What a broker wrote under random clients, from its first record on."""
    return simulated_records(SEED)[0]


def rewritten(chance: random.Random, formats: tuple[int, ...]) -> list[bytes]:
    """The same records in other formats."""
    log, link = [], GENESIS
    for sequence, data in enumerate(written(), 1):
        record = decode_record(sequence, data, whole_turns=True)
        events: Any = record.raw_events
        log.append(
            encode_record(
                previous=link,
                node=record.node,
                time_ms=record.time_ms,
                events=events,
                payloads=[bytes(record.payload)],
                part=record.part,
                last=record.last,
                jumps=record.jumps,
                destinations=[(1, sequence)] if chance.random() < 0.2 else [],
                record_format=chance.choice(formats),
            )
        )
        link = link_of(log[-1])
    return log


def rows(log: list[bytes], grain: str) -> list[dict[str, Any]]:
    decoder = Decoder(Columns.of(grain), RowFilter())
    opened = record_opener(None, None, whole_turns=decoder.whole_turns)
    return [
        row
        for start in range(0, len(log), 50)
        for batch in decoder.batches(
            [opened(*each) for each in enumerate(log[start : start + 50], start + 1)]
        )
        for row in batch.to_pylist()
    ]


def records(log: list[bytes]) -> list[Record]:
    return [decode_record(*one) for one in enumerate(log, 1)]


@pytest.mark.parametrize("formats", [(1,), (2,), (1, 2)], ids=["one", "two", "mix"])
def test_a_log_means_the_same_in_any_format(formats: tuple[int, ...]) -> None:
    log = rewritten(random.Random(SEED), formats)
    assert {data[3] for data in log} == set(formats)
    for grain in ("events", "entries"):
        assert rows(log, grain) == rows(written(), grain) != []
    compare_states(fold(records(log)), fold(records(written())))
    assert violations(records(log)) == violations(records(written()))


def test_records_without_wanted_events_are_left_out_in_any_format() -> None:
    log = rewritten(random.Random(SEED), (1, 2))
    opened = record_opener({"WillArmed"}, None)
    found = [opened(*one).raw_events for one in enumerate(log, 1)]
    wanted = [
        one.raw_events if any(raw["e"] == "WillArmed" for raw in one.raw_events) else []
        for one in records(written())
    ]
    assert [some for some, kept in zip(found, wanted, strict=True) if kept] == list(
        filter(None, wanted)
    )
    assert 0 < sum(map(bool, found)) < len(log)
