"""Third-party client libraries and programs, against the shared broker."""

import asyncio
import contextlib
import queue
import shutil
import subprocess
from collections.abc import Iterator

import aiomqtt
import paho.mqtt.client as paho
import pytest
from harness.broker import Broker
from harness.fixtures import Address, Clients, unique

TIMEOUT = 10.0
QOS = [0, 1, 2]


class Paho:
    """A paho client whose messages and events are waited for."""

    def __init__(self, broker: Broker | Address, client_id: str, *, clean: bool = True) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._events: queue.Queue[tuple[str, object]] = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=clean
        )
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_connect = lambda _c, _u, flags, reason, _p: self._events.put(
            ("connect", (flags.session_present, reason.is_failure))
        )
        self.client.on_subscribe = lambda _c, _u, _m, reasons, _p: self._events.put(
            ("subscribe", [reason.value for reason in reasons])
        )
        self.client.on_disconnect = lambda *_: self._events.put(("disconnect", None))
        self._broker = broker

    def connect(self) -> bool:
        """Connects; returns session present."""
        self.client.connect("127.0.0.1", self._broker.port, keepalive=30)
        self.client.loop_start()
        session_present, failed = self._event("connect")  # type: ignore[misc]
        assert not failed
        return bool(session_present)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        assert self._event("subscribe") == [qos]

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        info = self.client.publish(topic, payload, qos, retain)
        info.wait_for_publish(TIMEOUT)
        assert info.is_published()

    def disconnect(self) -> None:
        self.client.disconnect()
        self._event("disconnect")
        self.client.loop_stop()

    def cut(self) -> None:
        """Ends the connection without DISCONNECT."""
        self.client.loop_stop()
        sock = self.client.socket()
        assert sock is not None
        sock.close()

    def next_message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=TIMEOUT)

    def _event(self, name: str) -> object:
        received, value = self._events.get(timeout=TIMEOUT)
        assert received == name
        return value


@pytest.fixture
def pahos(broker: Broker | Address) -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def start_paho(
    stack: contextlib.ExitStack,
    broker: Broker | Address,
    client_id: str = "",
    *,
    clean: bool = True,
) -> Paho:
    client = Paho(broker, client_id or unique("c"), clean=clean)
    stack.callback(client.client.loop_stop)
    stack.callback(client.client.disconnect)
    client.connect()
    return client


# ---------------------------------------------------------------------- paho


@pytest.mark.mqtt("MQTT-7.0.0-2", "MQTT-7.1.1-1")
@pytest.mark.parametrize("qos", QOS)
def test_paho_publishes_to_paho(
    broker: Broker, pahos: contextlib.ExitStack, topic: str, qos: int
) -> None:
    subscriber, publisher = start_paho(pahos, broker), start_paho(pahos, broker)
    subscriber.subscribe(f"{topic}/#", qos)
    for number in range(50):
        publisher.publish(f"{topic}/{number % 3}", b"%d" % number, qos)
    received = [subscriber.next_message() for _ in range(50)]
    assert [int(m.payload) for m in received] == list(range(50))
    assert {m.qos for m in received} == {qos}
    assert not any(m.dup or m.retain for m in received)


@pytest.mark.parametrize("qos", [1, 2])
def test_paho_persistent_session_with_an_offline_queue(
    broker: Broker, pahos: contextlib.ExitStack, topic: str, qos: int
) -> None:
    first = Paho(broker, topic, clean=False)
    assert not first.connect()
    first.subscribe(topic, qos)
    first.disconnect()
    publisher = start_paho(pahos, broker)
    for number in range(100):
        publisher.publish(topic, b"%d" % number, qos)
    second = Paho(broker, topic, clean=False)
    pahos.callback(second.client.loop_stop)
    assert second.connect()
    assert [int(second.next_message().payload) for _ in range(100)] == list(range(100))
    second.disconnect()


def test_paho_speaks_mqtt_3_1(broker: Broker, topic: str, clients: Clients) -> None:
    watcher = clients.subscribed(topic, 1)
    old = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id=unique("c"), protocol=paho.MQTTv31
    )
    old.connect("127.0.0.1", broker.port)
    old.loop_start()
    try:
        old.publish(topic, b"old", 1).wait_for_publish(TIMEOUT)
    finally:
        old.disconnect()
        old.loop_stop()
    watcher.acknowledge(watcher.expect_publish(topic, b"old", 1))


# ------------------------------------------------------------------- aiomqtt


@pytest.mark.mqtt("MQTT-7.0.0-2")
@pytest.mark.parametrize("qos", QOS)
async def test_aiomqtt(broker: Broker, topic: str, qos: int) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        aiomqtt.Client("127.0.0.1", broker.port) as subscriber,
        aiomqtt.Client("127.0.0.1", broker.port) as publisher,
    ):
        await subscriber.subscribe(f"{topic}/+", qos=qos)
        for number in range(30):
            await publisher.publish(f"{topic}/{number % 2}", b"%d" % number, qos=qos)
        received = []
        async for message in subscriber.messages:
            received.append(int(message.payload))  # type: ignore[arg-type]
            if len(received) == 30:
                break
    assert received == list(range(30))


async def test_aiomqtt_many_publishers_at_once(broker: Broker, topic: str) -> None:
    async def publish_all(index: int) -> None:
        async with aiomqtt.Client("127.0.0.1", broker.port) as publisher:
            for number in range(20):
                await publisher.publish(f"{topic}/{index}", b"%d" % number, qos=1)

    seen: dict[str, list[int]] = {}
    async with (
        asyncio.timeout(TIMEOUT),
        aiomqtt.Client("127.0.0.1", broker.port) as subscriber,
        asyncio.TaskGroup() as group,
    ):
        await subscriber.subscribe(f"{topic}/#", qos=1)
        for index in range(10):
            group.create_task(publish_all(index))
        total = 0
        async for message in subscriber.messages:
            seen.setdefault(str(message.topic), []).append(int(message.payload))  # type: ignore[arg-type]
            total += 1
            if total == 200:
                break
    assert seen == {f"{topic}/{index}": list(range(20)) for index in range(10)}


# ------------------------------------------------- mosquitto_pub, mosquitto_sub


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub not installed")
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311"])
@pytest.mark.parametrize("qos", QOS)
def test_mosquitto_clients(
    broker: Broker, clients: Clients, topic: str, qos: int, version: str
) -> None:
    common = ["-h", "127.0.0.1", "-p", str(broker.port), "-V", version, "-q", str(qos), "-t", topic]
    ready = clients.connect()
    ready.publish(topic, b"retained", 1, retain=True)
    with subprocess.Popen(
        ["mosquitto_sub", *common, "-i", unique("s"), "-C", "4", "-W", "10", "-F", "%r %p"],
        stdout=subprocess.PIPE,
        text=True,
    ) as subscriber:
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == "1 retained\n"
        for text in ("one", "two", "three"):
            subprocess.run(["mosquitto_pub", *common, "-m", text], check=True, timeout=TIMEOUT)
        assert subscriber.stdout.read() == "0 one\n0 two\n0 three\n"
        assert subscriber.wait(TIMEOUT) == 0
    ready.publish(topic, b"", retain=True)


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub not installed")
def test_mosquitto_pub_of_many_lines(broker: Broker, clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic, 0)
    lines = "".join(f"line {number}\n" for number in range(500))
    command = ["mosquitto_pub", "-p", str(broker.port), "-t", topic, "-q", "1", "-l"]
    subprocess.run(command, input=lines, text=True, check=True, timeout=TIMEOUT)
    for number in range(500):
        watcher.expect_publish(topic, b"line %d" % number)
