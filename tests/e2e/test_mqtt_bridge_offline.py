"""A peer that is away for as long as it takes to publish very many messages, and comes back.

`FOLDMQ_OFFLINE_MESSAGES` is their number: a plant with 33 messages a second has 20 million in a
week. What waits is in the log, so the memory of the outbox and of the broker does not depend on it.
With `-s` the test prints memory and rate.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.mosquitto import Mosquitto
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.mqtt_bridges import connection, needs_mosquitto
from e2e.outbox_process import outbox_of
from e2e.tools import run

if TYPE_CHECKING:
    from harness.broker import Broker

COUNT = int(os.environ.get("FOLDMQ_OFFLINE_MESSAGES", "50000"))

pytestmark = [needs_mosquitto, pytest.mark.long, pytest.mark.timeout(240 + COUNT // 200)]

_BURST = 500
_OUTBOX_GROWTH, _BROKER_GROWTH = 24 << 20, 96 << 20
"""Bytes by which the memory may grow, however many messages wait."""
_TOPIC = b"sensors/a"


def packet(number: int) -> bytes:
    """A PUBLISH at QoS 1, without properties."""
    body = len(_TOPIC).to_bytes(2, "big") + _TOPIC + (number % _BURST + 1).to_bytes(2, "big")
    body += b"%012d" % number
    return bytes([0x32, len(body)]) + body


def publish_all(port: int, numbers: range) -> None:
    """Publish in bursts, each after the acknowledgements of the one before."""
    with RawClient(port) as client:
        client.connect("plant")
        for first in range(numbers.start, numbers.stop, _BURST):
            stop = min(numbers.stop, first + _BURST)
            client.socket.sendall(b"".join(map(packet, range(first, stop))))
            left = 4 * (stop - first)
            while left:
                data = client.socket.recv(left)
                assert data, "the broker closed the connection"
                left -= len(data)
        client.disconnect()


class Receiver:
    """A subscriber at QoS 1 that acknowledges what it gets, and expects it in order and once."""

    def __init__(self, port: int) -> None:
        self.client = RawClient(port)
        self.client.connect("receiver")
        self.client.subscribe(("sensors/#", 1))
        self.received = 0
        self._length = len(packet(0))
        self._rest = b""

    def read(self) -> None:
        """Receive some messages."""
        data = self._rest + self.client.socket.recv(1 << 16)
        whole = len(data) - len(data) % self._length
        self._rest = data[whole:]
        answers = bytearray()
        for at in range(0, whole, self._length):
            message = data[at : at + self._length]
            assert message[-12:] == b"%012d" % self.received, (message, self.received)
            answers += b"\x40\x02" + message[-14:-12]
            self.received += 1
        if answers:
            self.client.socket.sendall(answers)


def pss(pid: int) -> int:
    """Memory of a process in bytes, with its part of what it shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (size,) = re.findall(r"^Pss: +(\d+) kB", text, re.MULTILINE)
    return int(size) << 10


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Mosquitto]:
    """A Mosquitto that never drops messages for the receiver; it is not started."""
    lines = ("max_queued_messages 0", "max_inflight_messages 1000")
    broker = Mosquitto(tmp_path / "peer", "peer", *lines)
    yield broker
    broker.end()


def test_memory_does_not_depend_on_what_waits(
    make_broker: Callable[..., Broker], peer: Mosquitto
) -> None:
    broker = make_broker(connection(peer.port, "sensors/# out 1"))
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    until(lambda: outbox_of(broker), "the outbox")
    outbox = outbox_of(broker)
    publish_all(broker.port, range(_BURST))  # both have done their work once
    until(
        lambda: "Connect call failed" in run("outbox", "ls", *where).out,
        "the reason that operators see",
        pause=0.5,
    )
    before = pss(outbox), pss(broker.pid)
    begun = time.monotonic()
    publish_all(broker.port, range(_BURST, _BURST + COUNT))
    published = time.monotonic() - begun
    waiting = pss(outbox), pss(broker.pid)
    run("outbox", "pause", "plant2", *where)
    peer.start()
    receiver = Receiver(peer.port)
    run("outbox", "resume", "plant2", *where)
    begun = time.monotonic()
    most = 0
    while receiver.received < _BURST + COUNT:
        before_part = receiver.received
        receiver.read()
        if before_part // 100_000 < receiver.received // 100_000:
            most = max(most, pss(outbox))
    seconds = time.monotonic() - begun
    after = pss(outbox), pss(broker.pid)
    assert outbox_of(broker) == outbox
    print(
        f"\n{COUNT} messages; load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d %H:%M')}\n"
        f"published at {COUNT / published:,.0f}/s, received at {COUNT / seconds:,.0f}/s\n"
        f"PSS before, with all waiting, after: outbox {_mib(before[0], waiting[0], after[0])}"
        f" (at most {_mib(max(most, after[0]))}), broker {_mib(before[1], waiting[1], after[1])}"
    )
    assert max(waiting[0], most, after[0]) - before[0] < _OUTBOX_GROWTH
    assert max(waiting[1], after[1]) - before[1] < _BROKER_GROWTH


def _mib(*sizes: int) -> str:
    return ", ".join(f"{size / (1 << 20):.0f} MiB" for size in sizes)
