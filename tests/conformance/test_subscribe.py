"""Sections 3.8 and 3.9: SUBSCRIBE and SUBACK."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Publish, Suback

# ----------------------------------------------------------------- malformed


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.usefixtures("foldmq_only")
def test_nothing_of_a_malformed_subscribe_remains(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.send(p.subscribe(1, (topic, 1), ("a/#/b", 1)))
    client.expect_closed()
    clients.connect().publish(topic, b"x", 1)
    clients.connect(topic, clean=False, session_present=True).expect_nothing()


# ------------------------------------------------------------------- answers


@pytest.mark.mqtt(
    "MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.8.4-4", "MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2"
)
def test_one_code_for_each_filter_in_order(clients: Clients, topic: str) -> None:
    client = clients.connect()
    wanted = [(f"{topic}/{number}", number % 3) for number in (2, 0, 1, 2, 2, 0, 1)]
    assert client.subscribe(*wanted) == (2, 0, 1, 2, 2, 0, 1)


@pytest.mark.mqtt("MQTT-3.8.4-4")
def test_many_filters_in_one_packet_all_take_effect(clients: Clients, topic: str) -> None:
    client = clients.connect()
    assert client.subscribe(*[(f"{topic}/{n}", 1) for n in range(300)]) == (1,) * 300
    publisher = clients.connect()
    for number in (0, 150, 299):
        publisher.publish(f"{topic}/{number}", b"x", 1)
        client.acknowledge(client.expect_publish(f"{topic}/{number}", b"x", 1))
    publisher.publish(f"{topic}/300", b"x", 1)
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.8.4-4", "MQTT-3.8.4-3")
def test_same_filter_twice_in_one_packet_the_last_counts(clients: Clients, topic: str) -> None:
    client = clients.connect()
    assert client.subscribe((topic, 2), (topic, 0)) == (2, 0)
    clients.connect().publish(topic, b"x", 2)
    client.expect_publish(topic, b"x", 0)
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.8.4-5", "MQTT-3.9.3-2")
@pytest.mark.usefixtures("foldmq_only")
@pytest.mark.parametrize("below", ["$foldmq", "$foldmq/#", "$foldmq/+/x", "$foldmq/log"])
def test_foldmqs_own_topics_are_refused_and_the_rest_granted(
    clients: Clients, topic: str, below: str
) -> None:
    client = clients.connect()
    assert client.subscribe((topic, 1), (below, 1), (f"{topic}/2", 2)) == (1, 0x80, 2)
    clients.connect().publish(topic, b"x", 1)
    client.expect_publish(topic, b"x", 1)


# -------------------------------------------------------------- re-subscribe


@pytest.mark.mqtt("MQTT-3.8.4-3", "MQTT-3.8.4-6")
@pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 0), (1, 2), (2, 1), (0, 1), (1, 0)])
def test_same_filter_again_replaces_the_qos(
    clients: Clients, topic: str, first: int, second: int
) -> None:
    client = clients.subscribed(topic, first)
    publisher = clients.connect()
    publisher.publish(topic, b"before", 2)
    client.acknowledge(client.expect_publish(topic, b"before", first))
    assert client.subscribe((topic, second)) == (second,)
    publisher.publish(topic, b"after", 2)
    client.acknowledge(client.expect_publish(topic, b"after", second))
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.8.4-3")
def test_same_filter_again_resends_retained_and_interrupts_nothing(
    clients: Clients, topic: str
) -> None:
    publisher = clients.connect()
    publisher.publish(f"{topic}/kept", b"kept", 1, retain=True)
    client = clients.subscribed(f"{topic}/#", 1)
    client.acknowledge(client.expect_publish(f"{topic}/kept", b"kept", 1, retain=True))
    for round_ in range(5):
        first, second = b"%d" % (2 * round_), b"%d" % (2 * round_ + 1)
        publisher.publish(f"{topic}/flow", first, 1)
        client.send(p.subscribe(10 + round_, (f"{topic}/#", 1)))
        publisher.publish(f"{topic}/flow", second, 1)
        received = [client.receive() for _ in range(4)]
        messages = [m for m in received if isinstance(m, Publish)]
        assert Suback(10 + round_, (1,)) in received
        assert [m.payload for m in messages if not m.retain] == [first, second]
        assert [m.payload for m in messages if m.retain] == [b"kept"]
        for message in messages:
            client.acknowledge(message)
    publisher.publish(f"{topic}/kept", b"", retain=True)


@pytest.mark.mqtt("MQTT-3.8.4-3", "MQTT-4.3.2-1")
def test_messages_in_flight_survive_a_re_subscription(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1))
    clients.connect().publish(topic, b"x", 1)
    message = client.expect_publish(topic, b"x", 1)
    assert client.subscribe((topic, 0)) == (0,)
    client.reset()
    client = clients.connect(topic, clean=False, session_present=True)
    client.expect(Publish(topic, b"x", 1, message.packet_id, dup=True))
