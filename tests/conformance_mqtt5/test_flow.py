"""Flow control (4.9), Maximum Packet Size (3.1.2.11.4) and order (4.6)."""

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.mqtt5_packets import Properties, Publish
from harness.mqtt5_rawclient import Clients5, OwnBroker, RawClient5
from harness.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK

KEEP = ((p.SESSION_EXPIRY, 100),)


def at_most(number: int) -> Properties:
    return ((p.RECEIVE_MAXIMUM, number),)


def messages(client: RawClient5, count: int) -> list[Publish]:
    """This many messages, and nothing else."""
    found = [client.receive() for _ in range(count)]
    assert all(isinstance(one, Publish) for one in found), f"{found}"
    return [one for one in found if isinstance(one, Publish)]


# ----------------------------------------------------------- receive maximum


@pytest.mark.mqtt5("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
@pytest.mark.parametrize("maximum", [1, 2, 10])
@pytest.mark.parametrize("live", [True, False])
def test_receive_maximum_at_qos_1(
    clients: Clients5, topic: str, maximum: int, *, live: bool
) -> None:
    client = clients.five(topic, properties=(*KEEP, *at_most(maximum)))
    assert client.subscribe((f"{topic}/a", 1), (f"{topic}/b", 1)) == (1, 1)
    if not live:
        client.leave()
    publisher = clients.five()
    for number in range(15):
        publisher.publish(f"{topic}/{'ab'[number % 2]}", b"%d" % number, 1)
    if not live:
        client = clients.five(
            topic, clean=False, session_present=True, properties=(*KEEP, *at_most(maximum))
        )
    waiting = messages(client, maximum)
    payloads = [one.payload for one in waiting]
    client.expect_nothing()
    for number in range(15):
        client.acknowledge(waiting.pop(0))
        if number + maximum < 15:
            waiting += messages(client, 1)
            payloads.append(waiting[-1].payload)
            if number < 3:
                client.expect_nothing(0.1)
    assert sorted(payloads) == sorted(b"%d" % number for number in range(15))
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.4-9", "MQTT-4.9.0-2", "MQTT-4.3.3-4")
def test_receive_maximum_at_qos_2(clients: Clients5, topic: str) -> None:
    """PUBCOMP gives room, and PUBREC of 0x80 and above; another PUBREC does not."""
    client = clients.listening(topic, 2, properties=at_most(2))
    publisher = clients.five()
    for number in range(6):
        publisher.publish(topic, b"%d" % number, 2)
    one, two = messages(client, 2)
    assert one.packet_id is not None
    assert two.packet_id is not None
    client.expect_nothing()
    client.send(p.acknowledge(PUBREC, one.packet_id))
    client.expect_answer(PUBREL, one.packet_id)
    client.expect_nothing()
    client.send(p.acknowledge(PUBCOMP, one.packet_id))
    (three,) = messages(client, 1)
    assert three.payload == b"2"
    client.expect_nothing()
    client.send(p.acknowledge(PUBREC, two.packet_id, 0x83))
    (four,) = messages(client, 1)
    assert four.payload == b"3"
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.4-9", "MQTT-4.4.0-2", "MQTT-4.9.0-2")
def test_puback_that_refuses_gives_room(clients: Clients5, topic: str) -> None:
    client = clients.listening(topic, 1, properties=at_most(1))
    publisher = clients.five()
    for number in range(3):
        publisher.publish(topic, b"%d" % number, 1)
    for number in range(3):
        found = client.expect_message(topic, b"%d" % number, 1)
        client.expect_nothing(0.1)
        assert found.packet_id is not None
        client.send(p.acknowledge(PUBACK, found.packet_id, 0x97))


@pytest.mark.mqtt5("MQTT-4.9.0-1", "MQTT-3.3.4-9")
def test_answers_too_many_give_no_more_room(clients: Clients5, topic: str) -> None:
    client = clients.listening(topic, 1, properties=at_most(2))
    for number in range(100, 110):
        client.send(p.acknowledge(PUBACK, number), p.acknowledge(PUBCOMP, number))
    publisher = clients.five()
    for _ in range(5):
        publisher.publish(topic, b"x", 1)
    messages(client, 2)
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.4-9", "MQTT-4.4.0-1", "MQTT-4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("queued", [0, 1])
def test_a_smaller_receive_maximum_after_a_reconnect(
    clients: Clients5, topic: str, qos: int, queued: int
) -> None:
    client = clients.kept(topic, topic, qos)
    publisher = clients.five()
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos)
    sent = messages(client, 5)
    client.leave()
    if queued:
        publisher.publish(topic, b"5", qos)
    client = clients.resumed(topic, (*KEEP, *at_most(2)))
    waiting = messages(client, 2)
    client.expect_nothing()
    done: list[Publish] = []
    while waiting:
        done.append(waiting.pop(0))
        client.acknowledge(done[-1])
        if len(done) + len(waiting) < 5 + queued:
            waiting += messages(client, 1)
    assert [(one.payload, one.dup) for one in done] == [
        (b"%d" % number, number < 5) for number in range(5 + queued)
    ]
    assert [one.packet_id for one in done[:5]] == [one.packet_id for one in sent]
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.4-9", "MQTT-4.4.0-1", "MQTT-4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_before_the_message_is_sent_again(
    clients: Clients5, topic: str, qos: int
) -> None:
    """It is no room for others: the client has as many unacknowledged as before."""
    client = clients.kept(topic, topic, qos)
    publisher = clients.five()
    for number in range(6):
        publisher.publish(topic, b"%d" % number, qos)
    sent = messages(client, 6)
    client.leave()
    client = clients.resumed(topic, (*KEEP, *at_most(2)))
    first, second = messages(client, 2)
    client.acknowledge(sent[3])
    client.acknowledge(sent[5])
    client.expect_nothing()
    client.acknowledge(first)
    (third,) = messages(client, 1)
    client.expect_nothing()
    client.acknowledge(second)
    (fifth,) = messages(client, 1)
    assert [one.payload for one in (third, fifth)] == [b"2", b"4"]
    client.acknowledge(third)
    client.acknowledge(fifth)
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-4.9.0-3", "MQTT-3.3.4-10")
def test_everything_else_is_answered_at_a_quota_of_0(clients: Clients5, topic: str) -> None:
    client = clients.listening(topic, 1, properties=at_most(1))
    publisher = clients.five()
    publisher.publish(topic, b"1", 1)
    publisher.publish(topic, b"2", 1)
    first = client.expect_message(topic, b"1", 1)
    client.expect_alive()
    assert client.subscribe((f"{topic}/x", 2)) == (2,)
    client.send(p.publish(f"{topic}/other", b"", 1, 7), p.publish(f"{topic}/other", b"", 2, 8))
    client.expect_answer(PUBACK, 7)
    client.expect_answer(PUBREC, 8)
    client.release(8)
    publisher.publish(f"{topic}/x", b"QoS 0")
    client.expect_message(f"{topic}/x", b"QoS 0")
    assert client.unsubscribe(f"{topic}/x") == (0,)
    client.acknowledge(first)
    client.acknowledge(client.expect_message(topic, b"2", 1))


@pytest.mark.mqtt5("MQTT-3.3.4-7", "MQTT-3.3.4-8")
def test_many_unacknowledged_from_a_client(clients: Clients5, topic: str) -> None:
    """As many as the server's Receive Maximum, or 500, at once."""
    client = clients.five()
    count = min(500, client.connack.number(p.RECEIVE_MAXIMUM, 65_535))
    client.send(*[p.publish(topic, b"x", 2, number) for number in range(1, count + 1)])
    for number in range(1, count + 1):
        client.expect_answer(PUBREC, number)
    client.send(*[p.acknowledge(PUBREL, number) for number in range(1, count + 1)])
    for number in range(1, count + 1):
        client.expect_answer(PUBCOMP, number)


# ------------------------------------------------------- maximum packet size


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@pytest.mark.parametrize(("qos", "live"), [(0, True), (1, True), (2, True), (1, False), (2, False)])
def test_message_too_large_is_dropped(
    clients: Clients5, topic: str, qos: int, *, live: bool
) -> None:
    """The largest that fits arrives, one byte more does not, and nothing waits behind it."""
    limit = 200
    room = limit - len(p.publish(topic, b"", qos, 1 if qos else None)) - 1
    # of 200 bytes, the Remaining Length takes two
    fits = p.publish(topic, bytes(room), qos, 1 if qos else None)
    assert len(fits) == limit
    properties = (*KEEP, (p.MAXIMUM_PACKET_SIZE, limit))
    client = clients.five(topic, properties=properties)
    assert client.subscribe((topic, qos)) == (qos,)
    if not live:
        client.leave()
    publisher, other = clients.five(), clients.listening(topic, 0)
    for payload in (bytes(room + 1), bytes(room), bytes(5000), b"small"):
        publisher.publish(topic, payload, qos)
    publisher.publish(topic, b"block", qos, properties=((p.CONTENT_TYPE, "x" * limit),))
    publisher.publish(topic, b"last", qos)
    if not live:
        client = clients.resumed(topic, properties)
    found = messages(client, 3)
    assert [one.payload for one in found] == [bytes(room), b"small", b"last"]
    if qos == 1:
        for one in found:
            client.acknowledge(one)
    client.expect_nothing()
    assert len(messages(other, 6)) == 6
    if qos == 1:
        client.reset()
        clients.resumed(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-3.1.2-25")
def test_identifiers_count_for_the_size(clients: Clients5, topic: str) -> None:
    """As does everything that the server adds."""
    limit = 100
    room = limit - len(p.publish(topic, b"", 1, 1))
    client = clients.five(properties=((p.MAXIMUM_PACKET_SIZE, limit),))
    identifier = ((p.SUBSCRIPTION_IDENTIFIER, 268_435_455),)
    assert client.subscribe((topic, 1), properties=identifier) == (1,)
    publisher = clients.five()
    for size in (room - 5, room - 4, room):
        publisher.publish(topic, bytes(size), 1)
    client.acknowledge(client.expect_message(topic, bytes(room - 5), 1, properties=identifier))
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-3.1.2-25", "MQTT-3.3.1-9")
def test_retained_message_too_large(clients: Clients5, topic: str) -> None:
    publisher = clients.five()
    publisher.publish(f"{topic}/1", bytes(500), 1, retain=True)
    publisher.publish(f"{topic}/2", b"small", 1, retain=True)
    client = clients.five(properties=((p.MAXIMUM_PACKET_SIZE, 300),))
    assert client.subscribe((f"{topic}/+", 1)) == (1,)
    client.acknowledge(client.expect_message(f"{topic}/2", b"small", 1, retain=True))
    client.expect_nothing()
    for number in "12":
        publisher.publish(f"{topic}/{number}", retain=True)


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-3.1.2-25", "MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_redelivery_of_a_message_that_has_become_too_large(
    clients: Clients5, topic: str, qos: int
) -> None:
    client = clients.kept(topic, topic, qos)
    publisher = clients.five()
    publisher.publish(topic, bytes(500), qos)
    publisher.publish(topic, b"small", qos)
    messages(client, 2)
    client.reset()
    client = clients.five(
        topic, clean=False, session_present=True, properties=(*KEEP, (p.MAXIMUM_PACKET_SIZE, 300))
    )
    client.acknowledge(client.expect_message(topic, b"small", qos, dup=True))
    client.expect_alive()
    publisher.publish(topic, b"next", qos)
    client.acknowledge(client.expect_message(topic, b"next", qos))


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-4.4.0-1")
@pytest.mark.parametrize("kind", ["retained", "shared", "waiting"])
def test_only_identifiers_that_are_sent_count_for_the_size(
    clients: Clients5, topic: str, kind: str
) -> None:
    """Retained and shared messages are sent for one subscription, with its identifier alone."""
    properties = (*KEEP, (p.RECEIVE_MAXIMUM, 1 if kind == "waiting" else 2))
    client = clients.five(topic, properties=properties)
    long, short = ((p.SUBSCRIPTION_IDENTIFIER, number) for number in (268_435_455, 1))
    assert client.subscribe((f"{topic}/#", 0 | 0x20), properties=(long,)) == (0,)
    publisher, name, size = clients.five(), f"{topic}/x", 0
    before = f"{topic}/before"
    if kind == "waiting":
        assert client.subscribe((before, 1)) == (1,)
        publisher.publish(before, b"x", 1)
        assert client.receive()
    if kind == "shared":
        assert client.subscribe((f"$share/{topic}/{name}", 2), properties=(short,)) == (2,)
        publisher.publish(name, bytes(100), 2)
        found = [one for one in messages(client, 2) if one.qos]
        size = len(found[0].payload)
    else:
        publisher.publish(name, bytes(100), 1, retain=True)
        client.receive_all()
        assert client.subscribe((name, 1), properties=(short,)) == (1,)
        if kind == "retained":
            messages(client, 1)
        size = 100
    client.reset()
    limit = 2 + 2 + len(name) + 2 + 1 + 2 + size
    client = clients.five(
        topic,
        clean=False,
        session_present=True,
        properties=(*properties, (p.MAXIMUM_PACKET_SIZE, limit)),
    )
    if kind == "waiting":
        client.acknowledge(client.expect_message(before, b"x", 1, properties=None, dup=True))
    message = client.receive()
    assert isinstance(message, Publish)
    assert (message.topic, message.payload, message.identifiers) == (name, bytes(100), {1})
    if kind != "shared":
        publisher.publish(name, b"", retain=True)


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-4.5.0-1")
@pytest.mark.parametrize("maximum", [(), ((p.MAXIMUM_PACKET_SIZE, 600),)])
def test_the_limit_of_a_client_ends_with_its_connection(
    clients: Clients5, topic: str, maximum: Properties
) -> None:
    """What is published just after it left waits until it is back, perhaps with another limit."""
    client = clients.five(topic, properties=(*KEEP, (p.MAXIMUM_PACKET_SIZE, 300)))
    assert client.subscribe((topic, 1)) == (1,)
    client.leave()
    clients.five().publish(topic, bytes(500), 1)
    client = clients.resumed(topic, (*KEEP, *maximum))
    client.acknowledge(client.expect_message(topic, bytes(500), 1))


@pytest.mark.mqtt5("MQTT-3.1.2-24")
def test_suback_that_would_be_too_large(clients: Clients5, topic: str) -> None:
    """The server cannot answer, and must not send it: `RawClient5` checks each packet."""
    client = clients.five(properties=((p.MAXIMUM_PACKET_SIZE, 30),))
    filters = [(f"{topic}/{number}", 0) for number in range(100)]
    client.send(p.subscribe(1, *filters))
    client.expect_end_of(packets.DISCONNECT, 0x95, 0x83, 0x80, 0x97)


@pytest.mark.mqtt5("MQTT-3.2.2-15", "MQTT-4.13.1-1", "MQTT-4.13.2-1")
def test_packet_larger_than_the_server_allows(own: OwnBroker, topic: str) -> None:
    _, clients = own('max_packet_size = "2KiB"')
    client = clients.listening(topic, 1)
    limit = client.connack.get(p.MAXIMUM_PACKET_SIZE)
    assert limit == 2048
    room = limit - len(p.publish(topic, b"", 1, 1)) - 1
    assert len(p.publish(topic, bytes(room), 1, 1)) == limit
    client.send(p.publish(topic, bytes(room), 1, 1))
    found = [client.receive(), client.receive()]
    assert sum(isinstance(one, Publish) for one in found) == 1
    other = clients.five()
    other.send(p.publish(topic, bytes(room + 1), 1, 1))
    other.expect_ended(0x95)
    other = clients.raw5()
    other.send(p.connect("x" * 3000))
    other.expect_end_of(packets.CONNACK, 0x95, 0x81, 0x85)


# --------------------------------------------------------------------- order


@pytest.mark.mqtt5("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_order(clients: Clients5, topic: str, qos: int) -> None:
    """Live, and from a queue, and both together."""
    waiting = clients.kept(topic, topic, qos)
    waiting.leave()
    live, publisher = clients.listening(topic, qos), clients.five()
    count = 60
    data = [
        p.publish(
            topic,
            b"%d" % number,
            qos,
            number + 1 if qos else None,
            properties=((p.USER_PROPERTY, ("n", str(number))),) if number % 3 else (),
        )
        for number in range(count)
    ]
    publisher.send(*data[: count // 2])
    if qos:
        kind = PUBACK if qos == 1 else PUBREC
        for number in range(count // 2):
            publisher.expect_answer(kind, number + 1)
    if qos == 2:
        publisher.send(*[p.acknowledge(PUBREL, number + 1) for number in range(count // 2)])
        for number in range(count // 2):
            publisher.expect_answer(PUBCOMP, number + 1)
        assert [one.payload for one in messages(live, count // 2)] == [
            b"%d" % number for number in range(count // 2)
        ]
        return
    if qos:
        waiting = clients.resumed(topic)
    publisher.send(*data[count // 2 :])
    for client in [live] + [waiting] * bool(qos):
        for number in range(count):
            message = client.receive()
            assert isinstance(message, Publish)
            assert message.payload == b"%d" % number
            assert message.user == ([("n", str(number))] if number % 3 else [])
            client.acknowledge(message)


@pytest.mark.mqtt5("MQTT-4.2-1", "MQTT-4.13.1-1")
def test_packets_that_arrive_byte_by_byte(clients: Clients5, topic: str) -> None:
    client = clients.raw5()
    properties: Properties = ((p.TOPIC_ALIAS, 1), (p.USER_PROPERTY, ("k", "v" * 20)))
    client.send_slowly(p.connect(topic, properties=KEEP))
    client.expect_answer(packets.CONNACK)
    client.send_slowly(p.subscribe(1, (topic, 1), properties=((p.SUBSCRIPTION_IDENTIFIER, 200),)))
    client.expect_answer(SUBACK, 1, codes=(1,))
    client.send_slowly(p.publish(topic, b"slow", 0, properties=properties))
    found = client.expect_message(topic, b"slow", properties=None)
    assert set(found.properties) == {properties[1], (p.SUBSCRIPTION_IDENTIFIER, 200)}
    client.send_slowly(p.disconnect(0, ((p.SESSION_EXPIRY, 0),)))
    client.expect_closed()


# -------------------------------------------------- the server's receive maximum


def test_no_receive_maximum_is_announced_by_default(clients: Clients5) -> None:
    assert clients.five().connack.get(p.RECEIVE_MAXIMUM) is None


@pytest.mark.mqtt5("MQTT-3.3.4-7", "MQTT-4.9.0-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("in_one_read", [True, False])
def test_a_client_within_the_servers_receive_maximum(
    own: OwnBroker, topic: str, qos: int, *, in_one_read: bool
) -> None:
    """Ten at a time, as often as it likes; singly they are decided together with other clients'."""
    _, clients = own("receive_maximum = 10\n")
    client = clients.five()
    assert client.connack.get(p.RECEIVE_MAXIMUM) == 10
    for start in range(1, 200, 10):
        packets_ = [p.publish(topic, b"x" * 50, qos, start + at) for at in range(10)]
        if in_one_read:
            client.send(*packets_)
        else:
            for one in packets_:
                client.send(one)
        for at in range(10):
            client.expect_answer(PUBACK if qos == 1 else PUBREC, start + at)
        if qos == 2:
            client.send(*(p.acknowledge(PUBREL, start + at) for at in range(10)))
            for at in range(10):
                client.expect_answer(PUBCOMP, start + at)
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-3.3.4-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_exceeds_the_servers_receive_maximum(
    own: OwnBroker, topic: str, qos: int
) -> None:
    """What stands before the first one too many takes effect."""
    broker, clients = own("receive_maximum = 3\n")
    other = clients.listening(topic, 1)
    client = clients.five()
    client.send(*(p.publish(topic, b"%d" % number, qos, number) for number in range(1, 6)))
    for number in (1, 2, 3):
        client.expect_answer(PUBACK if qos == 1 else PUBREC, number)
    client.expect_ended(0x93)
    if qos == 1:
        for number in (1, 2, 3):
            other.acknowledge(other.expect_message(topic, b"%d" % number, 1))
    other.expect_alive()
    assert "receive_maximum" in broker.log


@pytest.mark.mqtt5("MQTT-3.3.4-7")
def test_qos_2_messages_count_until_they_are_released(own: OwnBroker, topic: str) -> None:
    _, clients = own("receive_maximum = 2\n")
    client = clients.five()
    for number in (1, 2):
        client.send(p.publish(topic, b"", 2, number))
        client.expect_answer(PUBREC, number)
    client.send(p.publish(topic, b"", 2, 2))  # it is the same one again
    client.expect_answer(PUBREC, 2)
    client.release(1)
    client.publish(topic, b"", 1, packet_id=3)
    client.send(p.publish(topic, b"", 2, 4))
    client.expect_answer(PUBREC, 4)
    client.send(p.publish(topic, b"", 1, 5))
    client.expect_ended(0x93)


def test_identifiers_of_another_connection_do_not_count(own: OwnBroker, topic: str) -> None:
    _, clients = own("receive_maximum = 2\n")
    client = clients.five(topic, properties=KEEP)
    for number in (1, 2):
        client.send(p.publish(topic, b"", 2, number))
        client.expect_answer(PUBREC, number)
    client.leave()
    client = clients.resumed(topic, KEEP)
    for number in (3, 4):
        client.send(p.publish(topic, b"", 2, number))
        client.expect_answer(PUBREC, number)
    client.send(p.publish(topic, b"", 2, 5))
    client.expect_ended(0x93)


def test_a_refused_message_does_not_count(own: OwnBroker, topic: str) -> None:
    """PUBREC with an error ends the exchange."""
    _, clients = own("receive_maximum = 1\n")
    client = clients.five()
    for number in range(1, 5):
        client.send(p.publish("$SYS/x", b"", 2, number))
        client.expect_answer(PUBREC, number, 0x90)
    client.publish(topic, b"", 1, packet_id=9)
