"""Keep alive: whole packets count, and packets that arrive at a good rate [MQTT-3.1.2-24].

Each client speaks over TCP, WebSocket or TLS: stages below a connection see a frame or a record
long before there is anything for it.
"""

import ssl
from collections.abc import Callable
from typing import Any

import pytest
from harness import packets as p
from harness.certs import Authority
from websockets.frames import Frame, Opcode

from actors.connection.listener import Listener, ListenerOptions
from actors.limits.limit_options import LimitOptions, Quota
from actors.node.read_pause import ReadPause
from actors.transports.stack import StackOptions
from actors.transports.tls_context import TlsOptions, make_context
from actors.transports.websocket import WebSocketOptions
from eventstore.format.events import SessionClosed
from simulation.logins import Threads
from simulation.world import SimClient, World, in_world

MIB = 1024 * 1024
KEEP_ALIVE = 10
ALLOWED = 1.5 * KEEP_ALIVE
MIN = 100
"""Bytes a second that an incomplete packet must make, as these worlds are set."""
TRANSPORTS = ["tcp", "websocket", "tls"]
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class Caller:
    """A client of which each byte on the wire can be sent by itself."""

    def __init__(self, world: World, stack: StackOptions) -> None:
        options = ListenerOptions("", MIB, 10.0, stack=stack)
        self.client = SimClient(world, listener=Listener(options, 0))
        self.got = bytearray()
        self.client.receive = self.got.extend  # type: ignore[assignment, method-assign]
        self.world = world

    async def connect(self) -> None:
        """Log in; the time begins behind the second in which a client is new."""
        await self.greet()
        await self.send(p.connect("c", keepalive=KEEP_ALIVE))
        await self.world.go(2)
        await self.send(p.pingreq())

    async def greet(self) -> None:
        """Do what comes before MQTT."""

    def wire(self, data: bytes) -> bytes:
        """Return what a packet is on the wire."""
        return data

    async def send(self, data: bytes) -> None:
        await self.put(self.wire(data))

    async def put(self, wire: bytes) -> None:
        self.client.send(wire)
        await self.world.go(0.1)

    async def trickle(self, wire: bytes, rate: int, seconds: float, step: float = 1.0) -> None:
        """Send this many bytes a second, ``step`` seconds apart, while the connection lasts."""
        size = round(rate * step)
        for at in range(0, round(seconds / step) * size, size):
            self.client.send(wire[at : at + size])
            await self.world.go(step)

    @property
    def open(self) -> bool:
        return self.client.open


class WebSocketCaller(Caller):
    def __init__(self, world: World) -> None:
        super().__init__(world, StackOptions(websocket=WebSocketOptions()))

    async def greet(self) -> None:
        await self.put(UPGRADE)

    def wire(self, data: bytes) -> bytes:
        return Frame(Opcode.BINARY, data).serialize(mask=True)


class TlsCaller(Caller):
    def __init__(self, world: World, context: ssl.SSLContext, client: ssl.SSLContext) -> None:
        super().__init__(world, StackOptions(tls_context=context, handshakes=Threads(1)))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def greet(self) -> None:
        for _ in range(3):
            self.incoming.write(bytes(self.got))
            self.got.clear()
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.put(self.outgoing.read())
            else:
                await self.put(self.outgoing.read())
                return
        raise AssertionError("no handshake")

    def wire(self, data: bytes) -> bytes:
        for at in range(0, len(data), 16_384):
            self.tls.write(data[at : at + 16_384])
        return self.outgoing.read()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def contexts(authority: Authority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = authority.server()
    return make_context(TlsOptions(server.certificate, server.key)), authority.client_context()


@pytest.fixture
def call(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Callable[[str, World], Caller]:
    """Returns what connects over a transport."""

    def make(transport: str, world: World) -> Caller:
        if transport == "websocket":
            return WebSocketCaller(world)
        if transport == "tls":
            return TlsCaller(world, *contexts)
        return Caller(world, StackOptions())

    return make


def world_of(packet_rate: float = MIN, **bounds: Any) -> World:
    return World(bounds=LimitOptions(min_packet_rate=packet_rate, **bounds))


def large(size: int = 100_000) -> bytes:
    """A PUBLISH that takes long."""
    return p.publish("t", bytes(size), 1, 1)


def reasons(world: World) -> list[str]:
    return [event.reason for event in world.disk.events(SessionClosed)]


@pytest.mark.mqtt("MQTT-3.1.2-24")
@pytest.mark.parametrize("transport", TRANSPORTS)
@in_world(world_of)
async def test_one_byte_a_second_does_not_extend_the_keep_alive(
    world: World, transport: str, call: Callable[[str, World], Caller]
) -> None:
    caller = call(transport, world)
    await caller.connect()
    wire = caller.wire(large())
    await caller.trickle(wire, 1, ALLOWED - 1)
    assert caller.open
    await caller.trickle(wire[14:], 1, 2)
    assert reasons(world) == ["keep_alive"]


@pytest.mark.mqtt("MQTT-3.1.2-24")
@pytest.mark.parametrize("transport", TRANSPORTS)
@in_world(world_of)
async def test_a_packet_at_the_minimum_rate_extends_the_keep_alive(
    world: World, transport: str, call: Callable[[str, World], Caller]
) -> None:
    caller = call(transport, world)
    await caller.connect()
    wire = caller.wire(large())
    await caller.trickle(wire, 2 * MIN, len(wire) / (2 * MIN) + 1)
    assert caller.open
    # From its end on silence counts as ever.
    await world.go(ALLOWED - 2)
    assert caller.open
    await world.go(2)
    assert reasons(world) == ["keep_alive"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_world(world_of)
async def test_a_packet_that_arrives_too_slowly_is_silence(
    world: World, transport: str, call: Callable[[str, World], Caller]
) -> None:
    caller = call(transport, world)
    await caller.connect()
    await caller.trickle(caller.wire(large()), MIN // 2, ALLOWED + 1)
    assert reasons(world) == ["keep_alive"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_world(world_of)
async def test_fast_input_gives_no_credit(
    world: World, transport: str, call: Callable[[str, World], Caller]
) -> None:
    caller = call(transport, world)
    await caller.connect()
    wire = caller.wire(large())
    await world.go(KEEP_ALIVE)
    await caller.put(wire[:50_000])
    await caller.trickle(wire[50_000:], 1, ALLOWED - 1)
    assert caller.open
    await caller.trickle(wire[60_000:], 1, 2)
    assert reasons(world) == ["keep_alive"]


@pytest.mark.mqtt("MQTT-3.1.2-24")
@in_world(world_of)
async def test_websocket_pings_are_no_packets(
    world: World, call: Callable[[str, World], Caller]
) -> None:
    caller = call("websocket", world)
    await caller.connect()
    ping = Frame(Opcode.PING, bytes(100)).serialize(mask=True)
    await caller.trickle(ping * 100, len(ping), ALLOWED + 1, 1)
    await caller.trickle(ping * 100, 10 * len(ping), 1, 1)
    assert reasons(world) == ["keep_alive"]


@in_world(world_of, packet_rate=0)
async def test_any_byte_counts_without_a_minimum_rate(
    world: World, call: Callable[[str, World], Caller]
) -> None:
    caller = call("tcp", world)
    await caller.connect()
    await caller.trickle(large(), 1, 100)
    assert caller.open


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_world(world_of)
async def test_the_keep_alive_is_suspended_while_reading_is_paused(
    world: World, transport: str, call: Callable[[str, World], Caller]
) -> None:
    caller = call(transport, world)
    await caller.connect()
    wire = caller.wire(large())
    await caller.trickle(wire, 1, ALLOWED - 5)
    caller.client.connection.pause(ReadPause.LOG)
    await caller.trickle(wire[10:], 1, 100)
    assert caller.open
    caller.client.connection.resume(ReadPause.LOG)
    await world.go(4)
    assert caller.open
    await world.go(2)
    assert reasons(world) == ["keep_alive"]


@in_world(world_of)
async def test_packets_sent_during_a_pause_are_handled_before_the_timeout(
    world: World,
    call: Callable[[str, World], Caller],
) -> None:
    caller = call("tcp", world)
    await caller.connect()
    await world.go(ALLOWED - 0.2)
    caller.client.connection.pause(ReadPause.LOG)
    await world.go(100)
    caller.client.connection.resume(ReadPause.LOG)
    await world.go(0.5)
    await caller.send(p.pingreq())
    await world.go(ALLOWED - 1)
    assert caller.open


@in_world(world_of, client=Quota(publish_bytes=MIN / 4), throttle_timeout=0)
async def test_a_client_is_not_blamed_for_its_publish_rate(
    world: World,
    call: Callable[[str, World], Caller],
) -> None:
    """It is read more slowly than packets must arrive: it is the broker that waits."""
    caller = call("tcp", world)
    await caller.connect()
    caller.client.send_cut(large(5_000), *range(500, 5_000, 500))
    await world.go(5_000 / (MIN / 4))
    assert caller.open
