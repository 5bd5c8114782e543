"""The sink with Debian's Mosquitto as the other broker, over kills of either side."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.certs import Authority
from harness.mosquitto import MOSQUITTO, Mosquitto
from harness.packets import Publish
from harness.rawclient import RawClient

from eventstore.format.positions import Position
from outbox.mqtt import bridge_sink
from outbox.mqtt.bridge_sink import MqttSink
from outbox.mqtt.options import read_connection
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed"),
]

VERSIONS = ("mqttv31", "mqttv311", "mqttv50")
BATCH = 50


@contextmanager
def peer(tmp_path: Path, *settings: str) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path, "peer", *settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.end(signal.SIGKILL)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with peer(tmp_path, "autosave_on_changes true", "autosave_interval 1") as broker:
        yield broker


class Log:
    """A log with messages, and the cursor of a destination in it."""

    def __init__(self, count: int, qos: Callable[[int], int]) -> None:
        self.messages = [message(number, qos(number)) for number in range(1, count + 1)]
        self.through = self.received = self.number = 0
        self.records = 0

    def destination(self) -> Destination:
        async def record_received(position: Position) -> None:
            self.records += 1
            await asyncio.sleep(0.001)
            self.received = position

        return Destination(
            *("plant2", "mylog", 5, self.through, self.received, self.number), record_received
        )

    async def send(self, sink: MqttSink, most: int = BATCH) -> None:
        """Send the next batch, as often as it takes."""
        batch = [each for each in self.messages if each.number > self.number][:most]
        while True:
            try:
                await sink.send(batch)
            except TryAgain as answer:
                await asyncio.sleep(min(answer.after or 0, 0.2))
            else:
                break
        self.through, self.number = batch[-1].at, batch[-1].number

    @property
    def done(self) -> bool:
        return self.number == len(self.messages)


def message(at: int, qos: int = 1, **changes: Any) -> OutboxMessage:
    values: dict[str, Any] = {
        "at": at * 10,
        "position": at * 10,
        "number": at,
        "time_ms": 0,
        "topic": "sensors/a",
        "payload": str(at).encode(),
        "qos": qos,
        "retain": False,
        "client": "dev1",
    }
    return OutboxMessage(**values | changes)


def made(port: int, *lines: str, **table: object) -> MqttSink:
    values: dict[str, object] = {"addresses": f"127.0.0.1:{port}", "restart_timeout": "1 2"}
    return MqttSink(read_connection("plant2", {**values, "topic": list(lines), **table}))


@asynccontextmanager
async def opened(
    port: int, *lines: str, log: Log | None = None, **table: object
) -> AsyncIterator[MqttSink]:
    """A sink that is open, of a log without messages unless one is given."""
    sink = made(port, *lines, **table)
    try:
        await sink.open((log or Log(0, lambda _: 1)).destination())
        yield sink
    finally:
        await sink.close()


def listener(port: int, *filters: str) -> RawClient:
    client = RawClient(port)
    client.connect("listener")
    client.subscribe(*((each, 0) for each in filters))
    return client


def numbers(client: RawClient) -> list[int]:
    return [int(each.payload) for each in client.receive_all(0.5) if isinstance(each, Publish)]


async def within(step: Any, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        await step


@pytest.mark.parametrize("version", VERSIONS)
async def test_messages_arrive_once_and_in_order(mosquitto: Mosquitto, version: str) -> None:
    log, lines = Log(300, lambda number: 1 + number % 2), '# out 2 "" hq/'
    with listener(mosquitto.port, "hq/#") as client:
        async with opened(mosquitto.port, lines, log=log, bridge_protocol_version=version) as sink:
            while not log.done:
                await within(log.send(sink))
        assert log.records < 100
        arrived = numbers(client)
    # A broker passes a message on when it is released at QoS 2, so each QoS has its order.
    assert [number for number in arrived if number % 2] == list(range(1, 301, 2))
    assert [number for number in arrived if not number % 2] == list(range(2, 301, 2))


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
async def test_qos_2_arrives_once_although_the_sender_is_killed(
    mosquitto: Mosquitto, version: str
) -> None:
    log, kills = Log(200, lambda number: 2), 0
    with listener(mosquitto.port, "sensors/#") as client:
        while not log.done:
            sink = made(mosquitto.port, "# out 2", bridge_protocol_version=version)
            await sink.open(log.destination())
            sending = asyncio.create_task(log.send(sink))
            await asyncio.wait([sending], timeout=0.004 * (1 + kills % 8))
            if not sending.done() and kills < 30:
                kills += 1
                sending.cancel()
                await asyncio.wait([sending])
                kill(sink)
            else:
                await within(sending)
                await sink.close()
        arrived = numbers(client)
    assert kills > 5
    assert Counter(arrived) == Counter(range(1, 201))


def kill(sink: MqttSink) -> None:
    """End a sink as a killed process does: its connection is lost."""
    if sink._keeping is not None:
        sink._keeping.cancel()
    cut(sink)


def cut(sink: MqttSink) -> None:
    """Lose the connection."""
    if sink._link is not None and (transport := sink._link.peer._transport) is not None:
        transport.abort()


async def test_a_peer_without_answers_is_left(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_sink, "_ANSWER_SECONDS", 0.2)
    log = Log(3, lambda _number: 1)
    async with opened(mosquitto.port, "# out 1", log=log) as sink:
        mosquitto.send_signal(signal.SIGSTOP)
        with pytest.raises(TryAgain, match="no acknowledgement within"):
            await within(sink.send(log.messages))
        mosquitto.send_signal(signal.SIGCONT)
        await within(log.send(sink))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_of_the_peer_loses_nothing(
    mosquitto: Mosquitto, how: signal.Signals
) -> None:
    log, arrived = Log(300, lambda number: 1 + number % 2), list[int]()
    async with opened(mosquitto.port, "# out 2", log=log) as sink:
        with listener(mosquitto.port, "sensors/#") as client:
            while log.number < 150:
                await within(log.send(sink))
            arrived += await asyncio.to_thread(numbers, client)
        mosquitto.end(how)
        sending = asyncio.create_task(log.send(sink))
        await asyncio.sleep(0.3)
        assert not sending.done()
        mosquitto.start()
        with listener(mosquitto.port, "sensors/#") as client:
            await within(sending)
            while not log.done:
                await within(log.send(sink))
            arrived += await asyncio.to_thread(numbers, client)
    # The batch that was sent while nobody listened may be missed by the listener.
    assert {*range(1, 151), *range(201, 301)} <= {*arrived}
    assert Counter(arrived).most_common(1)[0][1] == 1


async def shows(client: RawClient, *states: bytes) -> None:
    """Wait for notifications."""
    for state in states:
        await asyncio.to_thread(client.expect_publish, "bridges/plant2", state)


async def test_notifications_show_the_state_and_a_lost_connection_comes_back(
    mosquitto: Mosquitto,
) -> None:
    with listener(mosquitto.port, "bridges/#") as client:
        for is_cut in (False, True):
            topic = "bridges/plant2"
            async with opened(mosquitto.port, "# out 1", notification_topic=topic) as sink:
                await shows(client, b"1")
                if is_cut:
                    cut(sink)
                    await shows(client, b"0", b"1")  # while nothing is sent
            await shows(client, b"0")


async def test_retain_and_properties_are_kept_and_loops_end(mosquitto: Mosquitto) -> None:
    looped = b"\x26\0\x0bfoldmq-path\0\x0bother,mylog"
    batch = [
        message(1, retain=True, topic="sensors/r"),
        message(2, topic="sensors/loop", block=looped),
        message(3),
    ]
    with listener(mosquitto.port, "sensors/#") as client:
        async with opened(mosquitto.port, "# out 1") as sink:
            await within(sink.send(batch))
        assert numbers(client) == [1, 3]
    with listener(mosquitto.port, "sensors/#") as client:
        client.expect_publish("sensors/r", b"1", retain=True)


async def test_what_the_peer_does_not_permit_is_refused(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite sensors/#\n")
    batch = [message(1, 2), message(2, 1, topic="secret"), message(3, 2)]
    with (
        peer(tmp_path, f"acl_file {rules}") as broker,
        listener(broker.port, "sensors/#") as client,
    ):
        async with opened(broker.port, "# out 2") as sink:
            with pytest.raises(RefusedMessages) as raised:
                await within(sink.send(batch))
            assert (raised.value.at, raised.value.code) == ({20}, 0x87)
            await within(sink.send([batch[0], batch[2]]))
            await within(sink.send([message(9, number=0)]))  # as an operator asks for
        assert numbers(client) == [1, 3, 9]


async def failure(port: int, **table: object) -> TryAgain:
    """Return why there is no connection."""
    with pytest.raises(TryAgain) as raised:
        async with opened(port, "# out 1", **table):
            pass
    return raised.value


@pytest.mark.parametrize(
    ("table", "error", "misconfigured"),
    [
        ({}, "Connect call failed", False),
        ({"addresses": "no-such-host.invalid"}, "no-such-host.invalid:1883: ", False),
        (
            {"remote_username": "a", "remote_password_file": "/nowhere"},
            "remote_password_file",
            True,
        ),
        ({"bridge_cafile": "/nowhere/ca.pem"}, "/nowhere/ca.pem: No such file", True),
    ],
)
async def test_why_there_is_no_connection(
    table: dict[str, object], error: str, misconfigured: bool
) -> None:
    answer = await failure(1, **table)
    assert error in answer.reason
    assert answer.misconfigured is misconfigured
    assert 0 < (answer.after or 0) <= 2


async def test_a_refused_login_is_an_error_in_the_settings(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    broker = Mosquitto(tmp_path, "peer", f"password_file {passwords}")
    broker.only_users()
    broker.start()
    try:
        for version in VERSIONS:
            answer = await failure(broker.port, bridge_protocol_version=version)
            assert "refuses the connection: not authorized (0x87)" in answer.reason
            assert answer.misconfigured
    finally:
        broker.end()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


async def test_tls_with_a_client_certificate(tmp_path: Path, authority: Authority) -> None:
    server, client = authority.server(), authority.client("plant2")
    settings = (
        f"cafile {authority.file}",
        f"certfile {server.certificate}",
        f"keyfile {server.key}",
        "require_certificate true",
        "use_identity_as_username true",
    )
    files = {
        "bridge_cafile": str(authority.file),
        "bridge_certfile": str(client.certificate),
        "bridge_keyfile": str(client.key),
        "bridge_alpn": "mqtt",
        "bridge_tls_version": "tlsv1.3",
        "bridge_tcp_keepalive": "60 10 3",
        "bridge_bind_address": "127.0.0.1",
    }
    with peer(tmp_path, *settings) as secured:
        async with opened(secured.port, "# out 2", **files) as sink:
            await within(sink.send([message(1, 2), message(2)]))
        assert "u'plant2'" in secured.log


@pytest.mark.parametrize(
    ("of_another", "insecure", "address", "error"),
    [
        (True, False, "127.0.0.1", "the certificate is not trusted: unable to get local issuer"),
        (False, False, "127.0.0.2", "the certificate is not trusted: IP address mismatch"),
        (False, True, "127.0.0.2", ""),
    ],
)
async def test_certificates_that_are_not_trusted(
    tmp_path: Path,
    authority: Authority,
    *,
    of_another: bool,
    insecure: bool,
    address: str,
    error: str,
) -> None:
    server = authority.server()
    broker = Mosquitto(tmp_path, "peer", f"certfile {server.certificate}", f"keyfile {server.key}")
    broker._config.write_text(broker._config.read_text().replace("127.0.0.1", "0.0.0.0"))
    broker.start()
    trusted = Authority(tmp_path / "other") if of_another else authority
    place = {"addresses": f"{address}:{broker.port}", "bridge_cafile": str(trusted.file)}
    try:
        if error:
            answer = await failure(1, **place, bridge_insecure=insecure)
            assert error in answer.reason
            assert answer.misconfigured
        else:
            async with opened(1, "# out 1", **place, bridge_insecure=insecure):
                pass
    finally:
        broker.end(signal.SIGKILL)


async def test_the_next_address_is_tried(mosquitto: Mosquitto) -> None:
    addresses = ["127.0.0.1:1", f"127.0.0.1:{mosquitto.port}"]
    with listener(mosquitto.port, "sensors/#") as client:
        for in_turn in (False, True):
            async with opened(1, "# out 1", addresses=addresses, round_robin=in_turn) as sink:
                await within(sink.send([message(1)]))
        assert numbers(client) == [1, 1]
