"""The recorded messages of the bridge: from memory, or from the log when they are not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.bridge import recorded_messages as module
from actors.bridge.recorded_messages import RecordedMessages
from actors.bridge.to_nats import OutgoingMessages
from eventstore.format.events import MessagePublished
from eventstore.format.positions import position
from eventstore.format.records import Record, decode_record, encode_record
from eventstore.log.message_store import MessageStore, StoredMessages
from projections.state.destinations import Destinations


class Broker:
    """A broker around the messages; each record has one message, whose payload is its sequence."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.destinations = Destinations()
        self.destinations.bridged(position(1, 0) - 1)
        self.sent: list[int] = []
        self.has_room = True
        self.reads: list[tuple[int, int]] = []
        self.gate: list[bytes] = []
        self.failures: list[BaseException] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.lost_cancellations = 0
        self.journal = SimpleNamespace(
            last=position(last, 0),
            last_complete_turn=last,
            send_when_durable=lambda _sink, data: self.gate.append(data),
        )
        node: Any = SimpleNamespace(
            clock=SimpleNamespace(
                monotonic=lambda: 0.0, stopwatch=lambda: 0.0, time_ms=lambda: 1000
            ),
            journal=self.journal,
            log=self,
            messages=MessageStore(1 << 20),
            retention=SimpleNamespace(cuts_suspended=contextlib.nullcontext),
            state=SimpleNamespace(begin=1, destinations=self.destinations),
        )
        options: Any = SimpleNamespace(prefixes={})
        flows: Any = SimpleNamespace(flush=lambda: True, oldest=lambda: None)
        self.recorded = RecordedMessages(
            *(node, options, flows, self._send, lambda: self.has_room, lambda _client: ""),
            self.failures.append,
        )

    def _send(self, leaving: OutgoingMessages) -> None:
        self.sent += map(int, leaving.content.payloads)

    async def read(self, first: int, last: int) -> AsyncIterator[Record]:
        self.reads.append((first, last))
        try:
            await self.answers.wait()
        except asyncio.CancelledError:  # as nats-py does when the answer arrives together with it
            self.lost_cancellations += 1
        for sequence in range(first, last + 1):
            payload = b"%d" % sequence
            event = MessagePublished("c", 1, False, ["a"], [], [1], len(payload), 0, 1)
            data = encode_record(
                previous=bytes(32), node="n", time_ms=1, events=[event], payloads=[payload]
            )
            yield decode_record(sequence, data)

    def publish(self) -> None:
        """Append a record, and hand its message over."""
        self.last += 1
        payload = b"%d" % self.last
        at = self.journal.last = position(self.last, 0)
        content = StoredMessages(at, [b"a"], [payload], len(payload), publishers=("c",))
        self.recorded.add(1, content, range(at, at + 1), at)

    def commit(self) -> None:
        """All records are on disk."""
        self.journal.last_complete_turn = self.last
        gate, self.gate = self.gate, []
        if gate:
            self.recorded.write(b"".join(gate))


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not reached():  # noqa: ASYNC110 - it is reached by a task
            await asyncio.sleep(0.01)


async def test_new_messages_come_from_memory() -> None:
    broker = Broker()
    broker.recorded.start()
    await _turns()
    broker.publish()
    broker.publish()
    assert broker.sent == []
    broker.commit()
    assert (broker.sent, broker.reads, broker.recorded.behind) == ([1, 2], [], False)
    assert broker.recorded.settled() == position(2, 0)


@pytest.mark.parametrize("bound", ["_MOST_WAITING", "_MOST_WAITING_BYTES"])
async def test_what_memory_has_no_room_for_is_read_from_the_log(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, bound, 2)
    broker = Broker()
    broker.recorded.start()
    await _turns()
    for _ in range(5):
        broker.publish()
    broker.commit()
    await _until(lambda: not broker.recorded.behind)
    assert broker.sent == [1, 2, 3, 4, 5]
    assert broker.reads[0][0] == 1
    broker.publish()
    broker.commit()
    assert broker.sent[-1] == 6


async def test_nats_that_has_no_room_gets_each_message_once_later() -> None:
    broker = Broker()
    broker.recorded.start()
    await _turns()
    broker.has_room = False
    for _ in range(3):
        broker.publish()
        broker.commit()
    await _turns()
    assert (broker.sent, broker.recorded.behind) == ([], True)
    broker.has_room = True
    await _until(lambda: not broker.recorded.behind)
    assert (broker.sent, broker.reads) == ([1, 2, 3], [])


@pytest.mark.parametrize("behind", [False, True])
async def test_a_paused_bridge_sends_nothing_until_it_goes_on(behind: bool) -> None:
    broker = Broker(last=3 if behind else 0)
    broker.destinations["nats"].paused = True
    broker.recorded.start()
    await _turns()
    broker.publish()
    broker.commit()
    await _turns()
    assert broker.sent == []
    broker.destinations["nats"].paused = False
    await _until(lambda: not broker.recorded.behind)
    assert broker.sent == [*range(1, broker.last + 1)]


async def test_messages_that_an_operator_skipped_are_not_sent() -> None:
    broker = Broker(last=5)
    broker.destinations["nats"].paused = True
    broker.recorded.start()
    await _turns()
    broker.destinations["nats"].through = position(4, 0) - 1
    broker.destinations["nats"].paused = False
    await _until(lambda: not broker.recorded.behind)
    assert broker.sent == [4, 5]


async def _stopped_during_a_read(broker: Broker) -> None:
    broker.recorded.stop()
    await _turns()
    assert (broker.sent, broker.lost_cancellations) == ([], 1)
    broker.publish()
    broker.commit()
    assert broker.sent == []
    assert broker.recorded.behind


async def _started_again(broker: Broker) -> None:
    broker.recorded.start()
    await _turns()
    broker.answers.set()
    await _until(lambda: not broker.recorded.behind)
    assert len(broker.reads) == 2
    assert broker.sent == [1, 2, 3, 4]


@pytest.mark.parametrize("then", [_stopped_during_a_read, _started_again])
async def test_one_task_at_a_time_reads_the_log(then: Callable[[Broker], Awaitable[None]]) -> None:
    broker = Broker(last=4)
    broker.answers.clear()
    broker.recorded.start()
    await _turns(3)
    await then(broker)
    assert broker.failures == []
