"""Rings of brokers: each message is there once, in one direction round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.mosquitto import Mosquitto
from harness.waiting import until

from e2e.mqtt_bridges import Listener, connection, needs_mosquitto, publish, subscribed

if TYPE_CHECKING:
    from harness.broker import Broker

pytestmark = pytest.mark.timeout(240)

_EACH = 10


@pytest.fixture
def ring_mosquitto(tmp_path: Path) -> Iterator[Callable[..., Mosquitto]]:
    """Makes a Mosquitto with a bridge to a port; it has to be started."""
    made: list[Mosquitto] = []

    def make(remote: int, *lines: str) -> Mosquitto:
        bridge = (
            *("connection around", f"address 127.0.0.1:{remote}", "remote_clientid around"),
            *("bridge_protocol_version mqttv50", "restart_timeout 1"),
        )
        made.append(Mosquitto(tmp_path / "peer", "peer", *bridge, *lines))
        return made[-1]

    yield make
    for broker in made:
        broker.end()


def copies(ports: list[int], qos: int) -> list[Counter[int]]:
    """Publish at each broker of a ring; return what listeners at each of them get.

    A last message goes round behind the others. It is published once all brokers have them.
    """
    listeners = [Listener(port, "ring/#", f"listener{port}") for port in ports]
    for index, port in enumerate(ports):
        publish(port, range(_EACH * index, _EACH * (index + 1)), qos, "ring/a")
    everything = set(range(_EACH * len(ports)))
    for listener in listeners:
        until(lambda each=listener: everything <= set(each.numbers()), "all messages")
    for index, port in enumerate(ports):
        publish(port, range(100 + index, 101 + index), qos, "ring/a")
    everything |= set(range(100, 100 + len(ports)))
    for listener in listeners:
        until(lambda each=listener: everything <= set(each.numbers()), "the last messages")
    return [Counter(listener.numbers()) for listener in listeners]


def once(count: int) -> Counter[int]:
    return Counter([*range(_EACH * count), *range(100, 100 + count)])


@pytest.mark.parametrize(
    ("direction", "qos"),
    [
        *(("in", 2), ("out", 1)),
        pytest.param("in", 1, marks=pytest.mark.long),
        pytest.param("out", 2, marks=pytest.mark.long),
    ],
)
def test_three_foldmq(make_broker: Callable[..., Broker], direction: str, qos: int) -> None:
    brokers = [make_broker() for _ in range(3)]
    for broker, following in zip(brokers, [*brokers[1:], brokers[0]], strict=True):
        broker.configure(connection(following.port, f"ring/# {direction} {qos}"))
        broker.start()
    if direction == "in":
        for broker in brokers:
            until(lambda each=broker: subscribed(each), "the bridge", pause=0.5)
    assert copies([broker.port for broker in brokers], qos) == [once(3)] * 3


@needs_mosquitto
@pytest.mark.parametrize(
    ("turn", "qos"),
    [
        *((0, 1), (1, 2)),
        pytest.param(0, 2, marks=pytest.mark.long),
        pytest.param(1, 1, marks=pytest.mark.long),
    ],
)
def test_two_foldmq_and_a_mosquitto(
    make_broker: Callable[..., Broker],
    ring_mosquitto: Callable[..., Mosquitto],
    turn: int,
    qos: int,
) -> None:
    """Mosquitto sends to the second foldmq, which sends on to the first, or the other way.

    Its own messages come back to it once: it does not add itself to their path, or look at it.
    """
    first, second = make_broker(), make_broker()
    reached, sender = (second, first) if not turn else (first, second)
    peer = ring_mosquitto(reached.port, f"topic ring/# out {qos}")
    sender.configure(connection(peer.port, f"ring/# out {qos}"))
    reached.configure(connection(sender.port, f"ring/# out {qos}"))
    for broker in (first, second, peer):
        broker.start()
    *ours, theirs = copies([first.port, second.port, peer.port], qos)
    assert ours == [once(3)] * 2
    del theirs[102]  # it may still be on its way back
    assert theirs == once(3) - Counter([102]) + Counter(range(20, 30))


@needs_mosquitto
def test_a_mosquitto_that_subscribes_to_a_foldmq(
    make_broker: Callable[..., Broker], ring_mosquitto: Callable[..., Mosquitto]
) -> None:
    """A subscriber gets no path: the first foldmq takes its own messages again, and passes them on.

    The second one has seen them.
    """
    first, second = make_broker(), make_broker()
    peer = ring_mosquitto(first.port, "topic ring/# in 1")
    second.configure(
        connection(peer.port, "ring/# in 1")
        + connection(first.port, "ring/# out 1").replace("plant2", "first")
    )
    for broker in (first, second, peer):
        broker.start()
    until(lambda: subscribed(second), "the bridge", pause=0.5)
    until(lambda: "Received SUBACK" in peer.log, "the bridge of Mosquitto")
    ours, others, theirs = copies([first.port, second.port, peer.port], 1)
    del ours[100], theirs[100], theirs[102]  # they may still be on their way back
    assert ours == once(3) - Counter([100]) + Counter(range(10))
    assert others == once(3)
    twice = Counter([*range(10), *range(20, 30)])
    assert theirs == once(3) - Counter([100, 102]) + twice
