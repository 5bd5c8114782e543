"""The records at a time, in logs whose clock jumped."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from harness.logs import LogBuilder

from eventstore.format.node_events import BrokerStopped
from eventstore.format.records import Record, decode_record
from eventstore.reading.log_points import all_until, clock_spans, last_until
from eventstore.reading.log_source import LogSource


class MemorySource:
    """The records of a log, from ``begin`` on."""

    def __init__(self, log: LogBuilder, begin: int) -> None:
        self.begin, self.last = begin, log.last
        self.found = {at: decode_record(at, data) for at, data in enumerate(log.records, 1)}

    async def some(self, sequences: Sequence[int]) -> list[Record]:
        assert min(sequences) >= self.begin
        return [self.found[one] for one in sequences]


def source_of(jumps: Sequence[int], begin: int = 1) -> LogSource:
    """A log with some records before, between and after jumps of its clock."""
    log = LogBuilder(step_ms=100)
    for jump_ms in (0, *jumps):
        if jump_ms:
            log.jump(jump_ms)
        for _ in range(9):
            log.record(BrokerStopped())
    return cast("Any", MemorySource(log, begin))


@pytest.mark.parametrize("begin", [1, 4, 9])
@pytest.mark.parametrize(
    "jumps", [(), (-350,), (5000,), (-350, -350), (5000, -5200), (-9000, 9000), (-350, 700, -900)]
)
async def test_the_records_at_a_time_are_those_of_a_scan(
    jumps: tuple[int, ...], begin: int
) -> None:
    source = source_of(jumps, begin)
    records = await source.some(range(begin, source.last + 1))
    times = [one.time_ms for one in records]
    for time_ms in range(min(times) - 100, max(times) + 200, 50):
        later = [at for at, one in enumerate(times, begin) if one > time_ms]
        assert await last_until(source, time_ms) == (later[0] - 1 if later else source.last)
        earlier = [at for at, one in enumerate(times, begin) if one <= time_ms]
        assert await all_until(source, time_ms) == (earlier[-1] if earlier else begin - 1)


async def test_a_jump_back_does_not_change_what_a_time_meant_before() -> None:
    before, after = source_of(()), source_of((-800,))
    middle = (await before.some([3]))[0].time_ms
    assert await last_until(before, middle) == await last_until(after, middle) == 3
    assert await all_until(after, middle) == 11


async def test_the_spans_between_jumps() -> None:
    spans = await clock_spans(source_of((5000, -5200)))
    assert [(one.first, one.last, one.jump_ms) for one in spans] == [
        (1, 9, 0),
        (10, 19, 5000),
        (20, 29, -5200),
    ]
