"""The recipe for Sparkplug: host applications and edge nodes as the specification has them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import free_port
from harness.packets import Connack, Publish, Will
from harness.rawclient import RawClient

from recipes.recipefiles import PASSWORD, RECIPES, RecipeBroker, broker_of

STATE = "spBv1.0/STATE/host-1"
BIRTH = b"\x08\x01\x18\x00"
"""A payload with timestamp 1 and sequence number 0."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RecipeBroker]:
    port = free_port()
    users = ("edge-1", "edge-2", "host-1", "host-2")
    changes = {"0.0.0.0:1883": f"127.0.0.1:{port}"}
    made = broker_of(tmp_path, "sparkplug", changes, users, port=port)
    rules = (RECIPES / "sparkplug" / "permissions.toml").read_text("utf-8")
    (tmp_path / "permissions.toml").write_text(rules)
    made.start()
    yield made
    made.clean_up()


def connected(broker: RecipeBroker, user: str, will: Will | None = None) -> RawClient:
    client = RawClient(broker.port)
    login = {"username": user, "password": PASSWORD.encode()}
    assert client.connect(user, keepalive=60, will=will, **login) == Connack(0, False)  # type: ignore[arg-type]
    return client


def state(online: bool) -> bytes:
    return json.dumps({"online": online, "timestamp": 1668114759262}).encode()


def host(broker: RecipeBroker, user: str) -> RawClient:
    """A primary host application: will, subscriptions, then its birth [tck-id-host-topic]."""
    topic = f"spBv1.0/STATE/{user}"
    client = connected(broker, user, Will(topic, state(False), 1, retain=True))
    assert client.subscribe(("spBv1.0/#", 0), (topic, 1)) == (0, 1)
    client.publish(topic, state(True), 1, retain=True)
    return client


def next_of(client: RawClient, topic: str) -> Publish:
    """The next message on the topic."""
    while (message := client.receive()) is not None:
        if isinstance(message, Publish):
            client.acknowledge(message)
            if message.topic == topic:
                return message
    raise AssertionError(topic)


def test_edge_nodes_and_hosts(broker: RecipeBroker) -> None:
    primary = host(broker, "host-1")
    edge = connected(broker, "edge-1", Will("spBv1.0/plant/NDEATH/edge-1", BIRTH, 1))
    commands = ("spBv1.0/plant/NCMD/edge-1", 1), ("spBv1.0/plant/DCMD/edge-1/+", 1)
    assert edge.subscribe(*commands, (STATE, 1)) == (1, 1, 1)
    # The edge node waits until its primary host is online.
    assert json.loads(next_of(edge, STATE).payload)["online"] is True
    edge.publish("spBv1.0/plant/NBIRTH/edge-1", BIRTH, 0)
    edge.publish("spBv1.0/plant/DBIRTH/edge-1/pump", BIRTH, 0)
    assert next_of(primary, "spBv1.0/plant/NBIRTH/edge-1").payload == BIRTH
    primary.publish("spBv1.0/plant/NCMD/edge-1", b"\x08\x02", 0)
    assert next_of(edge, "spBv1.0/plant/NCMD/edge-1").payload == b"\x08\x02"
    # A host that comes later reads the certificates, and needs no rebirth.
    late = connected(broker, "host-2")
    late.subscribe(("$sparkplug/certificates/#", 0))
    certificates = [late.expect_a(Publish) for _ in range(2)]
    assert all(one.retain and one.payload == BIRTH for one in certificates)
    assert {one.topic.rpartition("plant/")[2] for one in certificates} == {
        "NBIRTH/edge-1",
        "DBIRTH/edge-1/pump",
    }
    edge.reset()
    death = next_of(primary, "spBv1.0/plant/NDEATH/edge-1").payload
    assert death[:1] == b"\x08"
    assert death.endswith(BIRTH[2:])
    assert death != BIRTH  # it has the time at which the edge node was lost
    # A host that is lost: the edge nodes learn it from the retained will.
    waiting = connected(broker, "edge-2")
    waiting.subscribe((STATE, 1))
    assert json.loads(next_of(waiting, STATE).payload)["online"] is True
    primary.reset()
    assert json.loads(next_of(waiting, STATE).payload)["online"] is False
    for client in (late, waiting):
        client.close()


def test_an_edge_node_cannot_act_for_another(broker: RecipeBroker) -> None:
    primary = host(broker, "host-1")
    edge = connected(broker, "edge-1")
    assert edge.subscribe(("spBv1.0/plant/NCMD/edge-2", 1), ("spBv1.0/#", 1)) == (0x80, 0x80)
    edge.publish("spBv1.0/plant/NDATA/edge-2", b"forged", 1)
    edge.publish("spBv1.0/STATE/host-1", state(False), 1, retain=True)
    edge.publish("spBv1.0/plant/NDATA/edge-1", b"own", 1)
    received: list[tuple[str, bytes]] = []
    while not received or received[-1][1] != b"own":
        message = primary.receive()
        if isinstance(message, Publish):
            primary.acknowledge(message)
            received.append((message.topic, message.payload))
    topics = {topic for topic, _ in received}
    assert topics == {STATE, "spBv1.0/plant/NDATA/edge-1"}
    assert all(payload == state(True) for topic, payload in received if topic == STATE)
    edge.close()
    primary.close()
