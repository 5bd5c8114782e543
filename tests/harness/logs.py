"""Hand-made logs: valid records of any events, stored in a stream as a broker does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.node_events import ClockJumped
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, NO_JUMPS, ClockJumps, encode_record, link_of
from eventstore.format.sealing import SALT_BYTES, SealedPart
from eventstore.nats.log_stream import ensure_stream
from harness.nats import Nats

BEGIN_MS = 1_700_000_000_000
"""Time of the first record, unless a test says otherwise."""


class LogBuilder:
    """The log of a node, written record by record; each continues the one before.

    Its records have both formats in turn, as in a log that was begun by an older foldmq.

    Each record is `step_ms` later than the one before unless its time is given.
    """

    def __init__(self, node: str = "n1", begin_ms: int = BEGIN_MS, step_ms: int = 10) -> None:
        self.node = node
        self.stream = f"FOLDMQ_LOG_{node}"
        """Where it is stored; a copy may be called otherwise."""
        self.records: list[bytes] = []
        self.time_ms = begin_ms
        self._step_ms = step_ms
        self._link = GENESIS
        self._jumps = NO_JUMPS
        self._stored = 0

    @property
    def last(self) -> int:
        """Sequence of the last record."""
        return len(self.records)

    def record(
        self,
        *events: Event | dict[str, Any],
        payloads: Sequence[bytes] = (),
        time_ms: int | None = None,
        part: int = 0,
        last: bool = True,
        sealed: Sequence[SealedPart] = (),
        jumps: ClockJumps | None = None,
    ) -> int:
        """Append a record; returns its sequence. An event may be the JSON object of one."""
        self._jumps = jumps or self._jumps
        if time_ms is not None:
            self.time_ms = time_ms
        elif self.records:
            self.time_ms += self._step_ms
        data = encode_record(
            previous=self._link,
            node=self.node,
            time_ms=self.time_ms,
            events=events,  # type: ignore[arg-type]
            payloads=payloads,
            part=part,
            last=last,
            jumps=self._jumps,
            record_format=1 + len(self.records) % 2,
            sealed=sealed,
            salt=bytes(SALT_BYTES),
        )
        self._link = link_of(data)
        self.records.append(data)
        return len(self.records)

    def jump(self, ms: int, seen: str = "running") -> int:
        """Append a record with a jump of the clock, whose time has it; returns its sequence."""
        event = ClockJumped(ms, seen, self._jumps.record)
        self._jumps = ClockJumps(self._jumps.total_ms + ms, self.last + 1)
        return self.record(event, time_ms=self.time_ms + self._step_ms + ms)

    def turn(self, *parts: Sequence[Event | dict[str, Any]], whole: bool = True) -> list[int]:
        """Append a turn in several records; `whole` False leaves its last one out: it is void."""
        stored = parts if whole else parts[:-1]
        return [
            self.record(*events, part=number, last=number == len(parts) - 1)
            for number, events in enumerate(stored)
        ]

    def raw(self, data: bytes) -> int:
        """Append bytes that need not be a record; the chain continues from the previous one."""
        self.records.append(data)
        return len(self.records)

    def at(self, sequence: int, index: int = 0) -> int:
        """The position of an entry."""
        return position(sequence, index)

    def damage(self, sequence: int, byte: int = -1) -> None:
        """Change a byte of a record that is not stored yet; the chain stays that of the log."""
        data = bytearray(self.records[sequence - 1])
        data[byte] ^= 1
        self.records[sequence - 1] = bytes(data)

    def store(self, server: Nats) -> LogBuilder:
        """Store the records that are not stored yet."""
        records = self.records[self._stored :]
        subject = f"foldmq.log.{self.node}"

        async def publish(client: Any) -> None:
            await ensure_stream(client, self.stream, [subject])
            for start in range(0, len(records), 256):
                *before, last = records[start : start + 256]
                for data in before:
                    await client.publish(subject, data)
                # What is stored in order is all stored when the last one is acknowledged.
                reply = await client.request(subject, last, timeout=60)
            if records:
                assert orjson.loads(reply.data)["seq"] == len(self.records)

        server.do(publish)
        self._stored = len(self.records)
        return self

    def cut(self, server: Nats, first: int) -> None:
        """Remove the records before one from the stream, as a broker does that cuts its log."""
        server.api(f"STREAM.PURGE.{self.stream}", {"seq": first})

    def lose(self, server: Nats, sequences: Iterable[int]) -> None:
        """Remove records from the middle of the stream."""
        for sequence in sequences:
            server.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": sequence, "no_erase": True})

    def remove(self, server: Nats) -> None:
        """Remove the whole log."""
        server.api(f"STREAM.DELETE.{self.stream}")


class HeldLog:
    """The records of a log from one on, but for some that are gone, as something that is stored."""

    size, borders = 1000, ()

    def __init__(self, log: LogBuilder, first: int = 1, gone: Collection[int] = ()) -> None:
        self.stream, self.first, self.last = log.stream, first, log.last
        self._log, self._gone = log, gone

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        for sequence in range(first, last + 1):
            if sequence not in self._gone:
                yield sequence, self._log.records[sequence - 1]

    def link_before(self, _sequence: int) -> None:
        return None

    def around(self, _time_ms: int) -> tuple[int, int]:
        return self.first - 1, self.last

    def explain(self, _sequence: int) -> None:
        return None

    def place(self, _sequence: int) -> str:
        return ""
