"""Replays of real clients: what they get is what the log has, over kills and beside publishers."""

import asyncio
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aiomqtt
import paho.mqtt.client as mqtt
import pytest
from harness import mqtt5_packets as p5
from harness.broker import Broker
from harness.brokerprocesses import TWO, client_of, processes
from harness.fixtures import unique
from harness.foldcluster import Nodes
from harness.mqtt5_rawclient import Clients5, RawClient5
from harness.nats import ACCESS, Nats
from harness.waiting import until
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from e2e.tools import run

_SECONDS = 60.0


class Replayed:
    """A paho client with a session that replays; it connects again by itself."""

    def __init__(
        self, port: int, topic_filter: str, qos: int, name: str = "", *, resumes: bool = False
    ) -> None:
        """``resumes``: without a session, after each loss behind the last message that came."""
        self.got: list[tuple[str, bytes]] = []
        """Position and payload of each message, in the order in which they came."""
        self.gaps: list[str] = []
        """Parts of the log that were cut off unread."""
        self.resume = ""
        """How far all logs were read, with several."""
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, name or unique("replay"), protocol=mqtt.MQTTv5
        )
        self.client.reconnect_delay_set(1, 1)
        self.client.on_message = self._on_message
        self._filter, self._qos, self._resumes = topic_filter, qos, resumes
        self.client.on_connect = self._on_connect
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 0 if resumes else 3600
        properties.ReceiveMaximum = 20
        self.client.connect_async("127.0.0.1", port, clean_start=resumes, properties=properties)
        self.client.loop_start()

    def _on_connect(self, client: mqtt.Client, *_: object) -> None:
        topic_filter = self._filter
        if self._resumes and self.got:
            topic_filter = topic_filter.replace("/all/", f"/{self.got[-1][0]}/")
        client.subscribe(topic_filter, self._qos)

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        pairs = getattr(message.properties, "UserProperty", [])
        position = next(value for name, value in pairs if name == "foldmq-position")
        self.resume = next((value for name, value in pairs if name == "foldmq-resume"), "")
        self.gaps += [value for name, value in pairs if name == "foldmq-gap"]
        self.got.append((position, message.payload))

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def publish(port: int, topic: str, name: str, count: int, qos: int, client: str = "") -> None:
    clients = Clients5("127.0.0.1", port)
    sender = clients.five(client or None)
    for number in range(count):
        sender.publish(topic, b"%s %d" % (name.encode(), number), qos)
    clients.close()


def order(message: tuple[str, bytes]) -> list[int]:
    return [int(part) for part in message[0].split(".")]


def effects(broker: Broker) -> list[str]:
    """Where messages take effect, from `foldmq log --json`: at QoS 2 with their PUBREL."""
    places: list[str] = []
    log = run("log", "--json", "-n", "5000", "--data-dir", str(broker.data_dir))
    for event in log.objects:
        if event["type"] == "Released" or (
            event["type"] == "MessagePublished" and event["qos"] < 2
        ):
            sequence, _, index = event["position"].partition(".")
            places += [f"{sequence}.{int(index) + n}" for n in range(len(event["messages"]))]
    return places


def test_a_replay_is_what_the_log_has(make_broker: Callable[..., Broker]) -> None:
    """With three publishers while the replays begin: nothing is missing or twice at the seam."""
    broker = make_broker()
    broker.start()
    publishers = [
        threading.Thread(target=publish, args=(broker.port, f"t/{name}", name, 60, qos))
        for name, qos in (("a", 1), ("b", 2), ("c", 1))
    ]
    for thread in publishers:
        thread.start()
    replays = [Replayed(broker.port, "$replay/all/t/#", qos) for qos in (0, 1, 2)]
    for thread in publishers:
        thread.join()
    for replay in replays:
        until(lambda replay=replay: len(replay.got) >= 180, _SECONDS)  # type: ignore[misc]
        replay.close()
    first = replays[0].got
    assert len(first) == len(set(first)) == 180
    assert replays[1].got == first
    # A client passes a QoS 2 message on with its PUBREL, after QoS 1 messages behind it.
    assert sorted(replays[2].got, key=order) == sorted(first, key=order)
    for name in ("a", "b", "c"):
        own = [payload for _, payload in first if payload.startswith(name.encode())]
        assert own == [b"%s %d" % (name.encode(), number) for number in range(60)]
    assert [position for position, _ in first] == effects(broker)
    broker.stop()


def check_replayed(got: list[tuple[str, bytes]], sent: list[bytes], qos: int) -> None:
    """All in order; at QoS 1 some may come again, at QoS 0 and 2 each comes once."""
    payloads = [payload for _, payload in got]
    if qos != 1:
        assert payloads == sent
    assert list(dict.fromkeys(payloads)) == sent


LONG = pytest.mark.long


@pytest.mark.drill
@pytest.mark.parametrize(
    ("strike", "qos"),
    [
        ("kill", 0),
        ("kill_nats", 1),
        ("kill_all", 2),
        pytest.param("kill", 1, marks=LONG),
        pytest.param("kill", 2, marks=LONG),
        pytest.param("kill_nats", 0, marks=LONG),
        pytest.param("kill_nats", 2, marks=LONG),
        pytest.param("kill_all", 0, marks=LONG),
        pytest.param("kill_all", 1, marks=LONG),
    ],
)
def test_kills_in_the_middle(make_broker: Callable[..., Broker], strike: str, qos: int) -> None:
    """Of the broker, of its NATS server, of both; at QoS 0 the client resumes at its position."""
    broker = make_broker()
    broker.start()
    publish(broker.port, "t/a", "a", 300, 2)
    sent = [b"a %d" % number for number in range(300)]
    replay = Replayed(broker.port, "$replay/all/t/#", qos, resumes=not qos)
    for reached in (20, 120, 220):
        until(lambda reached=reached: len(replay.got) >= reached, _SECONDS)  # type: ignore[misc]
        getattr(broker, strike)()
        if strike != "kill_nats":
            broker.start()
    until(lambda: bool(replay.got) and replay.got[-1][1] == sent[-1], _SECONDS)
    replay.close()
    check_replayed(replay.got, sent, qos)
    broker.stop()


@pytest.mark.drill
@pytest.mark.parametrize("qos", [pytest.param(0, marks=LONG), pytest.param(1, marks=LONG), 2])
def test_leaders_that_are_killed_in_the_middle(tmp_path: Path, nats: Nats, qos: int) -> None:
    """Clients of a cluster reach the next leader, where the replay goes on."""
    nodes = Nodes(tmp_path, [nats.port] * 2, f"{ACCESS}cluster = 'c1'\n", forked=True)
    try:
        nodes.start()
        port = nodes.balancer.port
        publish(port, "t/a", "a", 200, 2)
        sent = [b"a %d" % number for number in range(200)]
        replay = Replayed(port, "$replay/all/t/#", qos, resumes=not qos)
        for reached in (20, 120):
            until(lambda reached=reached: len(replay.got) >= reached, _SECONDS)  # type: ignore[misc]
            leader = nodes.leader
            leader.kill()
            until(lambda gone=leader: nodes.leader is not gone, "another leader")  # type: ignore[misc]
            leader.start()
        until(lambda: bool(replay.got) and replay.got[-1][1] == sent[-1], _SECONDS)
        replay.close()
        check_replayed(replay.got, sent, qos)
    finally:
        nodes.clean_up()


_PUBLISHERS, _EACH = 200, 15


def has_passed(replay: Replayed, sender: RawClient5, turn: int) -> bool:
    """Publish the end of a turn, again if that was cut off; return whether the replay has it."""
    if sum(payload.startswith(b"end %d " % turn) for _, payload in replay.got):
        return True
    sender.publish("t/end", b"end %d %s" % (turn, unique("n").encode()), 1)
    return False


@pytest.mark.parametrize(
    "qos", [pytest.param(0, marks=LONG), 1, pytest.param(2, marks=LONG)], ids=str
)
def test_the_seam_of_two_hundred_publishers_while_the_log_is_cut(
    make_broker: Callable[..., Broker], qos: int
) -> None:
    """The replay begins in the past and goes on live: nothing is missing, or comes twice."""
    broker = make_broker('keep_bytes = "16 MiB"\n')
    broker.start()
    clients = Clients5("127.0.0.1", broker.port)
    senders = [clients.five() for _ in range(_PUBLISHERS)]
    filler = clients.five()
    replay = None
    for turn in range(_EACH):
        for number, sender in enumerate(senders):
            packet_id = turn % 3 + 1
            sender.send(p5.publish(f"t/{number}", b"%d %d" % (number, turn), 1, packet_id))
            if replay is None and turn == _EACH // 3 and number == _PUBLISHERS // 2:
                replay = Replayed(broker.port, "$replay/all/t/#", qos)  # between two messages
        for sender in senders:
            assert isinstance(sender.receive(_SECONDS), p5.Answer)
        if replay is not None:
            until(partial(has_passed, replay, filler, turn), "the end", _SECONDS, 0.2)
        for _ in range(20):  # so much that the log is cut every few turns
            filler.publish("filler", bytes(200_000), 1)
    assert replay is not None
    replay.close()
    clients.close()
    payloads = [payload for _, payload in replay.got]
    assert len(payloads) == len(set(payloads))
    for number in range(_PUBLISHERS):
        turns = [int(one.split()[1]) for one in payloads if one.startswith(b"%d " % number)]
        missing = set(range(turns[0], _EACH)) - set(turns)
        assert not missing or replay.gaps, "what was cut off unread is told"
        assert turns == sorted(turns)
    places = [order(message) for message in replay.got]
    assert places == sorted(places)
    cuts = run("log", "--json", "--type", "LogCut", "--data-dir", str(broker.data_dir)).objects
    assert cuts, "the log was cut meanwhile"
    broker.stop()


def is_renewed(broker: Broker, number: int, pid: int) -> bool:
    """Whether a process was started again."""
    return processes(broker).get(number, pid) != pid


def has_last(replay: Replayed, payload: bytes) -> bool:
    return bool(replay.got) and replay.got[-1][1] == payload


def test_several_processes(make_broker: Callable[..., Broker]) -> None:
    """A replay reads all logs, also over the end of each process, and a client can go on."""
    broker = make_broker("", *TWO)
    broker.start()
    parts = [f"{name} " for name in ("a", "b", "c", "d")]
    publishers = [
        threading.Thread(
            target=publish,
            args=(broker.port, f"t/{part[0]}", part[0], 40, qos, client_of(number % 2, part[0])),
        )
        for number, (part, qos) in enumerate(zip(parts, (1, 1, 2, 2), strict=True))
    ]
    for thread in publishers:
        thread.start()
    replays = [
        Replayed(broker.port, "$replay/all/t/#", 2, client_of(number, "replay"))
        for number in (0, 1)
    ]
    for thread in publishers:
        thread.join()
    for replay in replays:
        until(lambda replay=replay: len(replay.got) >= 160, _SECONDS)  # type: ignore[misc]
        assert len(set(replay.got)) == len(replay.got) == 160
        logs = {position.partition(":")[0] for position, _ in replay.got}
        assert logs == {"p0", "p1"}
        for part in parts:
            own = [payload for _, payload in replay.got if payload.startswith(part.encode())]
            assert own == [b"%s%d" % (part.encode(), number) for number in range(40)]
    for number, pid in sorted(processes(broker).items()):
        os.kill(pid, signal.SIGKILL)
        until(partial(is_renewed, broker, number, pid), "a new process", _SECONDS)
    resume = replays[0].resume
    publish(broker.port, "t/e", "e", 10, 1)
    resumed = Replayed(broker.port, f"$replay/{resume}/t/#", 0)
    wanted = [b"e %d" % number for number in range(10)]
    for replay in (*replays, resumed):
        until(partial(has_last, replay, wanted[-1]), "the last message", _SECONDS)
        assert [payload for _, payload in replay.got][-10:] == wanted
        replay.close()
    assert len(resumed.got) == 10
    broker.stop()
    verified = run("log", "verify", "--data-dir", str(broker.data_dir))
    assert verified.code == 0, verified.out
    why = run("why", "--topic", "t/e", "--client", client_of(0, "replay"), "--data-dir",
              str(broker.data_dir))  # fmt: skip
    assert "has a replay, " in why.out
    assert "which read it at" in why.out


@pytest.mark.skipif(not shutil.which("mosquitto_sub"), reason="there is no mosquitto_sub")
@pytest.mark.parametrize("version", ["311", "5"])
def test_mosquitto_sub(make_broker: Callable[..., Broker], version: str) -> None:
    broker = make_broker()
    broker.start()
    publish(broker.port, "t/a", "a", 5, 1)
    ran = subprocess.run(
        ["mosquitto_sub", "-p", str(broker.port), "-V", version, "-t", "$replay/1h/t/#", "-q", "1",
         "-C", "5"],
        capture_output=True, timeout=_SECONDS, check=True,
    )  # fmt: skip
    assert ran.stdout.split(b"\n")[:5] == [b"a %d" % number for number in range(5)]
    broker.stop()


def test_aiomqtt(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    publish(broker.port, "t/a", "a", 5, 2)

    async def receive() -> list[object]:
        got: list[object] = []
        async with asyncio.timeout(_SECONDS):
            async with aiomqtt.Client(
                "127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5
            ) as client:
                await client.subscribe("$replay/all/t/#", 2)
                async for message in client.messages:
                    got.append(message.payload)
                    if len(got) == 5:
                        await client.publish("t/b", b"live", 1)
                    if len(got) == 6:
                        break
        return got

    assert asyncio.run(receive()) == [*(b"a %d" % number for number in range(5)), b"live"]
    broker.stop()
