"""Well-behaved clients: each publishes to the next one at QoS 1, and all messages are counted.

A process of its own, told what to do on stdin: ``phase NAME`` ends a phase and begins the next one,
``end`` waits for what is on its way and ends. Each phase gives a line of JSON on stdout, and the
end a last one with what was lost.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from bench.brokers.mqtt_client import (
    CONNACK,
    PUBACK,
    PUBLISH,
    SUBACK,
    connect,
    packet,
    publish,
    subscribe,
)
from bench.processes.helper_process import stdin

_TICK = 0.005
"""Seconds between two rounds of publishing."""
_TIMEOUT = 30.0
"""Seconds to wait for an answer, and at the end for messages in transit."""
_LATE = 1.0
_HEAD = 16
"""Bytes of a payload that hold the number of the message and the time when it was sent."""


def packets_in(data: bytearray) -> Iterator[tuple[int, bytes]]:
    """Remove and return the complete packets, each with its first byte."""
    at = 0
    try:
        while True:
            length = shift = 0
            body = at + 1
            while True:
                length |= (data[body] & 127) << shift
                shift += 7
                body += 1
                if data[body - 1] < 128:
                    break
            if len(data) < body + length:
                return
            yield data[at], bytes(data[body : body + length])
            at = body + length
    except IndexError:
        return
    finally:
        del data[:at]


class MessageCounts:
    """What all clients together sent and received."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.delivered: set[int] = set()
        self.sent = 0
        self.on_way: dict[int, float] = {}
        """Send times of messages that have not arrived, by message number."""
        self.twice = 0
        self.latencies: list[float] = []
        self.acks: list[float] = []
        self.disconnects = 0

    def phase(self, name: str) -> dict[str, Any]:
        """Return the figures of a phase, and begin the next one.

        A message that has been on its way for more than a second counts with the time so far.
        """
        now = time.perf_counter()
        late = [now - at for at in self.on_way.values() if now - at > _LATE]
        latencies, self.latencies = sorted(self.latencies + late), []
        acks, self.acks = sorted(self.acks), []
        return {
            "phase": name,
            "messages": len(latencies),
            "p50_ms": _at(latencies, 0.5),
            "p99_ms": _at(latencies, 0.99),
            "max_ms": _at(latencies, 1.0),
            "ack_p99_ms": _at(acks, 0.99),
            "disconnects": self.disconnects,
        }

    def end(self) -> dict[str, Any]:
        """Return the totals."""
        return {
            "sent": self.sent,
            "acknowledged": len(self.acknowledged),
            "unacknowledged": self.sent - len(self.acknowledged),
            "lost": len(self.acknowledged - self.delivered),
            "twice": self.twice,
            "disconnects": self.disconnects,
        }


def _at(values: list[float], part: float) -> float | None:
    if not values:
        return None
    return round(1000 * values[min(len(values) - 1, int(part * len(values)))], 2)


class WellBehavedClient(asyncio.Protocol):
    """One client: receives on its own topic, and publishes to that of the next one."""

    def __init__(self, counts: MessageCounts, number: int, count: int, size: int) -> None:
        self.name = f"good-{number}"
        self._counts = counts
        self._topic = f"good/{(number + 1) % count}"
        self._filler = bytes(max(0, size - _HEAD))
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._pid = 0
        self._serial = number << 40
        self._sent: dict[int, tuple[int, float]] = {}
        self.connected = asyncio.get_running_loop().create_future()
        self.subscribed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._data += data
        acks = bytearray()
        for first, body in packets_in(self._data):
            kind = first >> 4
            if kind == PUBLISH:
                acks += self._took(body)
            elif kind == PUBACK:
                serial, at = self._sent.pop(int.from_bytes(body[:2], "big"))
                self._counts.acknowledged.add(serial)
                self._counts.acks.append(time.perf_counter() - at)
            elif kind == CONNACK and body[1] == 0:
                self.connected.set_result(None)
            elif kind == SUBACK:
                self.subscribed.set_result(None)
        if acks and self._transport is not None:
            self._transport.write(bytes(acks))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._counts.disconnects += 1

    @property
    def waits(self) -> bool:
        """Whether a publication is not acknowledged yet."""
        return bool(self._sent) and self._transport is not None

    def write(self, data: bytes) -> None:
        """Send a packet."""
        if self._transport is not None:
            self._transport.write(data)

    def publish(self) -> None:
        """Send a message to the next client."""
        if self._transport is None:
            return
        self._pid = self._pid % 65_535 + 1
        self._serial += 1
        now = time.perf_counter()
        payload = self._serial.to_bytes(8, "big") + round(now * 1e9).to_bytes(8, "big")
        self._sent[self._pid] = self._serial, now
        self._counts.sent += 1
        self._counts.on_way[self._serial] = now
        self._transport.write(publish(self._topic, payload + self._filler, self._pid))

    def _took(self, body: bytes) -> bytes:
        at = 2 + int.from_bytes(body[:2], "big")
        serial = int.from_bytes(body[at + 2 : at + 10], "big")
        sent = int.from_bytes(body[at + 10 : at + 18], "big") / 1e9
        counts = self._counts
        counts.twice += serial in counts.delivered
        counts.delivered.add(serial)
        counts.on_way.pop(serial, None)
        counts.latencies.append(time.perf_counter() - sent)
        return packet(0x40, body[at : at + 2])


async def run(arguments: argparse.Namespace) -> None:
    """Connect the clients, publish until stdin ends, and check that all messages arrived."""
    loop = asyncio.get_running_loop()
    counts = MessageCounts()
    clients = [
        WellBehavedClient(counts, number, arguments.clients, arguments.size)
        for number in range(arguments.clients)
    ]
    for number, client in enumerate(clients):
        await loop.create_connection(
            lambda client=client: client,  # type: ignore[misc]
            "127.0.0.1",
            arguments.port,
            local_addr=("127.0.0.1", 0),
        )
        shown = {"user": arguments.user, "password": arguments.password}
        client.write(connect(client.name, clean=True, **shown))
        await asyncio.wait_for(client.connected, _TIMEOUT)
        client.write(subscribe(f"good/{number}"))
        await asyncio.wait_for(client.subscribed, _TIMEOUT)
    say({"ready": len(clients)})
    publishing = loop.create_task(_publish(clients, arguments.rate))
    words = await stdin()
    name = "begin"
    while (line := (await words.readline()).decode().split()) and line[0] == "phase":
        say(counts.phase(name))
        name = line[1]
    say(counts.phase(name))
    publishing.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_TIMEOUT):
            while (  # noqa: ASYNC110 - what is awaited has no event
                any(client.waits for client in clients) or counts.acknowledged - counts.delivered
            ):
                await asyncio.sleep(0.02)
    say(counts.end())


async def _publish(clients: list[WellBehavedClient], rate: float) -> None:
    """Publish at a constant rate, one client after the other, without waiting for answers."""
    begun = time.perf_counter()
    count = 0
    while True:
        due = int((time.perf_counter() - begun) * rate)
        for number in range(count, due):
            clients[number % len(clients)].publish()
        count = due
        await asyncio.sleep(_TICK)


def say(what: dict[str, Any]) -> None:
    """Report to the parent process."""
    print(json.dumps(what), flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument(
        "--rate", type=float, default=1000, help="messages per second of all clients"
    )
    parser.add_argument("--size", type=int, default=64, help="bytes of a payload")
    parser.add_argument("--user")
    parser.add_argument("--password", default="")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
