"""Mosquitto brokers as bridges: what one side publishes arrives once on the other."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.mosquitto import MOSQUITTO, Mosquitto
from harness.packets import Publish, Will
from harness.rawclient import RawClient
from harness.waiting import until

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")

VERSIONS = ("mqttv31", "mqttv311", "mqttv50")


def bridge_lines(name: str, remote: int) -> list[str]:
    """Return the settings of a bridge to a broker."""
    return [
        f"connection {name}",
        f"address 127.0.0.1:{remote}",
        f"remote_clientid {name}",
        "restart_timeout 1",
    ]


@pytest.fixture(scope="module")
def foldmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("foldmq"), forked=True) as broker:
        yield broker


@pytest.fixture
def bridges(tmp_path: Path) -> Iterator[list[Mosquitto]]:
    """Those that a test starts; they are ended."""
    started: list[Mosquitto] = []
    yield started
    for one in started:
        one.end()


def started(directory: Path) -> Broker:
    (directory / "foldmq").mkdir()
    broker = Broker(directory / "foldmq", forked=True)
    broker.start()
    return broker


def bridge(
    bridges: list[Mosquitto], directory: Path, name: str, remote: int, *lines: str
) -> Mosquitto:
    """Start a Mosquitto with a bridge; return when the bridge has subscribed."""
    found = Mosquitto(directory, name, *bridge_lines(name, remote), *lines)
    bridges.append(found)
    found.start()
    until(lambda: is_connected(found), f"{name} is connected")
    return found


def is_connected(one: Mosquitto) -> bool:
    """Whether the bridge has as many SUBACKs as it sent SUBSCRIBEs."""
    asked = one.log.count(" sending SUBSCRIBE (")
    return 0 < asked <= one.log.count("Received SUBACK from local.")


def listener(port: int, name: str, *filters: tuple[str, int]) -> RawClient:
    client = RawClient(port)
    client.connect(name)
    client.subscribe(*filters)
    return client


def publish(port: int, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
    with RawClient(port) as client:
        client.connect("publisher")
        client.publish(topic, payload, qos, retain=retain)
        client.disconnect()


@pytest.mark.parametrize(
    ("version", "private"),
    [("mqttv31", "true"), ("mqttv311", "true"), ("mqttv311", "false"), ("mqttv50", "false")],
)
def test_messages_go_both_ways_once(
    foldmq: Broker, bridges: list[Mosquitto], tmp_path: Path, version: str, private: str
) -> None:
    """With prefixes, at each QoS. What is not recognized as a bridge gets its own messages back."""
    recognized = private == "true" or version == "mqttv50"
    name = f"{version}-{private}"
    one = bridge(
        bridges,
        tmp_path,
        name,
        foldmq.port,
        f"bridge_protocol_version {version}",
        f"try_private {private}",
        f"topic out/# out 2 from/ {name}/",
        f"topic in/# in 2 from/ {name}/",
        f"topic both/# both 2 from/ {name}/",
    )
    here = listener(foldmq.port, f"{name}-here", (f"{name}/#", 2))
    there = listener(one.port, "there", ("from/#", 2))
    for qos in (0, 1, 2):
        publish(one.port, f"from/out/{qos}", b"out", qos)
        here.acknowledge(here.expect_publish(f"{name}/out/{qos}", b"out", qos))
        there.acknowledge(there.expect_publish(f"from/out/{qos}", b"out", qos))
        publish(foldmq.port, f"{name}/in/{qos}", b"in", qos)
        here.acknowledge(here.expect_publish(f"{name}/in/{qos}", b"in", qos))
        there.acknowledge(there.expect_publish(f"from/in/{qos}", b"in", qos))
        if not recognized:
            continue
        publish(foldmq.port, f"{name}/both/{qos}", b"1", qos)
        here.acknowledge(here.expect_publish(f"{name}/both/{qos}", b"1", qos))
        there.acknowledge(there.expect_publish(f"from/both/{qos}", b"1", qos))
        publish(one.port, f"from/both/{qos}", b"2", qos)
        here.acknowledge(here.expect_publish(f"{name}/both/{qos}", b"2", qos))
        there.acknowledge(there.expect_publish(f"from/both/{qos}", b"2", qos))
    here.expect_nothing()
    there.expect_nothing()
    assert one.log.count("sending CONNECT") == 1
    here.close()
    there.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_retained_messages_stay_retained(
    foldmq: Broker, bridges: list[Mosquitto], tmp_path: Path, version: str
) -> None:
    """Those published before the bridge connected, and those after it."""
    name = f"retained-{version}"
    publish(foldmq.port, f"{name}/before", b"1", 1, retain=True)
    one = bridge(
        bridges,
        tmp_path,
        name,
        foldmq.port,
        f"bridge_protocol_version {version}",
        f"topic {name}/# both 1",
    )
    publish(foldmq.port, f"{name}/after", b"2", 1, retain=True)
    publish(foldmq.port, f"{name}/qos0", b"3", 0, retain=True)
    publish(one.port, f"{name}/there", b"4", 1, retain=True)
    watching = listener(one.port, "watching", (f"{name}/#", 1))
    found: dict[str, bytes] = {}

    def complete() -> bool:
        for message in watching.receive_all():
            watching.acknowledge(message)  # type: ignore[arg-type]  # nothing else comes
            found[message.topic] = message.payload  # type: ignore[union-attr]
        return len(found) == 4

    until(complete, "all are there")
    # A client that comes now gets retained messages alone.
    late = listener(one.port, "late", (f"{name}/#", 1))
    kept = [late.expect_a(Publish) for _ in range(4)]
    assert all(message.retain for message in kept)
    seen = {message.topic for message in kept}
    assert seen == {f"{name}/{end}" for end in ("before", "after", "qos0", "there")}
    here = listener(foldmq.port, f"{name}-here", (f"{name}/there", 1))
    here.acknowledge(here.expect_publish(f"{name}/there", b"4", 1, retain=True))
    for client in (watching, late, here):
        client.close()


@pytest.mark.parametrize(
    ("version", "how"),
    [
        *(("mqttv311", signal.SIGKILL), ("mqttv50", signal.SIGTERM)),
        pytest.param("mqttv311", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("mqttv50", signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_nothing_is_lost_while_either_side_is_away(
    tmp_path: Path, bridges: list[Mosquitto], version: str, how: signal.Signals
) -> None:
    """The session of the bridge is kept: cleansession false.

    With MQTT 5 Mosquitto 2.0 asks for a session that ends with its connection.
    """
    broker = started(tmp_path)
    try:
        lines = (
            f"bridge_protocol_version {version}",
            "cleansession false",
            "local_cleansession false",
            "topic out/# out 2",
            "topic in/# in 2",
        )
        one = bridge(bridges, tmp_path, "kept", broker.port, *lines)
        with RawClient(one.port) as there:
            there.connect("there", clean=False)
            there.subscribe(("in/#", 1))
            there.disconnect()
        one.end()
        kept = 3 if version == "mqttv311" else 0
        for number in range(kept):
            publish(broker.port, f"in/{number}", b"%d" % number, 1)
        if how is signal.SIGKILL:
            broker.restart(kill=True)
        one.start()
        with RawClient(one.port) as there:
            there.connect("there", clean=False)
            for number in range(kept):
                there.acknowledge(there.expect_publish(f"in/{number}", b"%d" % number, 1))
        with RawClient(broker.port) as here:
            here.connect("here", clean=False)
            here.subscribe(("out/#", 1))
            here.disconnect()
        if how is signal.SIGKILL:
            broker.kill()
        else:
            broker.stop()
        for number in range(3):
            publish(one.port, f"out/{number}", b"%d" % number, 1)
        broker.start()
        with RawClient(broker.port) as here:
            here.connect("here", clean=False)
            for number in range(3):
                here.acknowledge(here.expect_publish(f"out/{number}", b"%d" % number, 1))
    finally:
        broker.clean_up()


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_two_mosquittos_around_foldmq(
    foldmq: Broker, bridges: list[Mosquitto], tmp_path: Path, version: str
) -> None:
    """Each message arrives once at each broker, and nothing goes round."""
    name = f"round-{version}"
    lines = (f"bridge_protocol_version {version}", f"topic {name}/# both 2")
    east = bridge(bridges, tmp_path, f"{name}-east", foldmq.port, *lines)
    west = bridge(bridges, tmp_path, f"{name}-west", foldmq.port, *lines)
    ports = [east.port, foldmq.port, west.port]
    watching = [listener(port, f"{name}-watching", (f"{name}/#", 2)) for port in ports]
    for at, port in enumerate(ports):
        for qos in (0, 1, 2):
            for retain in (False, True):
                topic, payload = f"{name}/{at}/{qos}", f"{at} {qos} {retain}".encode()
                publish(port, topic, payload, qos, retain=retain)
                for client in watching:
                    client.acknowledge(client.expect_publish(topic, payload, qos))
    for client in watching:
        client.expect_nothing()
        client.close()


@pytest.mark.parametrize("version", ["mqttv31", "mqttv50"])
def test_the_state_of_a_bridge(tmp_path: Path, bridges: list[Mosquitto], version: str) -> None:
    """It is a retained message: 1 while the bridge is connected, 0 when it is not."""
    broker = started(tmp_path)
    topic = "$SYS/broker/connection/noted/state"
    try:
        watching = listener(broker.port, "watching", ("$SYS/broker/connection/#", 1))
        lines = (f"bridge_protocol_version {version}", "topic x/# both 1", "notifications true")
        one = bridge(bridges, tmp_path, "noted", broker.port, *lines)
        watching.acknowledge(watching.expect_publish(topic, b"1", 1))
        one.end(signal.SIGKILL)
        watching.acknowledge(watching.expect_publish(topic, b"0", 1))
        one.start()
        watching.acknowledge(watching.expect_publish(topic, b"1", 1))
        broker.kill()
        one.end(signal.SIGKILL)
        broker.start()
        # The will of a bridge that did not come back after the crash.
        watching = listener(broker.port, "watching", ("$SYS/broker/connection/+/state", 1))
        state = watching.expect_a(Publish)
        if state.payload == b"1":
            watching.acknowledge(state)
            watching.expect_publish(topic, b"0", 1)
    finally:
        broker.clean_up()


def test_others_do_not_publish_the_state_of_a_bridge(foldmq: Broker) -> None:
    topic = "$SYS/broker/connection/false/state"
    watching = listener(foldmq.port, "false-watching", (topic, 1))
    client = RawClient(foldmq.port)
    client.connect("false", will=Will(topic, b"0", 1, retain=True))
    for qos in (0, 1, 2):
        for retain in (False, True):
            client.publish(topic, b"1", qos, retain=retain)
    client.expect_alive()
    client.close()
    watching.expect_nothing()
    watching.close()
