"""Reading records: a reader that is cancelled, and one whose connection is lost."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from eventstore.log.record_reader import read_stored
from eventstore.nats.jetstream import END_OF_BATCH, Arrivals


def test_a_cancellation_that_arrives_together_with_a_message_is_not_lost() -> None:
    async def run() -> None:
        arrivals: Arrivals[Any] = Arrivals("FOLDMQ_LOG_n")
        task = asyncio.create_task(arrivals.next())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        arrivals.add(object())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


class Interrupted:
    """A client whose connection is lost during its first request, with some of the replies."""

    jsm_prefix = "$JS.API"

    def __init__(self, lost: range, last: int) -> None:
        self.stats = {"reconnects": 0}
        self.requests: list[int] = []
        self._lost, self._last = lost, last
        self._inboxes: dict[str, Any] = {}

    def new_inbox(self) -> str:
        return f"inbox{len(self._inboxes)}"

    async def subscribe(self, subject: str, cb: Any, **_limits: int) -> Any:
        self._inboxes[subject] = cb

        async def unsubscribe() -> None:
            return

        return SimpleNamespace(subject=subject, unsubscribe=unsubscribe)

    async def publish(self, _subject: str, body: bytes, reply: str) -> None:
        first, keep = orjson.loads(body)["seq"], self._inboxes[reply]
        self.requests.append(first)
        for sequence in range(first, self._last + 1):
            if len(self.requests) == 1 and sequence in self._lost:
                self.stats["reconnects"] = 1
            else:
                headers = {"Nats-Sequence": str(sequence)}
                await keep(SimpleNamespace(headers=headers, data=b"%d" % sequence))
        await keep(SimpleNamespace(headers={"Status": END_OF_BATCH}, data=b""))


@pytest.mark.parametrize("lost", [range(20, 49), range(1, 5), range(60, 61)])
def test_replies_lost_with_a_connection_are_requested_again(lost: range) -> None:
    async def run() -> None:
        client: Any = Interrupted(lost, 60)
        found = [one async for one in read_stored(client, "FOLDMQ_LOG_n", 1, 60)]
        assert found == [(sequence, b"%d" % sequence) for sequence in range(1, 61)]
        assert len(client.requests) == 2

    asyncio.run(run())
