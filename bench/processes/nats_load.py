"""A fast NATS client that receives or sends messages and prints its rate.

    python -m bench.processes.nats_load take URL SUBJECT COUNT
    python -m bench.processes.nats_load send URL SUBJECT COUNT RATE

``take`` prints "ready" when it is subscribed. The last line is a JSON object: messages,
seconds (from the first to the last), cpu_s.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable

import uvloop

from eventstore.nats.batch_client import BatchClient, encode_pub
from eventstore.nats.batch_transport import NatsMessage
from eventstore.nats.connection import ConnectionOptions

TIMEOUT = 5.0
"""Seconds without a message after which the run ends."""
PAYLOAD = bytes(64)
MAX_UNSENT = 8 * 1024 * 1024


def nothing() -> None:
    """Do nothing."""


async def connect(url: str, on_messages: Callable[[list[NatsMessage]], None]) -> BatchClient:
    options = ConnectionOptions(urls=(url,))
    return await BatchClient.open(options, on_messages=on_messages, on_up=nothing, on_down=nothing)


async def take(url: str, subject: str, count: int) -> dict[str, float]:
    taken = 0
    first = last = 0.0

    def arrived(messages: list[NatsMessage]) -> None:
        nonlocal taken, first, last
        last = time.perf_counter()
        first = first if taken else last
        taken += len(messages)

    link = await connect(url, arrived)
    link.subscribe(subject.encode())
    ready = asyncio.Event()
    link.fence(ready.set)
    await ready.wait()
    print("ready", flush=True)
    idle_since, seen = time.perf_counter(), 0
    while taken < count and time.perf_counter() - idle_since < TIMEOUT * (1 if seen else 6):
        if taken > seen:
            idle_since, seen = time.perf_counter(), taken
        await asyncio.sleep(0.05)
    await link.close()
    return {"messages": taken, "seconds": last - first}


async def send(url: str, subject: str, count: int, rate: float) -> dict[str, float]:
    link = await connect(url, lambda _messages: None)
    line = encode_pub(subject.encode(), PAYLOAD)
    begun, sent = time.perf_counter(), 0
    while sent < count:
        due = min(count, int((time.perf_counter() - begun) * rate))
        if due > sent and link.unsent < MAX_UNSENT:
            link.write(line * (due - sent))
            sent = due
        await asyncio.sleep(0.001)
    done = asyncio.Event()
    link.fence(done.set)
    await done.wait()
    await link.close()
    return {"messages": sent, "seconds": time.perf_counter() - begun}


def main(how: str, url: str, subject: str, count: str, rate: str = "0") -> None:
    work = take(url, subject, int(count))
    if how == "send":
        work.close()
        work = send(url, subject, int(count), float(rate))
    result = uvloop.run(work)
    print(json.dumps({**result, "cpu_s": time.process_time()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
