"""Messages out to Debian's Mosquitto and to a second foldmq, over kills of each side."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from harness.broker import Broker
from harness.drill import KILLS
from harness.waiting import until

from e2e.mqtt_bridges import Listener, connection, mosquitto, needs_mosquitto, publish
from e2e.outbox_process import strike
from e2e.tools import run

if TYPE_CHECKING:
    from harness.mosquitto import Mosquitto
    from harness.packets import Publish

__all__ = ["mosquitto"]

pytestmark = pytest.mark.timeout(240)


@needs_mosquitto
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])
def test_messages_go_out_under_another_prefix(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto, version: str
) -> None:
    more = f'bridge_protocol_version = "{version}"\n'
    lines = ("sensors/# out 2 site1/ hq/plant2/", "cmd/# out 1")
    broker = make_broker(connection(mosquitto.port, *lines, more=more))
    broker.start()
    listener = Listener(mosquitto.port, "#")
    for qos in (1, 2):
        publish(broker.port, range(qos * 10, qos * 10 + 10), qos, topic="site1/sensors/a")
    publish(broker.port, range(30, 32), 0, topic="site1/sensors/a")
    publish(broker.port, range(40, 42), 1, topic="site2/sensors/a")
    publish(broker.port, range(50, 52), 2, topic="cmd/x")
    until(lambda: len(listener.numbers()) >= 22, "all messages")
    topics = {int(each.payload): each.topic for each in listener.messages}
    assert topics == dict.fromkeys(range(10, 30), "hq/plant2/sensors/a") | dict.fromkeys(
        (50, 51), "cmd/x"
    )
    assert len(listener.messages) == 22
    where = ("--data-dir", str(broker.data_dir))
    (row,) = run("outbox", "ls", *where, "--json").objects
    assert (row["name"], row["kind"], row["refused"]) == ("plant2", "mqtt", 0)
    broker.stop()
    assert run("log", "verify", *where).code == 0


@needs_mosquitto
@pytest.mark.drill
@pytest.mark.parametrize(
    ("victim", "version"),
    [
        *(("broker", "mqttv311"), ("outbox", "mqttv50")),
        *(("everything", "mqttv50"), ("peer", "mqttv311")),
        pytest.param("broker", "mqttv50", marks=pytest.mark.long),
        pytest.param("outbox", "mqttv311", marks=pytest.mark.long),
        pytest.param("everything", "mqttv311", marks=pytest.mark.long),
        pytest.param("peer", "mqttv50", marks=pytest.mark.long),
    ],
)
def test_qos_2_arrives_once_over_kills(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto, victim: str, version: str
) -> None:
    more = f'bridge_protocol_version = "{version}"\n'
    broker = make_broker(connection(mosquitto.port, "sensors/# out 2", more=more))
    broker.start()
    listener = Listener(mosquitto.port, "sensors/#")
    arrived: list[int] = []
    sent = 100 * KILLS
    for first in range(0, sent, 100):
        publish(broker.port, range(first, first + 100), 2)
        if victim == "peer":
            arrived += listener.numbers()
            mosquitto.restart()
            listener = Listener(mosquitto.port, "sensors/#")
        strike(broker, victim)
    publish(broker.port, range(sent, sent + 1), 2)
    until(lambda: sent in listener.numbers(), "the last message")
    counted = Counter(arrived + listener.numbers())
    assert set(counted.values()) == {1}
    if victim != "peer":  # nobody listens while it is away
        assert counted.keys() == set(range(sent + 1))


@needs_mosquitto
def test_what_is_published_while_the_peer_is_away_follows(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto
) -> None:
    broker = make_broker(connection(mosquitto.port, "sensors/# out 2"))
    broker.start()
    mosquitto.end()
    for qos in (1, 2):
        publish(broker.port, range(qos * 1000, qos * 1000 + 300), qos)
    where = ("--data-dir", str(broker.data_dir))
    until(
        lambda: "Connect call failed" in (run("outbox", "ls", *where).out),
        "the reason that operators see",
        pause=0.5,
    )
    broker.kill()
    broker.start()
    mosquitto.start()
    listener = Listener(mosquitto.port, "sensors/#")
    until(lambda: len(set(listener.numbers())) == 600, "all messages")
    counted = Counter(listener.numbers())
    assert all(counted[number] == 1 for number in range(2000, 2300))


@needs_mosquitto
def test_nothing_is_lost_when_the_peer_loses_its_session(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto
) -> None:
    broker = make_broker(connection(mosquitto.port, "sensors/# out 2"))
    broker.start()
    for first in (0, 100):
        publish(broker.port, range(first, first + 100), 2)
        mosquitto.end(signal.SIGKILL)  # it keeps its state in memory
        mosquitto.start()
    listener = Listener(mosquitto.port, "sensors/#")
    publish(broker.port, range(200, 300), 2)
    until(lambda: set(range(200, 300)) <= set(listener.numbers()), "the last messages")
    where = ("--data-dir", str(broker.data_dir))
    until(lambda: _stored(where) >= 300, "the cursor", pause=0.5)
    broker.stop()
    assert run("log", "verify", *where).code == 0


def _stored(where: tuple[str, str]) -> int:
    """The number of messages of which the log says that the destination has them."""
    found = run("log", *where, "--json", "-n", "100000").objects
    return sum(event.get("count", 0) for event in found if event["type"] == "Forwarded")


@needs_mosquitto
def test_retained_messages_stay_retained(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto
) -> None:
    broker = make_broker(connection(mosquitto.port, "sensors/# out 1"))
    broker.start()
    publish(broker.port, range(7, 8), 1, retain=True)

    def retained() -> list[Publish]:
        listener = Listener(mosquitto.port, "sensors/#")
        listener.numbers()
        listener.client.close()
        return listener.messages

    until(retained, "the retained message", pause=0.2)
    (message,) = retained()
    assert (message.payload, message.retain) == (b"7", True)


@pytest.mark.drill
def test_between_two_foldmq_over_kills_of_both(
    make_broker: Callable[..., Broker],
) -> None:
    peer = make_broker()
    peer.start()
    broker = make_broker(connection(peer.port, "sensors/# out 2"))
    broker.start()
    sent = 50 * KILLS
    for first in range(0, sent, 50):
        publish(broker.port, range(first, first + 50), 2)
        peer.kill()
        peer.start()
        broker.kill()
        broker.start()
    listener = Listener(peer.port, "sensors/#")
    publish(broker.port, range(sent, sent + 1), 2)
    until(lambda: sent in listener.numbers(), "the last message")
    where = ("--data-dir", str(peer.data_dir))
    published = Counter(
        message["packet_id"]
        for event in run("log", *where, "--json", "-n", "100000").objects
        if event["type"] == "MessagePublished" and event["session"].startswith("plant2.")
        for message in event["messages"]
        if "packet_id" in message  # the state of the connection is sent at QoS 0
    )
    assert published == Counter(range(2, sent + 3))  # the packet identifier follows the number


@pytest.mark.drill
def test_qos_1_arrives_once_between_two_foldmq_whatever_becomes_of_the_session(
    make_broker: Callable[..., Broker],
) -> None:
    peer = make_broker()
    peer.start()
    broker = make_broker(connection(peer.port, "sensors/# out 1", more="cleansession = true\n"))
    broker.start()
    listener = Listener(peer.port, "sensors/#")
    sent = 50 * KILLS
    for first in range(0, sent, 50):
        publish(broker.port, range(first, first + 50), 1)
        strike(broker, "outbox" if first % 100 else "broker")
    publish(broker.port, range(sent, sent + 1), 1)
    until(lambda: sent in listener.numbers(), "the last message")
    assert Counter(listener.numbers()) == Counter(range(sent + 1))
    # The other log tells where a message comes from, and the command there what became of it.
    where = ("--topic", "sensors/a", "--last", "1", "--data-dir", str(peer.data_dir))
    origin = run("why", *where, "--json").objects[0]["origin"]
    assert origin["client"] == f"plant2.{origin['log']}"
    place = f"foldmq why --position {origin['position']} --node {origin['log']}"
    assert place in run("why", *where).out
    there = ("--position", origin["position"], "--data-dir", str(broker.data_dir))
    until(
        lambda: "sent to plant2, and acknowledged" in run("why", *there).out,
        "the cursor behind the message",
        pause=0.5,
    )
    # What each command says of the other broker runs there as it is.
    sender = ("--data-dir", str(broker.data_dir))
    (back,) = re.findall(r"foldmq (why --position \S+ --node \S+)", run("why", *where).out)
    said = run(*back.split(), *sender).out
    assert "sent to plant2, and acknowledged by then" in said
    (onward,) = re.findall(r"foldmq (why --position \S+ --origin \S+)", said)
    (received,) = run(*onward.split(), "--data-dir", str(peer.data_dir), "--json").objects
    assert received["origin"] == origin
    assert received == run("why", *where, "--json").objects[0]
    unknown = run(*onward.split(), *sender, code=1)
    assert "no connection brought the message" in unknown.err
    alone = run("why", "--topic", "sensors/a", "--origin", "x", *sender, code=2)
    assert "--origin needs --position" in alone.err


@pytest.mark.parametrize("version", [pytest.param("mqttv311", marks=pytest.mark.long), "mqttv50"])
def test_qos_0_passes_while_the_peer_is_there(
    make_broker: Callable[..., Broker], version: str
) -> None:
    peer = make_broker()
    peer.start()
    more = f'bridge_protocol_version = "{version}"\n'
    broker = make_broker(connection(peer.port, "live/# out 0", "sensors/# out 1", more=more))
    broker.start()
    until(lambda: "connected to another broker" in broker.log, "the connection")
    listener = Listener(peer.port, "#")
    publish(broker.port, range(20), 0, "live/a")
    until(lambda: set(listener.numbers()) == set(range(20)), "the messages at QoS 0")
    publish(broker.port, range(20, 21), 2, "live/a")
    publish(broker.port, range(21, 22), 0, "sensors/a")
    publish(broker.port, range(22, 23), 1, "sensors/a")
    until(lambda: 22 in listener.numbers(), "the last message")
    assert Counter(listener.numbers()) == Counter([*range(21), 22])
    peer.kill()
    publish(broker.port, range(30, 35), 0, "live/a")
    peer.start()
    until(lambda: "messages at QoS 0 were dropped" in broker.log, "the connection again")
    listener = Listener(peer.port, "#")
    publish(broker.port, range(40, 41), 0, "live/a")
    until(lambda: 40 in listener.numbers(), "a message after that")
    broker.stop()
