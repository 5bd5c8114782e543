"""Zigbee2MQTT, Node-RED and Home Assistant themselves, where they are installed.

None of them is installed in CI: they are hundreds of megabytes. test_home_devices.py has clients
that behave like them.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.broker import environment, free_port
from harness.packets import Publish
from harness.rawclient import RawClient

from recipes.recipefiles import PASSWORD, RECIPES, RecipeBroker, adapted, home_broker, program

SLOW_START = 240.0
"""Seconds that a program may take to start, with the packages that Home Assistant installs."""
PLUG = "0x000b57fffec6a5b2"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RecipeBroker]:
    users = ("homeassistant", "zigbee2mqtt", "nodered", "tasmota-plug1")
    recipes = ("zigbee2mqtt", "node-red", "tasmota-esphome")
    made = home_broker(tmp_path / "foldmq", *recipes, users=users)
    made.start()
    yield made
    made.clean_up()


@pytest.fixture
def house(broker: RecipeBroker) -> Iterator[RawClient]:
    """A client with the user of Home Assistant, which reads all topics."""
    client = RawClient(broker.port)
    client.connect("house", username="homeassistant", password=PASSWORD.encode())
    assert client.subscribe(("#", 1)) == (1,)
    yield client
    client.close()


@contextmanager
def running(command: list[str], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs; what it printed is shown if the test fails."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            stdout=output,
            stderr=output,
            env={**environment(), **variables},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        print(log.read_text(errors="replace")[-6000:])


def next_of(client: RawClient, topic: str, process: subprocess.Popen[bytes]) -> Publish:
    """The next message on a topic that ends so, while the program runs."""
    deadline = time.monotonic() + SLOW_START
    while True:
        try:
            message = client.receive(1.0)
        except TimeoutError:
            assert process.poll() is None, "the program has ended"
            assert time.monotonic() < deadline, topic
            continue
        if isinstance(message, Publish):
            client.acknowledge(message)
            if message.topic.endswith(topic):
                return message


def zigbee_database() -> str:
    """A coordinator and a plug that has joined."""

    def device(number: int, kind: str, address: str, network: int, **more: Any) -> str:
        clusters = [0, 3, 4, 5, 6, 8] if network else []
        endpoint = {
            "profId": 260, "epId": 1, "devId": 266, "inClusterList": clusters,
            "outClusterList": [], "clusters": {}, "binds": [], "configuredReportings": [],
            "meta": {},
        }  # fmt: skip
        entry = {
            "id": number, "type": kind, "ieeeAddr": address, "nwkAddr": network, "epList": [1],
            "endpoints": {"1": endpoint}, "interviewCompleted": True,
            "interviewState": "SUCCESSFUL", "meta": {}, "lastSeen": 1, **more,
        }  # fmt: skip
        return json.dumps(entry) + "\n"

    plug = {"manufName": "IKEA of Sweden", "modelId": "TRADFRI control outlet", "manufId": 4476}
    coordinator = device(1, "Coordinator", "0x00124b00120144ae", 0, manufId=0)
    return coordinator + device(2, "Router", PLUG, 40369, **plug)


def test_zigbee2mqtt(tmp_path: Path, broker: RecipeBroker, house: RawClient) -> None:
    """Its adapter is a stub whose one device accepts every command."""
    folder = Path(program("zigbee2mqtt")).resolve().parent
    data = tmp_path / "zigbee2mqtt"
    data.mkdir()
    text = (RECIPES / "zigbee2mqtt" / "configuration.yaml").read_text("utf-8")
    changes = {"broker:1883": f"127.0.0.1:{broker.port}", "the-password": PASSWORD}
    (data / "configuration.yaml").write_text(adapted(text, changes))
    (data / "database.db").write_text(zigbee_database())
    stub = Path(__file__).with_name("zigbee_stub.js")
    command = [program("node"), "-r", str(stub), str(folder / "cli.js")]
    variables = {"ZIGBEE2MQTT_DATA": str(data), "ZIGBEE2MQTT_FOLDER": str(folder)}
    with running(command, tmp_path / "zigbee2mqtt.log", **variables) as process:
        assert json.loads(next_of(house, "bridge/state", process).payload) == {"state": "online"}
        found = json.loads(next_of(house, f"/{PLUG}/switch/config", process).payload)
        assert found["command_topic"] == f"zigbee2mqtt/{PLUG}/set"
        house.publish(found["command_topic"], b'{"state":"ON"}', 0)
        state = next_of(house, f"zigbee2mqtt/{PLUG}", process).payload
        assert json.loads(state)["state"] == "ON"
        process.terminate()
        assert json.loads(next_of(house, "bridge/state", process).payload) == {"state": "offline"}


def test_node_red(tmp_path: Path, broker: RecipeBroker, house: RawClient) -> None:
    command = program("node-red")
    text = (RECIPES / "node-red" / "flows.json").read_text("utf-8")
    changes = {
        '"broker": "broker", "port": "1883"': f'"broker": "127.0.0.1", "port": "{broker.port}"'
    }
    (tmp_path / "flows.json").write_text(adapted(text, changes))
    credentials = {"broker": {"user": "nodered", "password": PASSWORD}}
    (tmp_path / "flows_cred.json").write_text(json.dumps(credentials))
    (tmp_path / "settings.js").write_text(
        "module.exports = {flowFile: 'flows.json', credentialSecret: false,"
        f" uiHost: '127.0.0.1', uiPort: {free_port()}, telemetry: {{enabled: false}}}}"
    )
    with running([command, "-u", str(tmp_path)], tmp_path / "node-red.log") as process:
        assert next_of(house, "nodered/status", process).payload == b"online"
        house.publish("hall/button", b"pressed", 0)
        assert next_of(house, "hall/lamp/set", process).payload == b"ON"
        broker.restart(kill=True)
        again = RawClient(broker.port)
        again.connect("again", username="homeassistant", password=PASSWORD.encode())
        again.subscribe(("hall/#", 1), ("nodered/status", 1))
        assert next_of(again, "nodered/status", process).payload in (b"online", b"offline")
        again.publish("hall/button", b"pressed", 0)
        assert next_of(again, "hall/lamp/set", process).payload == b"ON"
        process.kill()
        while next_of(again, "nodered/status", process).payload != b"offline":
            pass
        again.close()


AUTOMATION = """
mqtt:
http:
  server_port: PORT
automation:
  - id: button
    triggers: [{trigger: mqtt, topic: hall/button}]
    actions: [{action: switch.turn_on, target: {entity_id: switch.lamp}}]
"""
DISCOVERY = {
    "name": None,
    "default_entity_id": "switch.lamp",
    "unique_id": "lamp",
    "state_topic": "hall/lamp/state",
    "command_topic": "hall/lamp/set",
    "availability_topic": "hall/lamp/availability",
    "device": {"identifiers": ["lamp"], "name": "lamp"},
}


def entry(port: int) -> dict[str, Any]:
    """What the form of Home Assistant stores for its MQTT integration."""
    data = {"broker": "127.0.0.1", "port": port, "username": "homeassistant", "password": PASSWORD}
    found = {
        "created_at": "2026-11-01T00:00:00+00:00", "modified_at": "2026-11-01T00:00:00+00:00",
        "data": {**data, "protocol": "5"}, "options": {}, "disabled_by": None,
        "discovery_keys": {}, "domain": "mqtt", "entry_id": "01JDMQTT0000000000000000AA",
        "pref_disable_new_entities": False, "pref_disable_polling": False, "source": "user",
        "subentries": [], "title": "foldmq", "unique_id": None, "version": 2, "minor_version": 1,
    }  # fmt: skip
    content = {"entries": [found]}
    return {"version": 1, "minor_version": 5, "key": "core.config_entries", "data": content}


def test_home_assistant(tmp_path: Path, broker: RecipeBroker, house: RawClient) -> None:
    """A device that is discovered is switched by an automation, also after a crash of foldmq."""
    command = program("hass")
    config = tmp_path / "homeassistant"
    (config / ".storage").mkdir(parents=True)
    (config / "configuration.yaml").write_text(AUTOMATION.replace("PORT", str(free_port())))
    stored = config / ".storage" / "core.config_entries"
    stored.write_text(json.dumps(entry(broker.port)))
    house.publish(
        "homeassistant/switch/lamp/config", json.dumps(DISCOVERY).encode(), 0, retain=True
    )
    house.publish("hall/lamp/availability", b"online", 0, retain=True)
    with running(
        [command, "-c", str(config)], tmp_path / "hass.log", HOME=str(tmp_path)
    ) as process:
        assert next_of(house, "homeassistant/status", process).payload == b"online"
        pressed(house)
        broker.restart(kill=True)
        again = RawClient(broker.port)
        again.connect("again", username="homeassistant", password=PASSWORD.encode())
        again.subscribe(("homeassistant/status", 1), ("hall/lamp/set", 1))
        # Its will and its birth: it has connected again.
        while next_of(again, "homeassistant/status", process).payload != b"online":
            pass
        pressed(again)
        again.close()


def pressed(client: RawClient) -> None:
    """Press the button until the automation is loaded."""
    for _ in range(60):
        client.publish("hall/button", b"pressed", 0)
        for message in client.receive_all(1.0):
            if isinstance(message, Publish):
                client.acknowledge(message)
                if message.topic == "hall/lamp/set":
                    assert message.payload == b"ON"
                    return
    raise AssertionError("the automation did nothing")


def test_esphome_accepts_the_configuration(tmp_path: Path) -> None:
    command = program("esphome")
    file = tmp_path / "esphome.yaml"
    file.write_text((RECIPES / "tasmota-esphome" / "esphome.yaml").read_text("utf-8"))
    done = subprocess.run(
        [command, "config", str(file)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
