"""Section 4.8.2: shared subscriptions."""

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_packets import Publish
from harness.mqtt5_rawclient import Clients5, RawClient5
from harness.packets import PUBACK, PUBREC, SUBACK, Pingresp, pingreq

KEEP = ((p.SESSION_EXPIRY, 100),)


def member(
    clients: Clients5, topic: str, qos: int = 1, properties: p.Properties = (), **more: object
) -> RawClient5:
    client = clients.five(properties=properties, **more)  # type: ignore[arg-type]
    assert client.subscribe((f"$share/g/{topic}", qos)) == (qos,)
    return client


def payloads(client: RawClient5) -> list[bytes]:
    """The messages that a client gets, all acknowledged, until there are no more."""
    found: list[Publish] = []
    client.send(pingreq())
    while not isinstance(one := client.receive(), Pingresp):
        assert isinstance(one, Publish), one
        found.append(one)
    for one in found:
        client.acknowledge(one)
    more = payloads(client) if found else []
    return [one.payload for one in found] + more


def settle(client: RawClient5) -> None:
    """Wait until the server has done what a client sent."""
    client.send(pingreq())
    assert isinstance(client.receive(), Pingresp)


@pytest.mark.mqtt5("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize(
    "bad", ["$share/g", "$share//{}", "$share/g/", "$share/g+/{}", "$share/#/{}"]
)
def test_a_share_needs_a_name_and_a_filter(clients: Clients5, topic: str, bad: str) -> None:
    client = clients.five()
    client.send(p.subscribe(1, (bad.format(topic), 1)))
    client.expect_end_of(14, 0x81, 0x82, 0x8F)


@pytest.mark.mqtt5("MQTT-3.9.3-2")
@pytest.mark.usefixtures("foldmq_only")
def test_topics_with_values_for_each_client_cannot_be_shared(clients: Clients5) -> None:
    client = clients.five()
    assert client.subscribe(("$share/g/$SYS/#", 1), ("$share/g/$SYS", 0)) == (0x8F, 0x8F)


@pytest.mark.mqtt5("MQTT-4.8.2-1")
def test_connack_announces_shared_subscriptions(clients: Clients5) -> None:
    assert clients.five().connack.get(p.SHARES_AVAILABLE) in (None, 1)


@pytest.mark.mqtt5("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(clients: Clients5, topic: str, qos: int) -> None:
    some = [member(clients, topic, qos) for _ in range(3)]
    other = clients.five()
    assert other.subscribe((f"$share/other/{topic}", qos)) == (qos,)
    sender = clients.five()
    sent = [b"%d" % number for number in range(9)]
    for payload in sent:
        sender.publish(topic, payload, qos)
    settle(sender)
    shares = [payloads(one) for one in some]
    assert sorted(payload for share in shares for payload in share) == sent
    assert [len(share) for share in shares] == [3, 3, 3]
    assert payloads(other) == sent


@pytest.mark.mqtt5("MQTT-4.8.2-3")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_the_lower_qos(clients: Clients5, topic: str, granted: int, published: int) -> None:
    client = member(clients, topic, granted)
    clients.five().publish(topic, b"x", published)
    client.acknowledge(client.expect_message(topic, b"x", min(granted, published)))


@pytest.mark.mqtt5("MQTT-4.8.2-4")
def test_a_qos_2_delivery_is_completed_when_its_member_is_back(
    clients: Clients5, topic: str
) -> None:
    one = member(clients, topic, 2, KEEP)
    clients.five().publish(topic, b"x", 2)
    first = one.expect_message(topic, b"x", 2)
    two = member(clients, topic, 2)
    name = one.client_id
    one.close()
    assert payloads(two) == []
    again = clients.five(name, clean=False, properties=KEEP, session_present=True)
    second = again.expect_message(topic, b"x", 2, dup=True)
    assert second.packet_id == first.packet_id
    again.acknowledge(second)
    assert payloads(two) == []


@pytest.mark.mqtt5("MQTT-4.8.2-5")
def test_a_qos_2_delivery_goes_to_no_other_when_the_session_of_its_member_ends(
    clients: Clients5, topic: str
) -> None:
    one = member(clients, topic, 2, KEEP)
    clients.five().publish(topic, b"x", 2)
    one.expect_message(topic, b"x", 2)
    two = member(clients, topic, 2)
    name = one.client_id
    one.close()
    clients.five(name, clean=True)
    assert payloads(two) == []


@pytest.mark.mqtt5("MQTT-4.8.2-6")
@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
@pytest.mark.parametrize("code", [0x80, 0x83, 0x97, 0x99])
def test_a_refused_message_goes_to_no_other_member(
    clients: Clients5, topic: str, qos: int, answer: int, code: int
) -> None:
    one = member(clients, topic, qos, KEEP)
    clients.five().publish(topic, b"x", qos)
    found = one.expect_message(topic, b"x", qos)
    two = member(clients, topic, qos)
    assert found.packet_id is not None
    one.send(p.acknowledge(answer, found.packet_id, code))
    assert payloads(one) == []
    one.leave(0)
    assert payloads(two) == []


@pytest.mark.mqtt5("MQTT-4.8.2-3")
def test_unacknowledged_qos_1_messages_go_to_another_member_in_order(
    clients: Clients5, topic: str
) -> None:
    one = member(clients, topic)
    sender = clients.five()
    for number in range(5):
        sender.publish(topic, b"%d" % number, 1)
    for number in range(5):
        one.expect_message(topic, b"%d" % number, 1)
    two = member(clients, topic)
    one.close()
    for number in range(5):
        two.acknowledge(two.expect_message(topic, b"%d" % number, 1))


@pytest.mark.mqtt5("MQTT-4.8.2-3")
def test_messages_above_the_receive_maximum_go_to_others(clients: Clients5, topic: str) -> None:
    one = member(clients, topic, 1, ((p.RECEIVE_MAXIMUM, 2),))
    two = member(clients, topic, 1, ((p.RECEIVE_MAXIMUM, 2),))
    sender = clients.five()
    for number in range(6):
        sender.publish(topic, b"%d" % number, 1)
    held = [one.expect_message(topic, b"%d" % number, 1) for number in (0, 2)]
    some = [two.expect_message(topic, b"%d" % number, 1) for number in (1, 3)]
    two.expect_nothing()
    for message in some:
        two.acknowledge(message)
    for number in (4, 5):
        two.acknowledge(two.expect_message(topic, b"%d" % number, 1))
    for message in held:
        one.acknowledge(message)
    assert payloads(one) == []


@pytest.mark.mqtt5("MQTT-3.1.2-24")
def test_a_message_goes_to_a_member_that_accepts_its_size(clients: Clients5, topic: str) -> None:
    small = [member(clients, topic, 1, ((p.MAXIMUM_PACKET_SIZE, 100),)) for _ in range(2)]
    large = member(clients, topic)
    sender = clients.five()
    for _ in range(3):
        sender.publish(topic, b"x" * 200, 1)
    assert payloads(large) == [b"x" * 200] * 3
    assert [payloads(one) for one in small] == [[], []]
    large.leave(0)
    sender.publish(topic, b"y" * 200, 1)
    sender.publish(topic, b"small", 1)
    assert sorted(payloads(small[0]) + payloads(small[1])) == [b"small"]


@pytest.mark.mqtt5("MQTT-3.3.4-3", "MQTT-3.3.4-5")
def test_the_identifier_is_that_of_the_member(clients: Clients5, topic: str) -> None:
    client = clients.five()
    own, shared = ((p.SUBSCRIPTION_IDENTIFIER, 1),), ((p.SUBSCRIPTION_IDENTIFIER, 2),)
    assert client.subscribe((topic, 1), properties=own) == (1,)
    assert client.subscribe((f"$share/g/{topic}", 1), properties=shared) == (1,)
    clients.five().publish(topic, b"x", 1)
    found = [client.receive(), client.receive()]
    assert all(isinstance(one, Publish) for one in found)
    assert {one.properties for one in found} == {own, shared}  # type: ignore[union-attr]


@pytest.mark.mqtt5("MQTT-3.3.1-9")
@pytest.mark.parametrize("handling", [0x00, 0x10, 0x20])
def test_no_retained_messages(clients: Clients5, topic: str, handling: int) -> None:
    clients.five().publish(topic, b"kept", 1, retain=True)
    client = clients.five()
    client.send(p.subscribe(1, (f"$share/g/{topic}", 1 | handling)))
    client.expect_answer(SUBACK, 1, codes=(1,))
    assert payloads(client) == []
    clients.five().publish(topic, b"", retain=True)


@pytest.mark.mqtt5("MQTT-3.1.3-8")
def test_a_client_identifier_of_a_shared_subscription_is_refused(
    clients: Clients5, foldmq_only: None
) -> None:
    client = clients.raw5()
    client.send(p.connect("$share/g/a"))
    client.expect_refused(0x85)


@pytest.mark.mqtt5("MQTT-4.8.2-3")
def test_members_of_all_levels(clients: Clients5, topic: str) -> None:
    five, four = member(clients, topic), clients.connect()
    assert four.subscribe((f"$share/g/{topic}", 1)) == (1,)
    sender = clients.five()
    for number in range(6):
        sender.publish(topic, b"%d" % number, 1, properties=((p.USER_PROPERTY, ("a", "b")),))
    assert len(payloads(five)) == 3
    for _ in range(3):
        four.acknowledge(four.receive())
