"""Writes a log of any size into a NATS stream, as a broker would have: valid, and fast.

    python -m bench.logs.log_generator --nats URL --entries 5000000 --flavour single

The same arguments give the same log, byte for byte. Flavours:

single  every event is about one message; 100 to 500 of them are in a record, as under load
bulk    events of up to 1,000 messages in records of thousands of entries
mixed   1 to 40 messages at once; turns of several records, crashes with unfinished turns,
        operators that kick clients and clear retained messages
"""

import argparse
import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.logs.fleet import FLAVOURS, Draft, Flavour
from bench.logs.traffic import Traffic
from eventstore.errors import EventStoreError
from eventstore.format.records import GENESIS, encode_record, link_of
from eventstore.nats.connection import ConnectionOptions, connect
from eventstore.nats.log_stream import ensure_stream
from protocol.errors import FoldmqError

BEGAN_MS = 1_780_000_000_000
"""Default time of the first record."""
CLIENTS = 1000
RATE = 20_000
_UNANSWERED = 32 * 1024 * 1024
"""Maximum bytes in flight to the server."""
_STALLED = 60.0  # seconds to wait for an answer of the server
_SPLIT = 0.1
"""The share of turns that are spread over two records, in logs with crashes."""


class LoggenError(FoldmqError):
    """A log that cannot be written; the message is for the user."""


@dataclass
class Written:
    """The contents of a log, void records included."""

    records: int = 0
    entries: int = 0
    """Without those of unfinished turns."""
    events: int = 0
    bytes: int = 0
    link: str = ""
    """Link of the last record."""
    ends_ms: int = 0


@dataclass(frozen=True)
class Plan:
    """A log to be written."""

    entries: int
    flavour: str = "single"
    seed: int = 1
    clients: int = CLIENTS
    node: str = "bench"
    began_ms: int = BEGAN_MS
    rate: int = RATE
    """Entries per second of the log's time."""


def records(plan: Plan, written: Written) -> Iterator[bytes]:
    """Yield the records of a log of ``plan.entries`` entries or a few more; count them."""
    flavour = FLAVOURS[plan.flavour]
    traffic = Traffic(flavour, plan.seed, plan.clients, plan.began_ms, plan.rate)
    previous = GENESIS

    def encoded(draft: Draft, part: int = 0, *, last: bool = True) -> bytes:
        nonlocal previous
        data = encode_record(
            previous=previous,
            node=plan.node,
            time_ms=traffic.time_ms,
            events=draft.events,
            payloads=draft.payloads,
            part=part,
            last=last,
        )
        previous = link_of(data)
        written.records += 1
        written.bytes += len(data)
        written.link = previous.hex()
        written.ends_ms = traffic.time_ms
        return data

    for draft, part, last, counts in _drafts(plan, flavour, traffic, written):
        if counts:
            written.entries += draft.entries
            written.events += len(draft.events)
        yield encoded(draft, part, last=last)


def _drafts(
    plan: Plan, flavour: Flavour, traffic: Traffic, written: Written
) -> Iterator[tuple[Draft, int, bool, bool]]:
    """Yield each record: its events, its part, whether it is the last, whether it counts."""
    chance = random.Random(plan.seed + 1)
    crashes = [
        plan.entries * number // (flavour.crashes + 1) for number in range(1, flavour.crashes + 1)
    ]
    sequence = 1
    draft = Draft(sequence)
    traffic.start(draft)
    part = 0
    while True:
        yield draft, part, (last := part > 0 or not _splits(flavour, chance)), True
        part = 0 if last else 1
        left = plan.entries - written.entries
        if left <= 0 and last:
            return
        sequence += 1
        if crashes and last and written.entries >= crashes[0]:
            crashes.pop(0)
            void = Draft(sequence)
            traffic.unfinished(void)
            yield void, 0, False, False
            sequence += 1
            draft = Draft(sequence)
            traffic.crash(draft)
            continue
        draft = Draft(sequence)
        traffic.tick(draft, max(1, min(left, chance.randint(*flavour.record))))


def _splits(flavour: Flavour, chance: random.Random) -> bool:
    return flavour.crashes > 0 and chance.random() < _SPLIT


class Appender:
    """Appends records to a stream without waiting for each; the bytes in flight are limited."""

    def __init__(self, client: Client, stream: str, subject: str) -> None:
        self._client = client
        self._stream = stream
        self._subject = subject
        self._inbox = client.new_inbox()
        self._sequence = 0
        self._sizes: dict[int, int] = {}
        self._unanswered = 0
        self._answered = asyncio.Event()
        self._problem = ""

    async def start(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_answer)

    async def append(self, data: bytes) -> None:
        """Send a record; raises LoggenError if the server refused one."""
        self._sequence += 1
        self._sizes[self._sequence] = len(data)
        self._unanswered += len(data)
        await self._client.publish(
            self._subject,
            data,
            reply=f"{self._inbox}.{self._sequence}",
            headers={"Nats-Expected-Last-Sequence": str(self._sequence - 1)},
        )
        if self._unanswered > _UNANSWERED:
            await self._until(_UNANSWERED // 2)

    async def finish(self) -> None:
        """Wait until all records are stored."""
        await self._until(0)

    async def _until(self, bound: int) -> None:
        while self._unanswered > bound and not self._problem:
            self._answered.clear()
            try:
                await asyncio.wait_for(self._answered.wait(), _STALLED)
            except TimeoutError:
                self._problem = "no answer"
        if self._problem:
            raise LoggenError(f"stream {self._stream}: {self._problem}")

    async def _on_answer(self, message: Msg) -> None:
        answer = json.loads(message.data) if message.data else {"error": {"description": "none"}}
        sequence = int(message.subject.rpartition(".")[2])
        if "error" in answer:
            self._problem = f"record {sequence} refused: {answer['error'].get('description')}"
        self._unanswered -= self._sizes.pop(sequence, 0)
        self._answered.set()


async def write_log(options: ConnectionOptions, plan: Plan) -> Written:
    """Create the stream of ``plan.node`` as its broker would, and fill it.

    Raises LoggenError when it holds something, EventStoreError when NATS is not as it must be.
    """
    stream, subject = f"FOLDMQ_LOG_{plan.node}", f"foldmq.log.{plan.node}"
    client = await connect(options)
    try:
        state = await ensure_stream(client, stream, [subject])
        if state.last_seq:
            raise LoggenError(f"stream {stream} holds {state.last_seq} records: take another node")
        appender = Appender(client, stream, subject)
        await appender.start()
        written = Written()
        for data in records(plan, written):
            if len(data) + 1024 > client.max_payload:
                raise LoggenError(
                    f"a record has {len(data):,} bytes, the server takes {client.max_payload:,}: "
                    "raise its max_payload"
                )
            await appender.append(data)
        await appender.finish()
        return written
    finally:
        await client.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nats", required=True, metavar="URL", help="the server, with JetStream")
    parser.add_argument("--entries", type=int, default=1_000_000, help="how many (1000000)")
    parser.add_argument("--flavour", choices=FLAVOURS, default="single", help="(single)")
    parser.add_argument("--seed", type=int, default=1, help="another number, another log (1)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"clients ({CLIENTS})")
    parser.add_argument("--node", default="bench", help="the log's node id (bench)")
    parser.add_argument("--began", type=int, default=BEGAN_MS, metavar="MS", help="Unix time")
    parser.add_argument("--rate", type=int, default=RATE, help=f"entries a second ({RATE})")
    parser.add_argument("--user", help="user of the NATS server")
    parser.add_argument("--password", help="their password")
    options = parser.parse_args()
    if options.entries < 1 or options.clients < 5 or options.rate < 1:
        parser.error("at least 1 entry, 5 clients and 1 entry a second")
    return options


def main() -> None:
    options = parse_arguments()
    plan = Plan(
        options.entries,
        options.flavour,
        options.seed,
        options.clients,
        options.node,
        options.began,
        options.rate,
    )
    where = ConnectionOptions(
        urls=(options.nats,), user=options.user, password=options.password, name="log_generator"
    )
    started = time.monotonic()
    gc.disable()  # no reference cycles are created here
    try:
        written = asyncio.run(write_log(where, plan))
    except (LoggenError, EventStoreError) as error:
        sys.exit(f"log_generator: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    seconds = time.monotonic() - started
    print(json.dumps({**asdict(written), "seconds": round(seconds, 2)}))


if __name__ == "__main__":
    main()
