"""A subscription shared by five processes; they and the broker are killed, no message is lost."""

import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from harness.broker import Broker
from harness.waiting import until
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

_MEMBERS, _MESSAGES, _KILLS = 5, 2000, 8
_MEMBER = """
import os, sys
import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

name, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
client.reconnect_delay_set(1, 1)
client.max_inflight_messages_set(20)

def connected(client, data, flags, reason, properties):
    client.subscribe("$share/jobs/job/#", 1)

def subscribed(client, data, mid, reasons, properties):
    open(os.path.join(os.path.dirname(path), "ready-" + name), "w").close()

def message(client, data, message):
    os.write(out, message.payload + b"\\n")

client.on_connect, client.on_message = connected, message
client.on_subscribe = subscribed
properties = Properties(PacketTypes.CONNECT)
properties.SessionExpiryInterval = 3600
properties.ReceiveMaximum = 20
client.connect_async("127.0.0.1", port, clean_start=False, properties=properties)
client.loop_forever(retry_first_connection=True)
"""


class Members:
    """The processes that share the subscription."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self.folder = folder
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        path = self.folder / f"member{number}"
        command = [sys.executable, "-c", _MEMBER, f"member{number}", str(self.port), str(path)]
        self.processes[number] = subprocess.Popen(command)

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def received(self) -> list[bytes]:
        found: list[bytes] = []
        for path in self.folder.glob("member*"):
            found += path.read_bytes().split()
        return found

    def has_more_than(self, count: int) -> bool:
        return len(self.received()) > count

    def stop(self) -> None:
        for number in [*self.processes]:
            self.kill(number)


def sender_of(port: int) -> mqtt.Client:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "sender", protocol=mqtt.MQTTv5)
    client.reconnect_delay_set(1, 1)
    client.max_queued_messages_set(0)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    client.loop_start()
    return client


@pytest.mark.mqtt5("MQTT-4.8.2-3")
@pytest.mark.parametrize("strategy", ["balanced", "topic"])
def test_an_account_of_every_message(
    make_broker: Callable[..., Broker], tmp_path: Path, strategy: str
) -> None:
    broker = make_broker(f'shared_strategy = "{strategy}"\n')
    broker.start()
    folder = tmp_path / "members"
    folder.mkdir()
    members, chance = Members(broker.port, folder), random.Random(17)
    sender = sender_of(broker.port)
    try:
        for number in range(_MEMBERS):
            members.start(number)
        until(lambda: len([*folder.glob("ready*")]) == _MEMBERS, "all members")
        sent: list[mqtt.MQTTMessageInfo] = []
        acknowledged: set[int] = set()
        sender.on_publish = lambda _c, _u, mid, _r, _p: acknowledged.add(mid)
        for kill in range(_KILLS):
            seen, begin = len(members.received()), len(sent)
            sent += [
                sender.publish(f"job/{number % 7}", b"%d" % number, 1)
                for number in range(begin, begin + _MESSAGES // _KILLS)
            ]
            until(partial(members.has_more_than, seen + 20), "more messages")
            victim = chance.randrange(_MEMBERS)
            members.kill(victim)
            if kill % 2:
                broker.restart(kill=True)
            members.start(victim)
        # Of what was published while the broker was away is_published() knows nothing.
        until(lambda: {one.mid for one in sent} <= acknowledged, "every PUBACK")
        wanted = {b"%d" % number for number in range(len(sent))}
        until(lambda: wanted <= set(members.received()), "every message")
        assert set(members.received()) == wanted
        shares = [path.read_bytes().split() for path in folder.glob("member*")]
        assert sum(map(bool, shares)) == _MEMBERS
    finally:
        sender.loop_stop()
        members.stop()
    broker.stop()
