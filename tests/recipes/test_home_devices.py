"""The recipes for devices and programs of a house, with clients that behave like them.

Logins, names and topics are those in the files of the recipes; wills, births, subscriptions and
commands are those that each program documents.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.packets import Connack, Publish, Will
from harness.rawclient import RawClient

from recipes.recipefiles import PASSWORD, RECIPES, RecipeBroker, home_broker

USERS = (
    *("homeassistant", "zigbee2mqtt", "nodered", "frigate", "telegraf"),
    *("tasmota-plug1", "tasmota-plug2", "esphome-lamp1"),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecipeBroker]:
    """One broker with the permissions of all recipes."""
    folder: Path = tmp_path_factory.mktemp("house")
    recipes = ("zigbee2mqtt", "node-red", "tasmota-esphome", "frigate", "telegraf")
    made = home_broker(folder, *recipes, users=USERS)
    made.start()
    yield made
    made.clean_up()


@pytest.fixture
def house(broker: RecipeBroker) -> Iterator[RawClient]:
    """Home Assistant: it may read and write all topics."""
    client = connected(broker, "homeassistant", "homeassistant")
    yield client
    client.close()


def connected(
    broker: RecipeBroker, user: str, client_id: str, *, clean: bool = True, **options: Any
) -> RawClient:
    client = RawClient(broker.port)
    answer = client.connect(
        client_id,
        clean=clean,
        keepalive=60,
        username=user,
        password=PASSWORD.encode(),
        **options,
    )
    assert answer.code == Connack(0, False).code, answer
    return client


def next_of(client: RawClient, topic: str) -> Publish:
    """The next message on the topic; others are acknowledged."""
    while True:
        message = client.receive()
        if isinstance(message, Publish):
            client.acknowledge(message)
            if message.topic == topic:
                return message


def watch(client: RawClient, *filters: str) -> None:
    assert client.subscribe(*((one, 1) for one in filters)) == (1,) * len(filters)


def secrets_of(text: str) -> str:
    """The password that the recipes show is not one that a test knows."""
    assert "the-password" in text
    return text


def tasmota() -> dict[str, str]:
    """The settings in the line for the console of the device."""
    line = secrets_of((RECIPES / "tasmota-esphome" / "tasmota.txt").read_text("utf-8"))
    commands = line.strip().removeprefix("Backlog ").split("; ")
    return dict(command.split(" ", 1) for command in commands)


def test_a_tasmota_device(broker: RecipeBroker, house: RawClient) -> None:
    settings = tasmota()
    topic, user = settings["Topic"], settings["MqttUser"]
    client_id = "DVES_12AB34"
    lwt = f"tele/{topic}/LWT"
    watch(house, lwt, "tasmota/discovery/#", f"stat/{topic}/#")
    device = connected(broker, user, client_id, will=Will(lwt, b"Offline", 1, retain=True))
    device.publish(lwt, b"Online", 0, retain=True)
    device.publish(f"cmnd/{topic}/POWER", b"", 0)
    filters = f"cmnd/{topic}/#", "cmnd/tasmotas/#", f"cmnd/{client_id}_fb/#"
    assert device.subscribe(*((one, 0) for one in filters)) == (0, 0, 0)
    device.publish("tasmota/discovery/AABBCC12AB34/config", b"{}", 0, retain=True)
    assert next_of(house, lwt).payload == b"Online"
    assert next_of(house, "tasmota/discovery/AABBCC12AB34/config").payload == b"{}"
    for command in (f"cmnd/{topic}/POWER", "cmnd/tasmotas/POWER", f"cmnd/{client_id}_fb/POWER"):
        house.publish(command, b"ON", 0)
        assert next_of(device, command).payload == b"ON"
    device.publish(f"stat/{topic}/RESULT", b'{"POWER":"ON"}', 0)
    assert next_of(house, f"stat/{topic}/RESULT").payload == b'{"POWER":"ON"}'
    device.reset()
    assert next_of(house, lwt).payload == b"Offline"


def test_a_tasmota_device_cannot_command_another(broker: RecipeBroker, house: RawClient) -> None:
    watch(house, "cmnd/#", "stat/#")
    device = connected(broker, "tasmota-plug2", "DVES_000002")
    assert device.subscribe(("cmnd/tasmota-plug1/#", 0), ("tele/#", 0)) == (0x80, 0x80)
    device.publish("cmnd/tasmota-plug1/POWER", b"ON", 1)
    device.publish("stat/tasmota-plug2/RESULT", b"own", 1)
    message = house.expect_a(Publish)
    assert (message.topic, message.payload) == ("stat/tasmota-plug2/RESULT", b"own")
    device.close()


def test_an_esphome_device(broker: RecipeBroker, house: RawClient) -> None:
    text = secrets_of((RECIPES / "tasmota-esphome" / "esphome.yaml").read_text("utf-8"))
    config = yaml.safe_load(text)
    name, user = config["esphome"]["name"], config["mqtt"]["username"]
    (switch,) = config["switch"]
    status, base = f"{name}/status", f"{name}/switch/{switch['name']}"
    discovery = f"homeassistant/switch/{name}/{switch['name']}/config"
    watch(house, status, "homeassistant/#", f"{name}/#")
    device = connected(broker, user, f"{name}-aabbcc", will=Will(status, b"offline", 0, True))
    filters = "esphome/discover", f"esphome/ping/{name}", f"{base}/command"
    assert device.subscribe(*((one, 0) for one in filters)) == (0, 0, 0)
    device.publish(status, b"online", 0, retain=True)
    device.publish(discovery, b'{"cmd_t":"..."}', 0, retain=True)
    assert next_of(house, discovery).payload
    house.publish(f"{base}/command", b"ON", 0)
    assert next_of(device, f"{base}/command").payload == b"ON"
    device.publish(f"{base}/state", b"ON", 0, retain=True)
    assert next_of(house, f"{base}/state").payload == b"ON"
    device.reset()
    assert next_of(house, status).payload == b"offline"


def test_frigate(broker: RecipeBroker, house: RawClient) -> None:
    text = secrets_of((RECIPES / "frigate" / "config.yml").read_text("utf-8"))
    config = yaml.safe_load(text)
    settings, (camera,) = config["mqtt"], config["cameras"]
    prefix = settings["topic_prefix"]
    available = f"{prefix}/available"
    watch(house, f"{prefix}/#")
    frigate = connected(
        broker,
        settings["user"],
        settings["client_id"],
        will=Will(available, b"offline", 1, retain=True),
    )
    watch(frigate, f"{prefix}/#")
    frigate.publish(available, b"online", 0, retain=True)
    assert next_of(house, available).payload == b"online"
    frigate.publish(f"{prefix}/{camera}/person/snapshot", bytes(300_000), 0, retain=True)
    assert len(next_of(house, f"{prefix}/{camera}/person/snapshot").payload) == 300_000
    house.publish(f"{prefix}/{camera}/detect/set", b"OFF", 0)
    assert next_of(frigate, f"{prefix}/{camera}/detect/set").payload == b"OFF"
    frigate.publish(f"{prefix}/{camera}/detect/state", b"OFF", 0, retain=True)
    assert next_of(house, f"{prefix}/{camera}/detect/state").payload == b"OFF"
    frigate.reset()
    assert next_of(house, available).payload == b"offline"


def test_telegraf(broker: RecipeBroker, house: RawClient) -> None:
    text = secrets_of((RECIPES / "telegraf" / "telegraf.conf").read_text("utf-8"))
    config = tomllib.loads(text)
    (consumer,) = config["inputs"]["mqtt_consumer"]
    (output,) = config["outputs"]["mqtt"]
    assert consumer["client_id"] != output["client_id"]
    login = consumer["username"], consumer["client_id"]
    assert consumer["persistent_session"]
    reader = connected(broker, *login, clean=False)
    qos = consumer["qos"]
    assert reader.subscribe(*((one, qos) for one in consumer["topics"])) == (1, 1)
    device = connected(broker, "tasmota-plug2", "DVES_000002")
    device.publish("tele/tasmota-plug2/SENSOR", b'{"Power":5}', 0)
    assert next_of(reader, "tele/tasmota-plug2/SENSOR").payload == b'{"Power":5}'
    reader.disconnect()
    # What is published at QoS 1 while Telegraf is stopped arrives later, and nothing at QoS 0.
    sensor = connected(broker, "zigbee2mqtt", "zigbee2mqtt")
    device.publish("tele/tasmota-plug2/SENSOR", b"lost", 0)
    device.expect_alive()
    sensor.publish("zigbee2mqtt/window", b'{"contact":true}', 1)
    reader = connected(broker, *login, clean=False)
    message = reader.expect_a(Publish)
    assert (message.topic, message.payload) == ("zigbee2mqtt/window", b'{"contact":true}')
    reader.acknowledge(message)
    watch(house, "telegraf/#")
    writer = connected(broker, output["username"], output["client_id"])
    writer.publish("telegraf/host/cpu", b"cpu usage=1", output["qos"])
    assert next_of(house, "telegraf/host/cpu").payload == b"cpu usage=1"
    for client in (reader, writer, sensor, device):
        client.close()


def test_zigbee2mqtt(broker: RecipeBroker, house: RawClient) -> None:
    text = secrets_of((RECIPES / "zigbee2mqtt" / "configuration.yaml").read_text("utf-8"))
    settings = yaml.safe_load(text)["mqtt"]
    base = settings["base_topic"]
    state = f"{base}/bridge/state"
    watch(house, f"{base}/#", "homeassistant/#")
    gone = Will(state, b'{"state":"offline"}', 1, retain=True)
    bridge = connected(broker, settings["user"], "mqttjs_1", will=gone)
    bridge.publish(state, b'{"state":"online"}', 1, retain=True)
    bridge.publish("homeassistant/switch/0x1/switch/config", b"{}", 1, retain=True)
    watch(bridge, f"{base}/#", "homeassistant/status", "homeassistant/#")
    assert next_of(house, state).payload == b'{"state":"online"}'
    house.publish("homeassistant/status", b"online", 0)
    assert next_of(bridge, "homeassistant/status").payload == b"online"
    house.publish(f"{base}/plug/set", b'{"state":"ON"}', 0)
    assert next_of(bridge, f"{base}/plug/set").payload == b'{"state":"ON"}'
    bridge.reset()
    assert next_of(house, state).payload == b'{"state":"offline"}'


def test_the_permissions_name_no_topic_of_another_recipe() -> None:
    """Each file is appended to the others: only Home Assistant may read all topics."""
    for file in RECIPES.glob("*/permissions.toml"):
        if file.parent.name != "home-assistant":
            assert not re.search(r'"#"', file.read_text("utf-8")), file
