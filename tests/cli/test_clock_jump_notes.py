"""Commands about a log whose clock jumped correct the times of states, or name the jumps."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.logs import BEGIN_MS, LogBuilder
from harness.plainaudit import audited_notes, checked_records

from cli.commands.verify_log import _verify
from eventstore.display import clock
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MessagePublished,
    Queued,
    SessionClosed,
    SessionOpened,
    Subscribed,
)
from eventstore.format.node_events import BrokerStopped, MessagesCarried
from eventstore.format.positions import Run, position
from eventstore.format.records import Record, decode_record
from eventstore.format.stored_properties import expiry_ms
from eventstore.reading.log_points import jump_notes
from eventstore.reading.log_source import LogSource
from projections.audit.log_verifier import LogVerifier
from projections.past.comparison import SESSION, Difference
from projections.past.divergence import Divergence, find_divergences
from projections.past.event_object import event_object
from projections.past.event_text import words
from projections.state.node_state import NodeState

DAY_MS = 86_400_000
ENDS = 1_800_000_000


class Source(SimpleNamespace):
    """A log in memory."""

    def __init__(self, log: LogBuilder) -> None:
        super().__init__(
            begin=1, first=1, last=log.last, noted=None, cut=None, unproven=None, live=False,
            without_mark=True, where="here", log=log,
        )  # fmt: skip

    async def some(self, sequences: Sequence[int]) -> list[Record]:
        return [decode_record(one, self.log.records[one - 1]) for one in sequences]

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        for record in await self.some(range(first, last + 1)):
            yield record

    async def stored(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        for sequence in range(first, last + 1):
            yield sequence, self.log.records[sequence - 1]


def as_log(log: LogBuilder) -> LogSource:
    return cast("LogSource", Source(log))


@pytest.mark.parametrize("jump_ms", [3 * DAY_MS, -3 * DAY_MS])
@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (ENDS, lambda jump_s: ENDS + jump_s),
        (0, lambda _: 0),
        ([0, ENDS, ENDS], lambda jump_s: [0, ENDS + jump_s, ENDS + jump_s]),
    ],
)
def test_expiries_in_json_are_times_of_the_clock(jump_ms: int, stored: Any, shown: Any) -> None:
    refs: list[Run] = [[position(1, 0), 3, 1]]
    events: list[Event] = [
        Queued("c", "#", 1, refs, 3, expires=stored),
        MessagesCarried(refs, ["t"], [], 1, 0, 3, expires=stored),
    ]
    for event in events:
        found = event_object(event, 0, BEGIN_MS, {}, None, jump_ms)
        assert found.get("expires", 0) == shown(jump_ms // 1000)
        assert event.expires == stored  # type: ignore[union-attr]
    said = words(Queued("c", "#", 1, refs, 3, expires=ENDS), {}, jump_ms)
    assert clock(expiry_ms(ENDS) + jump_ms) in said


@pytest.mark.parametrize("jump_ms", [3 * DAY_MS, -3 * DAY_MS])
def test_verify_shows_times_of_the_clock(jump_ms: int) -> None:
    log = LogBuilder()
    log.record(SessionOpened("c", resumed=False, clean=False, level=4))
    log.record(Subscribed("c", [("#", 1)]))
    log.jump(jump_ms)
    sent = log.record(MessagePublished("p", 1, False, ["t"], [], [1], 1, 0, 1), payloads=[b"x"])
    log.record(Queued("c", "#", 1, [log.at(sent)], 1, expires=ENDS))
    closed = log.record(SessionClosed("c", "disconnect"))
    node = NodeState()
    records = [decode_record(at, data) for at, data in enumerate(log.records, 1)]
    for record in records[:2]:
        node.apply_record(record)
    other = node.sessions.peek("c")
    difference = Difference("broker", SESSION, "c", position(closed + 1, 0), 1, 2)
    divergence = Divergence(difference, difference.bound, other)
    asyncio.run(find_divergences(as_log(log), [divergence], log.last))
    fields = {one.name: one for one in divergence.fields}
    assert fields["offline since"].log == [clock(records[-1].time_ms)]
    assert fields["offline since"].other == ["never"]
    (queue,) = fields["queued"].log
    assert queue.endswith(f"the first expires {clock(expiry_ms(ENDS) + jump_ms)}")


def test_log_verify_names_the_jumps(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogBuilder()
    log.record(BrokerStopped())
    first, second = log.jump(-DAY_MS), log.jump(2 * DAY_MS)
    log.record(BrokerStopped())
    verified = asyncio.run(_verify(as_log(log), "", as_json=False))
    assert verified.intact
    jumps = [(first, -DAY_MS), (second, 2 * DAY_MS)]
    assert verified.verifier.jumps == jumps
    (note,) = jump_notes(jumps)
    assert note.startswith(f"the clock jumped back by 1 d at record {first}, forward by 2 d at")
    assert note in capsys.readouterr().out.splitlines()
    asyncio.run(_verify(as_log(log), "", as_json=True))
    objects = f'"clock_jumps":[{{"record":{first},"ms":{-DAY_MS}}},{{"record":{second},"ms":'
    assert objects in capsys.readouterr().out.replace(" ", "")


def test_the_jumps_before_a_cut_are_none_of_the_log() -> None:
    log = LogBuilder()
    log.jump(DAY_MS)
    cut = log.record(BrokerStopped())
    verifier = LogVerifier(lambda *_: None, None, cut)
    verifier.take(cut, log.records[cut - 1])
    assert verifier.jumps == []


def test_the_audit_names_the_jumps_in_the_part_it_read() -> None:
    log = LogBuilder()
    log.record(BrokerStopped())
    first = log.jump(-DAY_MS)
    log.record(BrokerStopped())
    records = dict(enumerate(log.records, 1))
    jumped = [note for note in audited_notes("n1", checked_records(records)) if "clock" in note]
    assert jumped == [
        f"node n1: the clock jumped back by 1 d at record {first}: times are not continuous"
    ]
    before = {number: data for number, data in records.items() if number < first}
    assert not [note for note in audited_notes("n1", checked_records(before)) if "clock" in note]
