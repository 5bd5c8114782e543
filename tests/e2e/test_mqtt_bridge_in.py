"""Messages in from Debian's Mosquitto and from a second foldmq, over kills of each side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from harness.drill import KILLS
from harness.waiting import until

from e2e.mqtt_bridges import Listener, connection, mosquitto, needs_mosquitto, publish, subscribed
from e2e.outbox_process import strike
from e2e.tools import run

if TYPE_CHECKING:
    from harness.broker import Broker
    from harness.mosquitto import Mosquitto

__all__ = ["mosquitto"]

pytestmark = pytest.mark.timeout(240)


def entered(broker: Broker) -> Counter[int]:
    """How often the log has each packet identifier of a message in, at QoS 2."""
    found = run("log", "--data-dir", str(broker.data_dir), "--json", "-n", "100000").objects
    return Counter(
        message["packet_id"]
        for event in found
        if event["type"] == "MessagePublished" and event["session"] == "bridge.plant2"
        for message in event["messages"]
    )


def sent_after_release(log: str) -> set[int]:
    """The packet identifiers that Mosquitto used for a message again after its PUBREL.

    Mosquitto 2.0.11 does so after a restart, which the standard forbids [MQTT-4.3.3-5].
    """
    released: set[int] = set()
    again: set[int] = set()
    for line in log.splitlines():
        if found := re.search(r"Sending PUBREL to plant2\S* \(m(\d+)\)", line):
            released.add(int(found[1]))
        elif found := re.search(r"Sending PUBLISH to plant2\S* \(d1, q2, r0, m(\d+),", line):
            again |= released & {int(found[1])}
    return again


@needs_mosquitto
@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_messages_go_both_ways_once(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto, version: str
) -> None:
    more = f'bridge_protocol_version = "{version}"\n'
    lines = ("shared/# both 2 site1/ hq/", "cmd/# in 1")
    broker = make_broker(connection(mosquitto.port, *lines, more=more))
    broker.start()
    until(lambda: subscribed(broker), "the bridge", pause=0.5)
    here, there = Listener(broker.port, "#"), Listener(mosquitto.port, "#")
    publish(mosquitto.port, range(1, 11), 2, "hq/shared/a")
    publish(mosquitto.port, range(11, 21), 1, "cmd/a")
    publish(mosquitto.port, range(21, 31), 0, "cmd/a")
    publish(broker.port, range(31, 41), 2, "site1/shared/b")
    until(lambda: len(set(here.numbers())) == 40, "all messages here")
    until(lambda: len(set(there.numbers())) == 40, "all messages there")
    for listener in (here, there):
        assert Counter(listener.numbers()) == Counter(range(1, 41))
    assert {each.topic for each in here.messages} == {"site1/shared/a", "cmd/a", "site1/shared/b"}
    assert {each.topic for each in there.messages} == {"hq/shared/a", "cmd/a", "hq/shared/b"}


@needs_mosquitto
@pytest.mark.drill
@pytest.mark.parametrize(
    ("victim", "version"),
    [
        *(("broker", "mqttv50"), ("outbox", "mqttv311"), ("peer", "mqttv50")),
        pytest.param("broker", "mqttv311", marks=pytest.mark.long),
        pytest.param("outbox", "mqttv50", marks=pytest.mark.long),
        pytest.param("peer", "mqttv311", marks=pytest.mark.long),
    ],
)
def test_qos_2_enters_once_over_kills(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto, victim: str, version: str
) -> None:
    more = f'bridge_protocol_version = "{version}"\n'
    broker = make_broker(connection(mosquitto.port, "cmd/# in 2", more=more))
    broker.start()
    until(lambda: subscribed(broker), "the bridge", pause=0.5)
    sent = 100 * KILLS
    for first in range(1, sent, 100):
        publish(mosquitto.port, range(first, first + 100), 2, "cmd/a")
        strike(broker, victim, mosquitto.restart)
    publish(mosquitto.port, range(sent + 1, sent + 2), 2, "cmd/last")
    until(lambda: len(entered(broker)) == sent + 1, "all messages", pause=0.5)
    twice = {number for number, times in entered(broker).items() if times > 1}
    assert twice <= sent_after_release(mosquitto.log)


def test_in_from_another_foldmq(make_broker: Callable[..., Broker]) -> None:
    peer = make_broker()
    peer.start()
    broker = make_broker(connection(peer.port, "cmd/# in 2", "state/# out 2"))
    broker.start()
    until(lambda: subscribed(broker), "the bridge", pause=0.5)
    for round_number in range(2):
        first = 1 + round_number * 50
        publish(peer.port, range(first, first + 50), 2, "cmd/a")
        publish(broker.port, range(first, first + 50), 2, "state/a")
        broker.kill()
        broker.start()
        peer.kill()
        peer.start()
    here, there = Listener(broker.port, "cmd/#"), Listener(peer.port, "state/#")
    publish(peer.port, range(101, 102), 2, "cmd/a")
    publish(broker.port, range(101, 102), 2, "state/a")
    until(lambda: 101 in here.numbers(), "the last message here")
    until(lambda: 101 in there.numbers(), "the last message there")
    assert sum(entered(broker).values()) == 101
    lost = "the other broker has lost the session"
    assert lost not in broker.log
    node = (broker.data_dir / "node").read_text().strip()
    run("sessions", "rm", f"plant2.{node}", "--data-dir", str(peer.data_dir), "--yes")
    until(lambda: lost in broker.log, "the warning")
