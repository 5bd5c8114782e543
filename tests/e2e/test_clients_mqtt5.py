"""Third-party client libraries and programs at level 5: over TCP and over WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest
from harness.broker import Broker, free_port
from harness.fixtures import unique
from paho.mqtt.packettypes import PacketTypes

from e2e.mqtt5_peers import (
    TIMEOUT,
    Got,
    JsPeer,
    Node,
    PahoPeer,
    Peer,
    paho_properties,
)
from e2e.tools import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Connect = Callable[..., Peer]

KINDS = ["paho-tcp", "paho-ws", "mqttjs-tcp", "mqttjs-ws"]
WEB = Path(__file__).resolve().parent / "web"
RULES = """
[[allow]]
both = ["#"]

[[deny]]
subscribe = ["secret/#"]
"""
PROPERTIES: dict[str, Any] = {
    "payloadFormatIndicator": 1,
    "contentType": "text/plain",
    "responseTopic": "answers/here",
    "correlationData": b"\x00\xff7",
    "userProperties": [("b", "1"), ("b", "3"), ("a", "2")],
}

needs_mosquitto = pytest.mark.skipif(
    not (shutil.which("mosquitto_sub") and shutil.which("mosquitto_rr")),
    reason="there are no mosquitto clients (on Debian: apt install mosquitto-clients)",
)


class Stand:
    """The broker, and connected clients of each kind."""

    def __init__(self, broker: Broker, ports: dict[str, int], node: Node | None) -> None:
        self.broker = broker
        self.ports = ports
        self.node = node

    def connect(self, kind: str, **how: Any) -> Peer:
        library, _, transport = kind.partition("-")
        if library == "paho":
            return PahoPeer(self.ports, transport, **how)  # type: ignore[arg-type]
        return JsPeer(self.javascript(), self.ports, transport, **how)  # type: ignore[arg-type]

    def javascript(self) -> Node:
        if self.node is None:
            pytest.skip("MQTT.js cannot be had")
        return self.node


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, mqttjs: Path | None) -> Iterator[Stand]:
    directory = tmp_path_factory.mktemp("mqtt5")
    (directory / "permissions.toml").write_text(RULES)
    broker = Broker(directory, forked=True)
    ports = {"tcp": broker.port, "ws": free_port()}
    listen = "".join(
        f'[[listen]]\naddress = "{scheme}127.0.0.1:{ports[transport]}"\n'
        for transport, scheme in (("tcp", ""), ("ws", "ws://"))
    )
    broker.configure(f'permissions = "{directory / "permissions.toml"}"\n{listen}')
    broker.start()
    node = None if mqttjs is None else Node(mqttjs, WEB / "mqtt5.js")
    try:
        yield Stand(broker, ports, node)
        broker.stop()
    finally:
        if node is not None:
            node.close()
        broker.clean_up()


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest, stand: Stand) -> Iterator[Connect]:
    """Connects a client of one kind; all of them leave at the end."""
    made: list[Peer] = []

    def connected(**how: Any) -> Peer:
        made.append(stand.connect(request.param, **how))
        return made[-1]

    yield connected
    for one in made:
        with contextlib.suppress(Exception):
            one.leave()


def payloads(peer: Peer, count: int) -> list[bytes]:
    return [peer.next().payload for _ in range(count)]


# ------------------------------------------------------------ paho and MQTT.js


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_arrive_as_they_were_sent(
    stand: Stand, connect: Connect, topic: str, qos: int
) -> None:
    """At clients of every kind; of user properties MQTT.js keeps the order name by name."""
    receivers = [stand.connect(kind) for kind in KINDS]
    for one in receivers:
        assert one.subscribe(topic, qos) == qos
    sender = connect()
    sender.publish(topic, b"plain", qos)
    sender.publish(topic, b"rich", qos, messageExpiryInterval=500, **PROPERTIES)
    for one in receivers:
        assert one.next() == Got(topic, b"plain", qos)
        found = one.next()
        assert 400 < found.properties.pop("messageExpiryInterval") <= 500
        assert found == Got(topic, b"rich", qos, properties=PROPERTIES)
        one.leave()


def test_a_topic_alias(connect: Connect, topic: str) -> None:
    receiver, sender = connect(), connect()
    receiver.subscribe(f"{topic}/#", 1)
    sender.publish(f"{topic}/a", b"1", 1, topicAlias=3)
    sender.publish("", b"2", 1, topicAlias=3)
    sender.publish(f"{topic}/b", b"3", 1, topicAlias=3)
    sender.publish("", b"4", 1, topicAlias=3)
    topics = [f"{topic}/{letter}" for letter in "aabb"]
    assert [receiver.next() for _ in topics] == [
        Got(name, b"%d" % number, 1) for number, name in enumerate(topics, 1)
    ]


def test_options_of_subscriptions(connect: Connect, topic: str) -> None:
    client, other = connect(), connect()
    assert client.subscribe(f"{topic}/own", 1, nl=True) == 1
    assert client.subscribe(f"{topic}/#", 0, identifier=7, rap=True) == 0
    client.publish(f"{topic}/own", b"mine", 1)
    other.publish(f"{topic}/own", b"theirs", 1)
    other.publish(f"{topic}/kept", b"kept", 1, retain=True)
    identified = {"subscriptionIdentifier": [7]}
    assert [client.next() for _ in range(3)] == [
        Got(f"{topic}/own", b"mine", 0, properties=identified),
        Got(f"{topic}/own", b"theirs", 1, properties=identified),
        Got(f"{topic}/kept", b"kept", 0, retain=True, properties=identified),
    ]
    other.publish(f"{topic}/kept", b"", retain=True)


# ------------------------------------------------------- requests and answers


def asks(stand: Stand, topic: str) -> JsPeer:
    """A client of MQTT.js that answers requests."""
    found = stand.connect("mqttjs-ws")
    assert isinstance(found, JsPeer)
    found.answer(f"{topic}/service")
    return found


@needs_mosquitto
def test_a_request_from_mosquitto_rr_to_mqttjs(stand: Stand, topic: str) -> None:
    service = asks(stand, topic)
    where = ["-p", str(stand.ports["tcp"]), "-V", "mqttv5", "-q", "1", "-W", "20"]
    command = ["mosquitto_rr", *where, "-t", f"{topic}/service", "-e", f"{topic}/answers"]
    more = ["-m", "what", "-D", "publish", "correlation-data", "17", "-F", "%p %D"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
    assert done.stdout == "WHAT 17\n"
    service.leave()


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
async def test_a_request_from_aiomqtt_to_aiomqtt(stand: Stand, topic: str, transport: str) -> None:
    port = stand.ports["tcp" if transport == "tcp" else "ws"]

    def client() -> aiomqtt.Client:
        version = aiomqtt.ProtocolVersion.V5
        return aiomqtt.Client(
            "127.0.0.1",
            port,
            protocol=version,
            transport=transport,  # type: ignore[arg-type]
            websocket_path="/mqtt",
        )

    async with asyncio.timeout(TIMEOUT), client() as service, client() as asking:
        await service.subscribe(f"{topic}/service", qos=2)
        await asking.subscribe(f"{topic}/answers", qos=1)
        asked = paho_properties(
            PacketTypes.PUBLISH,
            ResponseTopic=f"{topic}/answers",
            CorrelationData=b"\xff1",
            UserProperty=[("b", "1"), ("a", "2"), ("b", "3")],
        )
        await asking.publish(f"{topic}/service", b"what", qos=2, properties=asked)
        request = await anext(aiter(service.messages))
        assert request.properties is not None
        found = request.properties
        assert found.UserProperty == [("b", "1"), ("a", "2"), ("b", "3")]
        answer = paho_properties(PacketTypes.PUBLISH, CorrelationData=found.CorrelationData)
        await service.publish(found.ResponseTopic, b"that", qos=1, properties=answer)
        reply = await anext(aiter(asking.messages))
        assert (reply.payload, reply.qos) == (b"that", 1)
        assert reply.properties is not None
        assert reply.properties.CorrelationData == b"\xff1"
        (refused,) = await asking.subscribe("secret/plans", qos=1)
        assert refused == 0x87


# ------------------------------------------ mosquitto_pub, mosquitto_sub, foldmq


@needs_mosquitto
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_and_foldmq_understand_each_other(stand: Stand, topic: str, qos: str) -> None:
    """Each of the two publishers reaches each of the two subscribers, properties in order."""
    port = str(stand.ports["tcp"])
    shown = "%t %p %q %C %D %R %P"
    theirs = ["mosquitto_sub", "-p", port, "-V", "5", "-t", topic, "-q", qos, "-C", "3", "-W", "30"]
    waiting = stand.connect("paho-tcp")
    waiting.publish(topic, b"ready", 1, retain=True)
    with subprocess.Popen([*theirs, "-F", shown], stdout=subprocess.PIPE, text=True) as subscriber:
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline().split()[1] == "ready"
        session = ["-p", port, "-i", unique("keeper"), "-c", "-V", "5", "-t", topic, "-q", "2"]
        run("sub", *session, "-E", "--retain-handling", "never")
        common = ["-p", port, "-t", topic, "-q", qos]
        users = [("b", "1"), ("a", "2"), ("b", "3")]
        theirs_users = [
            word for pair in users for word in ("-D", "publish", "user-property", *pair)
        ]
        command = ["mosquitto_pub", *common, "-V", "5", "-m", "theirs", *theirs_users]
        for name, value in (
            ("content-type", "t/x"),
            ("correlation-data", "c1"),
            ("response-topic", "r"),
        ):
            command += ["-D", "publish", name, value]
        subprocess.run(command, check=True, timeout=TIMEOUT)
        ours = [word for name, value in users for word in ("--user-property", f"{name}={value}")]
        more = ["--content-type", "t/x", "--correlation-data", "c1", "--response-topic", "r"]
        run("pub", *common, "-m", "ours", *more, *ours)
        expected = [f"{topic} {who} {qos} t/x c1 r b:1 a:2 b:3" for who in ("theirs", "ours")]
        assert [line.strip() for line in subscriber.stdout.read().splitlines()] == expected
        assert subscriber.wait(TIMEOUT) == 0
        if qos != "0":
            received = run("sub", *session, "-C", "2", "--retain-handling", "never", "-F", shown)
            assert received.lines == expected
    waiting.publish(topic, b"", retain=True)
    waiting.leave()
