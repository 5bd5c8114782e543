"""Sockets without a network: transports that can be slow, stall, break and vanish."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from harness import mqtt5_packets as p5
from harness import packets as p
from harness.mqtt5_transcoding import from_v5, packets_of, to_v5

from actors.connection.connection import Connection
from actors.connection.listener import Listener, ListenerOptions
from actors.transports.stage import Stage

if TYPE_CHECKING:
    from simulation.world import World


class SimTransport(asyncio.Transport):
    """Hands what the broker writes to a client, at once, unless the client does not read.

    What the broker writes takes ``latency`` seconds; 0 = it is there at once.
    """

    def __init__(
        self, client: SimClient, connection: asyncio.Protocol, latency: float, host: str
    ) -> None:
        super().__init__()
        self._host = host
        self._client = client
        self._connection = connection
        self._latency = latency
        self._closing = False
        self._gone = False
        self._high = 65_536
        self._over = False
        """The broker was notified that the client does not keep up."""
        self._flying: deque[bytes] = deque()
        self.reading = True
        self.stalled = False
        self.buffer = bytearray()
        self.arrived: deque[bytes] = deque()
        self.passing = False
        """The client is called by a write of the broker, which must not read its answer in it."""

    # As in asyncio.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._host, 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        world = self._client.world
        self._high = world.write_high if world.write_high is not None else high or self._high

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def write(self, data: Any) -> None:
        self._client.world.step("before bytes are sent")
        if self._gone:  # the process was killed in this turn
            return
        assert not self._closing, "written behind the end"
        if self.stalled:
            self.buffer += data
            if len(self.buffer) > self._high and not self._over:
                self._over = True
                self._connection.pause_writing()
        else:
            self._pass(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        asyncio.get_running_loop().call_soon(self.deliver)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close from the broker's side, once everything written was taken."""
        if not self._closing:
            self._closing = True
            if not self.buffer:
                self._end(None, orderly=True)

    def abort(self) -> None:
        self.buffer.clear()
        if not self._gone:
            self._closing = True
            self._end(None, orderly=False)

    # What the client does.

    def deliver(self) -> None:
        """Give the broker what arrived, as long as it reads."""
        while self.arrived and self.reading and not self._closing:
            self._connection.data_received(self.arrived.popleft())

    def stall(self) -> None:
        """Stop reading."""
        self.stalled = True

    def unstall(self) -> None:
        """Read again."""
        self.stalled = False
        self.take(len(self.buffer))

    def take(self, size: int) -> None:
        """Read this many bytes, split anywhere."""
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        if data:
            self._pass(data)
        if self._over and len(self.buffer) <= self._high // 4 and not self._gone:
            self._over = False
            self._connection.resume_writing()
        if self._closing and not self._gone and not self.buffer:
            self._end(None, orderly=True)

    def drop(self) -> None:
        """Break the connection: what is on its way is lost."""
        self._flying.clear()
        if not self._gone:
            self._closing = True
            self._end(ConnectionResetError("dropped"), orderly=False)

    def vanish(self, arrive: int) -> None:
        """The broker's process is gone; this many of the pieces in transit still arrive."""
        if not self._gone:
            self._closing = self._gone = True
            self.buffer.clear()
            for piece in list(self._flying)[:arrive]:
                self._client.receive(piece)
            self._flying.clear()
            self._client.closed(orderly=False)

    @property
    def flying(self) -> int:
        """Pieces on their way to the client."""
        return len(self._flying)

    def _pass(self, data: bytes) -> None:
        if not self._latency and not self._flying:
            self.passing = True
            self._client.receive(data)
            self.passing = False
        else:
            self._flying.append(data)
            asyncio.get_running_loop().call_later(self._latency, self._arrive)

    def _arrive(self) -> None:
        if self._flying:
            self._client.receive(self._flying.popleft())

    def _end(self, error: Exception | None, *, orderly: bool) -> None:
        self._gone = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._connection.connection_lost, error)
        if self._flying:
            loop.call_later(self._latency, self._client_sees_end, orderly)
        else:
            self._client_sees_end(orderly)

    def _client_sees_end(self, orderly: bool) -> None:
        self._client.closed(orderly=orderly)


class SimClient:
    """One network connection of a client: raw packets in and out."""

    def __init__(
        self,
        world: World,
        latency: float = 0.0,
        listener: Listener | None = None,
        host: str = "192.0.2.1",
        *,
        mqtt5: bool = False,
        waited: float = 0.0,
    ) -> None:
        self.mqtt5 = mqtt5
        """What it sends and gets is that of MQTT 3.1.1; on the wire it is MQTT 5."""
        self.world = world
        self.name = f"{len(world.transcripts)}"
        self.open = True
        self.stopped = False
        """Its broker stopped, and may have closed it while DISCONNECT was still on its way."""
        self.received: list[p.Packet] = []
        self.transcript: list[tuple[float, bytes]] = []
        """Every piece that was received, with its time."""
        self._partial = bytearray()
        self._latency = latency
        self._unsent: deque[bytes] = deque()
        world.transcripts.append(self.transcript)
        options = world.broker.node.options
        holding = ListenerOptions("", options.max_packet_size, options.connect_timeout)
        entrance = world.entrance() if listener is None else None
        self.through_edge = entrance is not None
        """Whether another node than the leader accepted it."""
        self.protocol: Any = (
            entrance.accept()
            if entrance is not None
            else world.broker.admission.accept(
                listener or Listener(holding, options.max_topic_aliases), waited
            )
        )
        top = self.protocol
        while isinstance(top, Stage):
            top = top.get_protocol()
        self.connection = cast("Connection", top)
        self.transport = SimTransport(self, self.protocol, latency, host)
        world.clients[self] = None
        self.protocol.connection_made(self.transport)

    def send(self, *packets: bytes) -> None:
        """Send packets in one piece."""
        self.send_cut(b"".join(packets))

    def send_cut(self, data: bytes, *cuts: int) -> None:
        """Send bytes in pieces: what is behind a cut comes later, if the connection lasts."""
        if not self.open:
            return
        if self.mqtt5:
            data = to_v5(data)
            cuts = tuple(cut for cut in cuts if cut < len(data))
        waited = bool(self._unsent)
        bounds = [0, *sorted(cuts), len(data)]
        pieces = [data[start:stop] for start, stop in itertools.pairwise(bounds)]
        self._unsent += pieces
        later = len(pieces)
        if not self._latency and not waited:
            self._send_next()
            later -= 1
        for _ in range(later):
            asyncio.get_running_loop().call_later(self._latency or 0.003, self._send_next)

    @property
    def sending(self) -> bool:
        """True while something is on its way to the broker."""
        return bool(self._unsent)

    def _send_next(self) -> None:
        if self._unsent and self.open:
            self.transport.arrived.append(self._unsent.popleft())
            if self.transport.passing:
                asyncio.get_running_loop().call_soon(self.transport.deliver)
            else:
                self.transport.deliver()

    def drop(self) -> None:
        """Let the connection end without a DISCONNECT."""
        self.transport.drop()

    def receive(self, data: bytes) -> None:
        if not self.open:
            return
        self.transcript.append((asyncio.get_running_loop().time(), data))
        self._partial += data
        while (found := p.split(self._partial)) is not None:
            first, body, size = found
            raw = bytes(self._partial[:size])
            del self._partial[:size]
            packet = self.parse(raw, first, body)
            if packet is None:
                continue
            self.received.append(packet)
            try:
                self.on_packet(packet)
            except AssertionError as error:  # the broker would be notified
                self.world.problems.append(error)

    def parse(self, raw: bytes, first: int, body: bytes) -> p.Packet | None:
        """Return a packet, which is also given whole; None: it has no equal in MQTT 3.1.1."""
        if self.mqtt5:
            raw = from_v5(raw)
            if not raw:
                return None
            ((first, body),) = packets_of(raw)
        return p.parse(first, body)

    def take(self) -> list[p.Packet]:
        """Give what was received since the last time."""
        taken, self.received = self.received, []
        return taken

    def payloads(self) -> list[bytes]:
        """Return the payloads of the messages received since the last call."""
        return [packet.payload for packet in self.take() if isinstance(packet, p.Publish)]

    def on_packet(self, packet: p.Packet) -> None:
        """React; a plain client does nothing by itself."""

    def closed(self, *, orderly: bool) -> None:
        """The connection is no more; ``orderly``: the broker closed it, nothing was cut off."""
        self.open = False
        self.world.clients.pop(self, None)


class Client5(SimClient):
    """Packets of MQTT 5, in and out."""

    def parse(self, raw: bytes, first: int, body: bytes) -> Any:
        return p5.parse(first, body)

    def messages(self) -> list[p5.Publish]:
        """The messages so far."""
        return [packet for packet in self.received if isinstance(packet, p5.Publish)]

    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages()]

    def answers(self) -> list[p5.Answer]:
        return [packet for packet in self.received if isinstance(packet, p5.Answer)]

    def codes(self) -> list[tuple[int, int]]:
        """Kind and reason code of what was received since the last time."""
        return [
            (packet.kind, packet.code) for packet in self.take() if isinstance(packet, p5.Answer)
        ]
