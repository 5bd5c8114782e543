"""Destinations of a broker with several logs, and in a cluster: a cursor in each log."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.brokerprocesses import TWO, client_of, processes
from harness.foldcluster import Nodes
from harness.nats import ACCESS, Nats
from harness.rawclient import RawClient
from harness.waiting import until
from harness.webhooks import Webhooks

from e2e.mqtt_bridges import Listener, connection
from e2e.test_outbox_http import hooks, sink
from e2e.tools import run

__all__ = ["hooks"]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def make_processes(tmp_path: Path) -> Iterator[Callable[[str], Broker]]:
    """Make a broker of two processes with some settings."""
    with contextlib.ExitStack() as stack:

        def make(config: str) -> Broker:
            place = tmp_path / "broker"
            place.mkdir()
            broker = Broker(place, args=TWO, config=config, forked=True)
            stack.callback(broker.clean_up)
            return broker

        yield make


def publish(broker: Broker, name: str, numbers: range, topic: str = "orders/1") -> None:
    with RawClient(broker.port) as client:
        client.connect(name)
        for number in numbers:
            client.publish(topic, str(number).encode(), 1)
        client.disconnect()


def is_paused(*where: str) -> bool:
    """Pause; return whether the brokers of all logs answered: one may be paused already."""
    try:
        run("outbox", "pause", "erp", *where)
    except AssertionError:
        return False
    return True


def test_each_log_of_a_broker_has_a_cursor_over_kills(
    make_processes: Callable[[str], Broker], hooks: Webhooks
) -> None:
    broker = make_processes(sink(hooks))
    broker.start()
    names = [client_of(number, "p") for number in range(2)]
    for name, first in zip(names, (0, 100), strict=True):
        publish(broker, name, range(first, first + 20))
    until(lambda: len(set(hooks.payloads)) == 40, "the messages of both logs")
    where = ("--data-dir", str(broker.data_dir))
    rows = run("outbox", "ls", *where, "--json").objects
    assert sorted(row["log"][-2:] for row in rows) == ["p0", "p1"]
    assert {row["name"] for row in rows} == {"erp"}
    sources = {event["source"][-2:] for event in hooks.stored}
    assert sources == {"p0", "p1"}
    hooks.answer = lambda _post: 503
    publish(broker, names[1], range(120, 140))
    victim = processes(broker)[1]
    os.kill(victim, signal.SIGKILL)
    hooks.answer = lambda _post: 204
    until(lambda: len(set(hooks.payloads)) == 60, "the messages of the log that was killed")
    until(lambda: is_paused(*where), "the broker of the log that was killed")
    states = {row["state"] for row in run("outbox", "ls", *where, "--json").objects}
    assert states == {"paused"}
    # Where one log was changed before, the others are, and only a change of none is refused.
    first = min(row["log"] for row in rows)
    run("outbox", "resume", "erp", *where, "--node", first)
    again = run("outbox", "pause", "erp", *where)
    assert (again.err.count("already paused"), again.out.count("erp: paused")) == (1, 1)
    assert run("outbox", "pause", "erp", *where, code=1).err.count("already paused") == 2
    broker.stop()


def test_a_connection_sends_the_messages_of_both_logs(
    make_processes: Callable[[str], Broker], make_broker: Callable[..., Broker]
) -> None:
    peer = make_broker()
    peer.start()
    broker = make_processes(connection(peer.port, "orders/# out 1"))
    broker.start()
    listener = Listener(peer.port, "orders/#")
    for number in range(2):
        publish(broker, client_of(number, "p"), range(number * 100, number * 100 + 20))
    until(lambda: len(set(listener.numbers())) == 40, "the messages of both logs")
    broker.kill()
    broker.start()
    publish(broker, client_of(1, "p"), range(200, 210))
    until(lambda: len(set(listener.numbers())) == 50, "those after a kill")
    assert set(Counter(listener.numbers()).values()) == {1}
    broker.stop()


@pytest.mark.parametrize("version", ["mqttv50", "mqttv311"])
def test_messages_come_in_once_to_the_clients_of_both_logs(
    make_processes: Callable[[str], Broker], make_broker: Callable[..., Broker], version: str
) -> None:
    peer = make_broker()
    peer.start()
    line = "orders/# both 1" if version == "mqttv50" else "orders/# in 1"
    more = f'bridge_protocol_version = "{version}"\n'
    broker = make_processes(connection(peer.port, line, more=more))
    broker.start()
    listeners = [Listener(broker.port, "orders/#", client_of(at, "s")) for at in range(2)]
    there = Listener(peer.port, "orders/#")

    def all_have(*numbers: int) -> bool:
        return all(set(numbers) <= set(each.numbers()) for each in (*listeners, there))

    def subscribed() -> bool:
        publish(peer, "x", range(1))
        return all_have(0)

    until(subscribed, "the subscription at the other broker", pause=0.5)
    publish(peer, "x", range(1, 20))
    until(lambda: all_have(*range(1, 20)), "the messages in")
    if "both" in line:
        for number in range(2):
            publish(broker, client_of(number, "p"), range(100 + number, 101 + number))
        until(lambda: all_have(100, 101), "the messages out")
    publish(peer, "x", range(20, 21))
    until(lambda: all_have(20), "the last message in")
    for each in (*listeners, there):
        counts = Counter(each.numbers())
        assert {count for number, count in counts.items() if number} == {1}
    broker.stop()


def test_a_takeover_goes_on_from_the_cursor(tmp_path: Path, nats: Nats, hooks: Webhooks) -> None:
    config = f"{ACCESS}cluster = 'c1'\nfailover_grace = 0\n{sink(hooks)}"
    nodes = Nodes(tmp_path, [nats.port] * 2, config, forked=True)
    try:
        nodes.start()
        leader = nodes.leader
        publish(leader, "p", range(20))
        until(lambda: len(hooks.payloads) == 20, "the first messages")
        hooks.answer = lambda _post: 503
        publish(leader, "p", range(20, 40))
        leader.kill()
        until(lambda: nodes.leader is not leader, "another leader", 60)
        hooks.answer = lambda _post: 204
        publish(nodes.leader, "p", range(40, 50))
        until(lambda: len(set(hooks.payloads)) == 50, "all messages")
        counts = Counter(hooks.payloads)
        # What was sent within the last second before the kill may come twice.
        assert {number for number, count in counts.items() if count > 1} <= set(range(20))
        assert list(dict.fromkeys(hooks.payloads)) == list(range(50))
    finally:
        nodes.clean_up()
