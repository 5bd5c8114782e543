"""Section 3.3: PUBLISH, its flags, its topic name and the QoS of deliveries."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Puback, Pubcomp, Publish, Pubrec

QOS = [0, 1, 2]


# --------------------------------------------------------------------- flags


@pytest.mark.mqtt("MQTT-3.3.1-2", "MQTT-4.3.1-1", "MQTT-3.3.1-3")
@pytest.mark.parametrize("granted", QOS)
@pytest.mark.parametrize("published", [1, 2])
def test_dup_of_the_publisher_is_not_passed_on(
    clients: Clients, topic: str, published: int, granted: int
) -> None:
    subscriber = clients.subscribed(topic, granted)
    publisher = clients.connect()
    publisher.send(p.publish(topic, b"again", published, 5, dup=True))
    if published == 1:
        publisher.expect(Puback(5))
    else:
        publisher.expect(Pubrec(5))
        publisher.release(5)
    subscriber.expect_publish(topic, b"again", min(published, granted), dup=False)


# ---------------------------------------------------------------- topic name


@pytest.mark.mqtt("MQTT-3.3.2-1", "MQTT-3.3.2-3")
@pytest.mark.parametrize("topic_filter", ["{0}/a/b", "{0}/+/b", "{0}/#", "+/+/b", "{0}/a/b/#"])
def test_delivery_carries_the_topic_name_and_matches(
    clients: Clients, topic: str, topic_filter: str
) -> None:
    subscriber = clients.subscribed(topic_filter.format(topic))
    publisher = clients.connect()
    publisher.publish(f"{topic}/a/c/d/b", b"near miss" if "#" not in topic_filter else b"")
    publisher.publish(f"{topic}/a/b", b"hit")
    received = [m for m in subscriber.receive_all() if isinstance(m, Publish)]
    mine = [m for m in received if m.topic.startswith(topic)]
    assert Publish(f"{topic}/a/b", b"hit") in mine
    assert Publish(f"{topic}/a/c/d/b", b"near miss") not in mine


# ------------------------------------------------------------------- payload


@pytest.mark.mqtt("MQTT-3.3.5-1")
@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize(
    "payload", [b"", b"\0", bytes(range(256)), b"\xff\xfe not UTF-8", b"\r\n" * 50]
)
def test_payload_is_passed_on_byte_for_byte(
    clients: Clients, topic: str, payload: bytes, qos: int
) -> None:
    subscriber = clients.subscribed(topic, qos)
    clients.connect().publish(topic, payload, qos)
    subscriber.acknowledge(subscriber.expect_publish(topic, payload, qos))


# ----------------------------------------------------------- QoS of delivery


@pytest.mark.mqtt("MQTT-3.8.4-6", "MQTT-3.3.5-1", "MQTT-3.3.4-1")
@pytest.mark.parametrize("granted", QOS)
@pytest.mark.parametrize("published", QOS)
def test_delivered_at_the_lower_qos(
    clients: Clients, topic: str, published: int, granted: int
) -> None:
    subscriber = clients.subscribed(topic, granted)
    clients.connect().publish(topic, b"x", published)
    subscriber.acknowledge(subscriber.expect_publish(topic, b"x", min(published, granted)))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-3.3.5-1")
@pytest.mark.usefixtures("foldmq_only")
@pytest.mark.parametrize("published", QOS)
def test_overlapping_subscriptions_deliver_one_copy(
    clients: Clients, topic: str, published: int
) -> None:
    subscriber = clients.connect()
    filters = [(f"{topic}/a", 0), (f"{topic}/+", 2), (f"{topic}/#", 1)]
    assert subscriber.subscribe(*filters) == (0, 2, 1)
    clients.connect().publish(f"{topic}/a", b"x", published)
    subscriber.acknowledge(subscriber.expect_publish(f"{topic}/a", b"x", published))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-3.3.5-1", "MQTT-4.5.0-1")
def test_each_client_gets_its_own_copy_and_the_publisher_too(clients: Clients, topic: str) -> None:
    everyone = [clients.subscribed(topic, qos) for qos in QOS]
    publisher = clients.subscribed(topic, 0)
    publisher.send(p.publish(topic, b"x", 2, 1))
    publisher.expect(Pubrec(1))
    publisher.send(p.pubrel(1))
    assert {type(publisher.receive()) for _ in range(2)} == {Pubcomp, Publish}
    for qos, subscriber in enumerate(everyone):
        subscriber.acknowledge(subscriber.expect_publish(topic, b"x", qos))


# ------------------------------------------------------------- authorisation


@pytest.mark.mqtt("MQTT-3.3.5-2")
@pytest.mark.usefixtures("foldmq_only")
@pytest.mark.parametrize("name", ["$foldmq", "$foldmq/", "$foldmq/log/n1", "$foldmq/a b/c"])
@pytest.mark.parametrize("retain", [False, True])
def test_publish_on_a_reserved_topic_is_acknowledged_and_not_delivered(
    clients: Clients, topic: str, name: str, *, retain: bool
) -> None:
    watcher = clients.connect()
    assert watcher.subscribe(("#", 0), (f"{topic}/end", 0)) == (0, 0)
    client = clients.connect()
    for qos in QOS:
        client.publish(name, topic.encode(), qos, retain=retain)
    client.publish(f"{topic}/end", b"end")
    received = [m for m in watcher.receive_all() if isinstance(m, Publish)]
    assert Publish(f"{topic}/end", b"end") in received
    assert not [m for m in received if m.payload == topic.encode()]
