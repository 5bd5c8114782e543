"""What a connection to another broker survives: cut cables, lost sessions, full disks.

Messages are lost in none of these cases. At QoS 2, and at QoS 1 to a foldmq, none comes twice.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import packets
from harness.broker import Broker
from harness.drill import KILLS, ROUNDS
from harness.fixtures import fill
from harness.foldcluster import Nodes
from harness.mosquitto import Mosquitto
from harness.nats import ACCESS, Nats
from harness.proxy import Proxy
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.mqtt_bridges import Listener, connection, mosquitto, needs_mosquitto, publish, subscribed
from e2e.outbox_process import kill_outbox, strike
from e2e.tools import run

if TYPE_CHECKING:
    pass

__all__ = ["mosquitto"]

pytestmark = pytest.mark.timeout(240)

_WINDOW = 20
"""Unacknowledged messages before MQTT 5, and at a Mosquitto."""
_MESSAGES, _ANSWERS = ((1, 150), (1, 30)) if ROUNDS > 2 else ((150,), (1,))
"""Bytes of ten messages, or of their acknowledgements, that pass before the cut."""
_OUT = [*((0, size) for size in _MESSAGES), *((1, size) for size in _ANSWERS)]
_IN = [*((1, size) for size in _MESSAGES), *((0, size) for size in _ANSWERS)]
"""Directions to the other broker (0) and from it (1), and bytes."""


@pytest.fixture
def proxies() -> Iterator[Callable[[int], Proxy]]:
    with contextlib.ExitStack() as stack:

        def make(port: int) -> Proxy:
            return stack.enter_context(contextlib.closing(Proxy(port)))

        yield make


def cut(proxy: Proxy, direction: int, size: int, publish_ten: Callable[[], object]) -> None:
    """Cut the connections within messages or their acknowledgements, and within the next CONNECT.

    The second cut is within the CONNACK if the first one was on the way from the other broker.
    """
    for passing, act in ((size, publish_ten), (3, proxy.restore)):
        came: list[bool] = []

        def wait(passing: int = passing, came: list[bool] = came) -> None:
            came.append(proxy.cut(direction, passing, 30))

        cable = threading.Thread(target=wait)
        cable.start()
        until(lambda: proxy.armed, "the cut")
        act()
        cable.join()
        assert came == [True]
    proxy.restore()


@needs_mosquitto
@pytest.mark.drill
@pytest.mark.parametrize(("version", "qos"), [("mqttv311", 2), ("mqttv50", 2), ("mqttv50", 1)])
def test_cables_are_cut_on_the_way_out(
    make_broker: Callable[..., Broker],
    mosquitto: Mosquitto,
    proxies: Callable[[int], Proxy],
    version: str,
    qos: int,
) -> None:
    proxy = proxies(mosquitto.port)
    more = f'bridge_protocol_version = "{version}"\n'
    broker = make_broker(connection(proxy.port, f"sensors/# out {qos}", more=more))
    broker.start()
    until(lambda: "connected to another broker" in broker.log, "the connection")
    counted = cut_often(proxy, _OUT, broker.port, mosquitto.port, qos)
    assert counted.keys() == set(range(10 * len(_OUT)))
    if qos == 2:
        assert set(counted.values()) == {1}
    assert "Traceback" not in broker.log


def cut_often(
    proxy: Proxy, cuts: list[tuple[int, int]], sender: int, receiver: int, qos: int
) -> Counter[int]:
    """Publish ten messages for each cut; return what arrives."""
    listener = Listener(receiver, "sensors/#")
    for turn, (direction, size) in enumerate(cuts):
        numbers = range(turn * 10, turn * 10 + 10)
        cut(proxy, direction, size, lambda numbers=numbers: publish(sender, numbers, qos))
        until(lambda last=numbers[-1]: last in listener.numbers(), "the messages")
    return Counter(listener.numbers())


@pytest.mark.drill
@pytest.mark.parametrize("qos", [1, pytest.param(2, marks=pytest.mark.long)])
def test_cables_are_cut_between_two_foldmq(
    make_broker: Callable[..., Broker], proxies: Callable[[int], Proxy], qos: int
) -> None:
    peer = make_broker()
    peer.start()
    proxy = proxies(peer.port)
    broker = make_broker(connection(proxy.port, f"sensors/# out {qos}"))
    broker.start()
    until(lambda: "connected to another broker" in broker.log, "the connection")
    counted = cut_often(proxy, _OUT, broker.port, peer.port, qos)
    assert counted == Counter(range(10 * len(_OUT)))


@needs_mosquitto
@pytest.mark.drill
@pytest.mark.parametrize("version", ["mqttv311", pytest.param("mqttv50", marks=pytest.mark.long)])
def test_cables_are_cut_on_the_way_in(
    make_broker: Callable[..., Broker],
    mosquitto: Mosquitto,
    proxies: Callable[[int], Proxy],
    version: str,
) -> None:
    proxy = proxies(mosquitto.port)
    more = f'bridge_protocol_version = "{version}"\n'
    broker = make_broker(connection(proxy.port, "sensors/# in 2", more=more))
    broker.start()
    until(lambda: subscribed(broker), "the bridge", pause=0.5)
    counted = cut_often(proxy, _IN, mosquitto.port, broker.port, 2)
    assert counted == Counter(range(10 * len(_IN)))


@needs_mosquitto
@pytest.mark.parametrize("version", [pytest.param("mqttv311", marks=pytest.mark.long), "mqttv50"])
def test_a_peer_that_forgets_the_session_at_qos_2(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto, version: str
) -> None:
    more = f'bridge_protocol_version = "{version}"\nmax_inflight_messages = {_WINDOW}\n'
    broker = make_broker(connection(mosquitto.port, "sensors/# out 2", more=more))
    broker.start()
    listener = Listener(mosquitto.port, "sensors/#")
    node = (broker.data_dir / "node").read_text().strip()
    sender = threading.Thread(target=publish, args=(broker.port, range(2000), 2))
    sender.start()
    forgotten = 0
    while sender.is_alive():
        seen = len(listener.numbers())
        with RawClient(mosquitto.port) as thief:  # its clean session replaces that of the bridge
            thief.connect(f"plant2.{node}", clean=True)
            thief.disconnect()
        forgotten += 1
        until(lambda seen=seen: len(listener.numbers()) > seen or not sender.is_alive())
    sender.join()
    publish(broker.port, range(2000, 2001), 2)
    until(lambda: 2000 in listener.numbers(), "the last message")
    counted = Counter(listener.numbers())
    assert counted.keys() == set(range(2001))
    assert sum(counted.values()) - 2001 <= _WINDOW * forgotten


@needs_mosquitto
@pytest.mark.drill
def test_qos_1_to_a_mosquitto_over_kills_repeats_a_window_at_most(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto
) -> None:
    broker = make_broker(connection(mosquitto.port, "sensors/# out 1"))
    broker.start()
    listener = Listener(mosquitto.port, "sensors/#")
    for turn in range(KILLS):
        publish(broker.port, range(turn * 100, turn * 100 + 100), 1)
        strike(broker, "outbox" if turn % 2 else "broker")
    sent = 100 * KILLS
    publish(broker.port, range(sent, sent + 1), 1)
    until(lambda: sent in listener.numbers(), "the last message")
    assert set(listener.numbers()) == set(range(sent + 1))


@needs_mosquitto
@pytest.mark.drill
@pytest.mark.parametrize("victim", ["broker", "outbox"])
def test_qos_1_enters_over_kills(
    make_broker: Callable[..., Broker], mosquitto: Mosquitto, victim: str
) -> None:
    broker = make_broker(connection(mosquitto.port, "cmd/# in 1"))
    broker.start()
    until(lambda: subscribed(broker), "the bridge", pause=0.5)
    with RawClient(broker.port) as client:  # its session stays
        client.connect("reader", clean=False)
        client.subscribe(("cmd/#", 1))
    for turn in range(KILLS):
        publish(mosquitto.port, range(turn * 100, turn * 100 + 100), 1, "cmd/a")
        strike(broker, victim)
    sent = 100 * KILLS
    publish(mosquitto.port, range(sent, sent + 1), 1, "cmd/a")
    received: list[int] = []
    with RawClient(broker.port) as client:
        client.connect("reader", clean=False)

        def all_are_there() -> bool:
            for message in client.receive_all(0.1):
                client.acknowledge(message)
                received.append(int(message.payload))
            return set(received) == set(range(sent + 1))

        until(all_are_there, "all messages")


def test_a_local_session_that_is_gone_is_reported_and_loses_nothing(
    make_broker: Callable[..., Broker],
) -> None:
    peer = make_broker()
    peer.start()
    broker = make_broker(connection(peer.port, "cmd/# in 2"))
    broker.start()
    until(lambda: subscribed(broker), "the bridge", pause=0.5)
    listener = Listener(broker.port, "cmd/#")
    publish(peer.port, range(50), 2, "cmd/a")
    run("sessions", "rm", "bridge.plant2", "--data-dir", str(broker.data_dir), "--yes")
    publish(peer.port, range(50, 100), 2, "cmd/a")
    until(lambda: set(range(100)) == set(listener.numbers()), "all messages")
    assert "messages in may come twice" in broker.log


@needs_mosquitto
def test_a_new_password_needs_no_restart(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    users, password = tmp_path / "users", tmp_path / "password"
    peer = Mosquitto(tmp_path / "peer", "peer", f"password_file {users}")
    peer.only_users()
    _set_password(users, "first")
    password.write_text("first\n")
    peer.start()
    more = f'remote_username = "plant2"\nremote_password_file = "{password}"\n'
    broker = make_broker(connection(peer.port, "sensors/# out 2", more=more))
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    try:
        publish(broker.port, range(10), 2)
        until(lambda: _count(peer, 10), "the first messages")
        peer.end(signal.SIGTERM)
        _set_password(users, "second")
        peer.start()
        publish(broker.port, range(10, 20), 2)
        until(
            lambda: "not authorized" in run("outbox", "ls", *where).out,
            "the reason that operators see",
            pause=0.5,
        )
        password.write_text("second\n")
        until(lambda: _count(peer, 20), "the messages with the new password", pause=0.5)
        (row,) = run("outbox", "ls", *where, "--json").objects
        assert row["refused"] == 0
    finally:
        peer.end(signal.SIGKILL)


def _set_password(users: Path, password: str) -> None:
    users.touch()
    command = ["mosquitto_passwd", "-b", str(users), "plant2", password]
    subprocess.run(command, check=True, capture_output=True)


def _count(peer: Mosquitto, count: int) -> bool:
    """Whether the peer has acknowledged this many messages for good."""
    return peer.log.count("Sending PUBCOMP to plant2.") >= count


def test_a_full_disk_here_keeps_the_cursor(
    make_broker: Callable[..., Broker], small_disk: Path
) -> None:
    peer = make_broker()
    peer.start()
    broker = make_broker(
        "commit_timeout = 2\nlog_format = 'json'\n" + connection(peer.port, "sensors/# out 1")
    )
    broker.data_dir = small_disk / "data"
    broker.start()
    listener = Listener(peer.port, "sensors/#")
    publish(broker.port, range(100), 1)
    with RawClient(broker.port) as client:  # its messages are not acknowledged
        client.connect("unlucky")  # while there is room: the outbox writes, too
        filler = fill(small_disk)
        client.send(*(packets.publish("sensors/a", b"1000", 1, at) for at in range(1, 101)))
        until(lambda: broker.told("log cannot be written"), "a word about the full disk")
    filler.unlink()
    _published(broker, range(100, 200))
    kill_outbox(broker)
    _published(broker, range(200, 201))
    until(lambda: 200 in listener.numbers(), "the last message")
    counted = Counter(listener.numbers())
    assert counted.keys() - {1000} == set(range(201))
    assert all(count == 1 for number, count in counted.items() if number < 100)
    verified = run("log", "verify", "--data-dir", str(broker.data_dir))
    assert verified.code == 0


def _published(broker: Broker, numbers: range) -> None:
    """Publish a range as soon as the broker accepts clients."""

    def done() -> bool:
        with contextlib.suppress(OSError, AssertionError):
            publish(broker.port, numbers, 1)
            return True
        return False

    until(done, "a broker that accepts messages", pause=0.5)


def test_a_full_disk_there_loses_nothing(
    make_broker: Callable[..., Broker], small_disk: Path
) -> None:
    peer = make_broker("commit_timeout = 2\nlog_format = 'json'\n")
    peer.data_dir = small_disk / "data"
    peer.start()
    broker = make_broker(connection(peer.port, "sensors/# out 1"))
    broker.start()
    with RawClient(peer.port) as client:
        client.connect("reader", clean=False)
        client.subscribe(("sensors/#", 1))
    publish(broker.port, range(100), 1)
    filler = fill(small_disk)
    publish(broker.port, range(100, 200), 1)
    until(lambda: peer.told("log cannot be written"), "a word about the full disk")
    filler.unlink()
    publish(broker.port, range(200, 201), 1)
    received: list[int] = []

    def last_is_there() -> bool:
        with contextlib.suppress(OSError, AssertionError), RawClient(peer.port) as client:
            client.connect("reader", clean=False)
            for message in client.receive_all(0.5):
                client.acknowledge(message)
                received.append(int(message.payload))
            client.disconnect()
        return 200 in received

    until(last_is_there, "the last message", pause=0.5)
    assert set(received) == set(range(201))


@pytest.mark.parametrize("qos", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_takeover_repeats_nothing_at_another_foldmq(
    tmp_path: Path, nats: Nats, make_broker: Callable[..., Broker], qos: int
) -> None:
    peer = make_broker()
    peer.start()
    listener = Listener(peer.port, "orders/#")
    table = connection(peer.port, f"orders/# out {qos}")
    config = f"{ACCESS}cluster = 'c1'\nfailover_grace = 0\n{table}"
    nodes = Nodes(tmp_path, [nats.port] * 2, config, forked=True)
    try:
        nodes.start()
        leader = nodes.leader
        publish(leader.port, range(20), qos, "orders/1")
        until(lambda: len(listener.numbers()) == 20, "the first messages")
        publish(leader.port, range(20, 60), qos, "orders/1")
        leader.kill()
        until(lambda: nodes.leader is not leader, "another leader", 60)
        publish(nodes.leader.port, range(60, 70), qos, "orders/1")
        until(lambda: 69 in listener.numbers(), "the last message")
        assert Counter(listener.numbers()) == Counter(range(70))
    finally:
        nodes.clean_up()
