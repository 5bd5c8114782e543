"""The sink with peers that answer slowly, wrongly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from harness.waiting import happens

from outbox.mqtt import bridge_sink, peer
from outbox.mqtt.bridge_sink import MqttSink
from outbox.mqtt.options import read_connection
from outbox.sink import Destination, OutboxMessage, TryAgain
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.encoder import encode_acks, encode_connack
from protocol.mqtt.packets import Acks, Connect, ConnectCode, PacketType, Publish, Publishes

pytestmark = pytest.mark.system

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
ACCEPTED = encode_connack(ConnectCode.ACCEPTED, session_present=True)


class Peer:
    """A broker that stores messages; subclasses answer in another way."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.connections = 0
        self._unreleased: dict[int, int] = {}

    def connected(self) -> bytes:
        """Return the answer to CONNECT."""
        return ACCEPTED

    def published(self, message: Publish) -> bytes:
        """Return the answer to a PUBLISH."""
        number = int(message.payload)
        if message.qos == 1:
            self.stored.append(number)
            return encode_acks(PUBACK, [message.packet_id])
        if message.packet_id not in self._unreleased:
            self._unreleased[message.packet_id] = number
        return encode_acks(PUBREC, [message.packet_id])

    def released(self, packet_id: int) -> bytes:
        """Return the answer to a PUBREL."""
        if (number := self._unreleased.pop(packet_id, None)) is not None:
            self.stored.append(number)
        return encode_acks(PUBCOMP, [packet_id])

    async def answer(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        """Send an answer."""
        writer.write(data)
        await writer.drain()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        decoder = Decoder(1 << 20)
        try:
            while data := await reader.read(4096):
                packets = decoder.feed(data)
                while decoder.more:
                    packets += decoder.feed(b"")
                for packet in packets:
                    if isinstance(packet, Connect):
                        await self.answer(self.connected(), writer)
                    elif isinstance(packet, Publishes):
                        for message in packet:
                            await self.answer(self.published(message), writer)
                    elif isinstance(packet, Acks):
                        for packet_id in packet.packet_ids:
                            await self.answer(self.released(packet_id), writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(behaviour: Peer) -> AsyncIterator[int]:
    server = await asyncio.start_server(behaviour.serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def made(port: int, keep_alive: int = 60) -> MqttSink:
    table: dict[str, object] = {
        "addresses": f"127.0.0.1:{port}",
        "restart_timeout": "1 1",
        "topic": ["# out 2"],
        "bridge_protocol_version": "mqttv311",
        "notifications": False,
        "try_private": False,
    }
    return MqttSink(replace(read_connection("plant2", table), keep_alive=keep_alive))


def destination() -> Destination:
    async def record_received(_position: int) -> None:
        """Record it at once."""

    # Behind the first message, so that the session is not begun anew.
    return Destination("plant2", "mylog", 5, 10, 10, 1, record_received)


def messages(count: int, qos: int) -> list[OutboxMessage]:
    return [
        OutboxMessage(
            at=number * 10,
            position=number * 10,
            number=number,
            time_ms=0,
            topic="sensors/a",
            payload=str(number).encode(),
            qos=qos,
            retain=False,
            client="dev1",
        )
        for number in range(2, count + 2)
    ]


async def failures(sink: MqttSink, batch: list[OutboxMessage], most: int = 20) -> list[str]:
    """Send a batch until it is stored; return the reasons of the attempts that failed."""
    reasons: list[str] = []
    opened = False
    while len(reasons) < most:
        try:
            if not opened:
                await sink.open(destination())
                opened = True
            await sink.send(batch)
        except TryAgain as answer:
            if reasons[-1:] != [answer.reason]:
                reasons.append(answer.reason)
            # The pauses between attempts are not what is tested here.
            sink._not_before = 0
        else:
            break
    await sink.close()
    return reasons


class Once(Peer):
    """Misbehaves on the first connection only."""

    @property
    def odd(self) -> bool:
        return self.connections == 1


class Garbage(Once):
    def connected(self) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n" if self.odd else super().connected()


class Silent(Once):
    def connected(self) -> bytes:
        return b"" if self.odd else super().connected()


class NoAcknowledgement(Once):
    def published(self, message: Publish) -> bytes:
        return b"" if self.odd else super().published(message)


class NoPubcomp(Once):
    def released(self, packet_id: int) -> bytes:
        super().released(packet_id)
        return b"" if self.odd else encode_acks(PUBCOMP, [packet_id])


class PubrecAtQos1(Once):
    def published(self, message: Publish) -> bytes:
        return encode_acks(PUBREC, [message.packet_id]) if self.odd else super().published(message)


class EarlyPubcomp(Once):
    def published(self, message: Publish) -> bytes:
        if self.odd:
            return encode_acks(PUBCOMP, [message.packet_id])
        return super().published(message)


class Strangers(Peer):
    """Acknowledges what was never sent, and everything twice."""

    def published(self, message: Publish) -> bytes:
        answer = super().published(message)
        return encode_acks(PUBACK, [60_000]) + answer + answer


class Huge(Once):
    def published(self, message: Publish) -> bytes:
        return b"\x30\xff\xff\xff\x7f" if self.odd else super().published(message)


class Hasty(Once):
    """Closes the connection after the CONNACK."""

    async def answer(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        await super().answer(data, writer)
        if self.odd:
            writer.close()


class OneAtATime(Peer):
    """Answers a message at QoS 2 only when those before it are released."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Publish] = []

    def published(self, message: Publish) -> bytes:
        if message.qos == 2 and any(each.packet_id == message.packet_id for each in self._waiting):
            return b""
        self._waiting.append(message)
        return super().published(message) if len(self._waiting) == 1 or message.qos < 2 else b""

    def released(self, packet_id: int) -> bytes:
        del self._waiting[:1]
        answer = super().released(packet_id)
        return answer + super().published(self._waiting[0]) if self._waiting else answer


class Slow(Peer):
    """Sends its answers in single bytes, with other work in between."""

    async def answer(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        for at in range(len(data)):
            await super().answer(data[at : at + 1], writer)
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("behaviour", "qos", "reason"),
    [
        *((Garbage, qos, "violates the standard") for qos in (1, 2)),
        *((Silent, qos, "no CONNACK within") for qos in (1, 2)),
        *((NoAcknowledgement, qos, "no acknowledgement within") for qos in (1, 2)),
        (NoPubcomp, 2, "no acknowledgement within"),
        (PubrecAtQos1, 1, "PUBREC for a message at QoS 1"),
        *((EarlyPubcomp, qos, "PUBCOMP before PUBREL") for qos in (1, 2)),
        *((Strangers, qos, "") for qos in (1, 2)),
        *((Huge, qos, "violates the standard") for qos in (1, 2)),
        *((Hasty, qos, "connection") for qos in (1, 2)),
        (OneAtATime, 2, ""),
        *((Slow, qos, "") for qos in (1, 2)),
    ],
)
async def test_a_peer_that_answers_oddly(
    monkeypatch: pytest.MonkeyPatch, behaviour: Callable[[], Peer], qos: int, reason: str
) -> None:
    monkeypatch.setattr(bridge_sink, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(peer, "_CONNECT_SECONDS", 0.5)
    other = behaviour()
    async with listening(other) as port:
        reasons = await failures(made(port), messages(30, qos))
    assert bool(reasons) is bool(reason)
    assert all(reason in each and "\n" not in each for each in reasons)
    assert set(other.stored) == set(range(2, 32))
    if qos == 2:
        assert len(other.stored) == 30
    assert (other.connections > 1) is bool(reason)


async def test_an_idle_peer_that_answers_no_ping_is_left() -> None:
    other = Peer()  # it ignores PINGREQ
    async with listening(other) as port:
        sink = made(port, keep_alive=1)
        await sink.open(destination())
        assert other.connections == 1
        await happens(lambda: other.connections > 1, "the next connection")
        await sink.close()
