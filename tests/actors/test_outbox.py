"""The outbox of the bridge: one task at a time reads the log."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from actors.bridge.outbox import Outbox

LAST = 4
"""The last record of the log."""


class StubbornLog:
    """A log whose reads lose a cancellation that arrives together with the answer."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.reads: list[tuple[int, int]] = []
        self.lost = 0

    async def read(self, first: int, last: int) -> AsyncIterator[Any]:
        self.reads.append((first, last))
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.lost += 1
        for sequence in range(first, last + 1):
            yield SimpleNamespace(sequence=sequence, part=0, last=True)


def outbox_of(log: StubbornLog) -> Outbox:
    node: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0),
        journal=SimpleNamespace(last=LAST << 20, last_complete_turn=LAST, end=LAST),
        log=log,
        retention=SimpleNamespace(cuts_suspended=contextlib.nullcontext),
        state=SimpleNamespace(begin=1),
    )
    options: Any = SimpleNamespace(prefixes=False)
    flows: Any = SimpleNamespace(flush=lambda: True)

    def failed(error: BaseException) -> None:
        raise error

    return Outbox(node, options, flows, lambda _leaving: None, lambda: True, failed)


def note_sent(outbox: Outbox) -> list[int]:
    """The sequences of the records that are sent, from now on."""
    sent: list[int] = []

    async def send(record: Any, _through: int) -> None:
        sent.append(record.sequence)
        outbox.last = (record.sequence + 1 << 20) - 1

    outbox._send_record = send  # type: ignore[method-assign]
    return sent


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_an_outbox_that_is_stopped_during_a_read_does_not_continue() -> None:
    async def run() -> None:
        log = StubbornLog()
        outbox = outbox_of(log)
        sent = note_sent(outbox)
        outbox.catch_up(1 << 20, grace=3.0)
        await _turns(3)
        outbox.stop()
        await _turns(10)
        assert (log.reads, log.lost, sent) == ([(1, LAST)], 1, [])
        assert outbox.behind
        assert not outbox.takes((LAST + 1) << 20)

    asyncio.run(run())


def test_an_outbox_that_catches_up_again_reads_once() -> None:
    async def run() -> None:
        log = StubbornLog()
        outbox = outbox_of(log)
        sent = note_sent(outbox)
        outbox.catch_up(1 << 20)
        await _turns(3)
        outbox.catch_up(1 << 20)
        await _turns(3)
        log.answer.set()
        assert outbox._task is not None
        await outbox._task
        assert len(log.reads) == 2
        assert sent == list(range(1, LAST + 1))

    asyncio.run(run())
