"""Session state (3.1.2.4, 4.1), storing (4.5), re-delivery (4.4) and order (4.6)."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Publish, Pubrel
from harness.rawclient import RawClient


def offline_session(clients: Clients, client_id: str, *filters: tuple[str, int]) -> None:
    """A stored session with these subscriptions, its client gone."""
    client = clients.connect(client_id, clean=False)
    client.subscribe(*filters)
    client.disconnect()


def resume(clients: Clients, client_id: str) -> RawClient:
    return clients.connect(client_id, clean=False, session_present=True)


# ------------------------------------------------------------ life of a session


@pytest.mark.mqtt("MQTT-3.1.2-4", "MQTT-3.1.2-5", "MQTT-4.1.0-1", "MQTT-4.5.0-1")
@pytest.mark.parametrize("ending", ["disconnect", "close", "reset"])
def test_messages_for_an_absent_client_are_stored(
    clients: Clients, topic: str, ending: str
) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 2))
    getattr(client, ending)()
    publisher = clients.connect()
    for number in range(10):
        publisher.publish(topic, b"%d" % number, 1 + number % 2)
    client = resume(clients, topic)
    for number in range(10):
        message = client.expect_a(Publish)
        assert _fields(message)[:3] == (topic, b"%d" % number, 1 + number % 2)
    client.expect_nothing()


def _fields(message: Publish) -> tuple[str, bytes, int, int | None]:
    return message.topic, message.payload, message.qos, message.packet_id


@pytest.mark.mqtt("MQTT-3.1.2-5", "MQTT-3.8.4-6")
def test_only_matching_messages_are_stored_at_the_lower_qos(clients: Clients, topic: str) -> None:
    offline_session(clients, topic, (f"{topic}/one", 1), (f"{topic}/two/#", 2))
    publisher = clients.connect()
    publisher.publish(f"{topic}/one", b"a", 2)
    publisher.publish(f"{topic}/other", b"b", 2)
    publisher.publish(f"{topic}/two/x", b"c", 1)
    publisher.publish(f"{topic}/two", b"d", 2)
    client = resume(clients, topic)
    client.acknowledge(client.expect_publish(f"{topic}/one", b"a", 1))
    client.acknowledge(client.expect_publish(f"{topic}/two/x", b"c", 1))
    client.acknowledge(client.expect_publish(f"{topic}/two", b"d", 2))
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-6", "MQTT-3.1.4-3", "MQTT-3.2.2-3")
def test_clean_session_discards_the_old_one(clients: Clients, topic: str) -> None:
    offline_session(clients, topic, (topic, 1))
    publisher = clients.connect()
    publisher.publish(topic, b"queued", 1)
    client = clients.connect(topic, clean=True)
    publisher.publish(topic, b"live", 1)
    client.expect_nothing()
    client.disconnect()
    client = clients.connect(topic, clean=False, session_present=False)
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-6", "MQTT-4.1.0-2")
@pytest.mark.parametrize("ending", ["disconnect", "close", "reset"])
def test_clean_session_ends_with_its_connection(clients: Clients, topic: str, ending: str) -> None:
    client = clients.connect(topic, clean=True)
    client.subscribe((topic, 1))
    publisher = clients.connect()
    publisher.publish(topic, b"in flight", 1)
    client.expect_publish(topic, b"in flight", 1)
    getattr(client, ending)()
    publisher.publish(topic, b"while gone", 1)
    client = clients.connect(topic, clean=False, session_present=False)
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-7")
def test_retained_messages_outlive_the_session(clients: Clients, topic: str) -> None:
    for clean in (True, False):
        publisher = clients.connect(f"{topic}p", clean=clean)
        publisher.publish(f"{topic}/{clean}", b"kept", 1, retain=True)
        publisher.disconnect()
    clients.connect(f"{topic}p", clean=True).disconnect()
    watcher = clients.subscribed(f"{topic}/+", 1)
    names = {watcher.expect_a(Publish).topic for _ in range(2)}
    assert names == {f"{topic}/True", f"{topic}/False"}
    for name in names:
        clients.connect().publish(name, b"", retain=True)


@pytest.mark.mqtt("MQTT-3.1.4-2", "MQTT-3.1.2-4", "MQTT-3.3.1-1")
def test_takeover_keeps_the_session(clients: Clients, topic: str) -> None:
    first = clients.connect(topic, clean=False)
    first.subscribe((topic, 2))
    publisher = clients.connect()
    publisher.publish(topic, b"in flight", 1)
    message = first.expect_publish(topic, b"in flight", 1)
    second = resume(clients, topic)
    first.expect_closed()
    second.expect(Publish(topic, b"in flight", 1, message.packet_id, dup=True))
    second.acknowledge(message)
    publisher.publish(topic, b"next", 2)
    second.acknowledge(second.expect_publish(topic, b"next", 2))


@pytest.mark.mqtt("MQTT-3.1.3-2")
def test_sessions_of_different_clients_do_not_mix(clients: Clients, topic: str) -> None:
    offline_session(clients, f"{topic}A", (f"{topic}/A", 1))
    offline_session(clients, f"{topic}a", (f"{topic}/a", 1))
    publisher = clients.connect()
    publisher.publish(f"{topic}/A", b"upper", 1)
    publisher.publish(f"{topic}/a", b"lower", 1)
    upper, lower = resume(clients, f"{topic}A"), resume(clients, f"{topic}a")
    upper.expect_publish(f"{topic}/A", b"upper", 1)
    upper.expect_nothing(0.1)
    lower.expect_publish(f"{topic}/a", b"lower", 1)
    lower.expect_nothing(0.1)


# ------------------------------------------------------------------ re-delivery


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-4.6.0-1", "MQTT-3.3.1-1", "MQTT-2.3.1-4")
@pytest.mark.parametrize("ending", ["disconnect", "reset"])
def test_unacknowledged_messages_are_sent_again_in_order(
    clients: Clients, topic: str, ending: str
) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 2))
    publisher = clients.connect()
    for number in range(12):
        publisher.publish(topic, b"%d" % number, 1 + number % 2)
    sent = [client.expect_a(Publish) for _ in range(12)]
    getattr(client, ending)()
    for _ in range(2):
        client = resume(clients, topic)
        for message in sent:
            client.expect(Publish(*_fields(message), dup=True))
        client.expect_nothing(0.1)
        client.reset()


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-4.6.0-1", "MQTT-4.3.3-1")
def test_publish_and_pubrel_are_sent_again_each_in_its_order(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 2))
    publisher = clients.connect()
    for number in range(6):
        publisher.publish(topic, b"%d" % number, 2)
    sent = [client.expect_a(Publish) for _ in range(6)]
    released = [sent[0], sent[2], sent[3]]
    for message in released:
        assert message.packet_id is not None
        client.send(p.pubrec(message.packet_id))
        client.expect(Pubrel(message.packet_id))
    client.reset()
    client = resume(clients, topic)
    again = [client.receive() for _ in range(6)]
    assert [m for m in again if isinstance(m, Publish)] == [
        Publish(*_fields(message), dup=True) for message in (sent[1], sent[4], sent[5])
    ]
    assert [m for m in again if isinstance(m, Pubrel)] == [
        Pubrel(message.packet_id or 0) for message in released
    ]
    for message in released:
        client.send(p.pubcomp(message.packet_id or 0))
    for message in (sent[1], sent[4], sent[5]):
        client.acknowledge(message)
    client.reset()
    resume(clients, topic).expect_nothing()


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-4.6.0-1", "MQTT-4.6.0-6")
def test_queued_messages_follow_those_sent_again(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1))
    publisher = clients.connect()
    for number in range(3):
        publisher.publish(topic, b"%d" % number, 1)
    sent = [client.expect_a(Publish) for _ in range(3)]
    client.reset()
    resume(clients, topic).disconnect()
    for number in range(3, 8):
        publisher.publish(topic, b"%d" % number, 1)
    client = resume(clients, topic)
    for message in sent:
        client.expect(Publish(*_fields(message), dup=True))
    queued = [client.expect_publish(topic, b"%d" % number, 1) for number in range(3, 8)]
    assert len({m.packet_id for m in [*sent, *queued]}) == 8


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-2.3.1-4")
def test_acknowledged_messages_are_not_sent_again(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 2))
    publisher = clients.connect()
    for qos in (1, 2, 1, 2):
        publisher.publish(topic, b"done", qos)
    received = [client.expect_a(Publish) for _ in range(4)]
    for message in received:
        client.acknowledge(message)
    client.expect_alive()
    client.reset()
    resume(clients, topic).expect_nothing()


@pytest.mark.mqtt("MQTT-2.3.1-4", "MQTT-4.3.2-1")
def test_identifiers_of_a_resumed_session_stay_in_use(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1))
    publisher = clients.connect()
    publisher.publish(topic, b"kept", 1)
    kept = client.expect_publish(topic, b"kept", 1)
    client.reset()
    client = resume(clients, topic)
    client.expect(Publish(*_fields(kept), dup=True))
    for number in range(20):
        publisher.publish(topic, b"%d" % number, 1)
        message = client.expect_publish(topic, b"%d" % number, 1)
        assert message.packet_id != kept.packet_id
        client.acknowledge(message)


@pytest.mark.mqtt("MQTT-3.3.1-1", "MQTT-3.3.1-2")
def test_qos_0_is_never_sent_again(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 0))
    clients.connect().publish(topic, b"x", 2)
    client.expect_publish(topic, b"x", 0)
    client.reset()
    resume(clients, topic).expect_nothing()


# ------------------------------------------------------------------------ order


@pytest.mark.mqtt("MQTT-4.6.0-5", "MQTT-4.6.0-6", "MQTT-4.6.0-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_the_order_of_their_publisher(
    clients: Clients, topic: str, qos: int
) -> None:
    subscriber = clients.subscribed(f"{topic}/#", qos)
    publishers = [clients.connect() for _ in range(3)]
    for number in range(60):
        name = f"{topic}/{number % 2}"
        for index, publisher in enumerate(publishers):
            packet_id = number + 1 if qos else None
            publisher.send(p.publish(name, b"%d:%d" % (index, number), qos, packet_id))
            if qos == 2:
                publisher.send(p.pubrel(number + 1))
    seen: dict[tuple[bytes, str], list[int]] = {}
    for _ in range(180):
        message = _next_publish(subscriber)
        index, number = message.payload.split(b":")
        seen.setdefault((index, message.topic), []).append(int(number))
    assert len(seen) == 6
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def _next_publish(subscriber: RawClient) -> Publish:
    """The next message, acknowledged; answers to earlier acknowledgements are played too."""
    while True:
        received = subscriber.receive()
        if isinstance(received, Pubrel):
            subscriber.send(p.pubcomp(received.packet_id))
            continue
        assert isinstance(received, Publish)
        if received.packet_id is not None:
            answer = p.puback if received.qos == 1 else p.pubrec
            subscriber.send(answer(received.packet_id))
        return received


@pytest.mark.mqtt("MQTT-4.6.0-6", "MQTT-3.1.2-5")
def test_stored_messages_arrive_in_order(clients: Clients, topic: str) -> None:
    offline_session(clients, topic, (topic, 1))
    publisher = clients.connect()
    for start in range(0, 90, 30):
        numbers = range(start, start + 30)
        publisher.send(*[p.publish(topic, b"%d" % n, 1, n + 1) for n in numbers])
        for number in numbers:
            publisher.expect(p.Puback(number + 1))
    client = resume(clients, topic)
    assert [int(_next_publish(client).payload) for _ in range(90)] == list(range(90))
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-4.6.0-6", "MQTT-4.3.2-1")
@pytest.mark.usefixtures("foldmq_only")
def test_more_messages_than_a_window_arrive_in_order(clients: Clients, topic: str) -> None:
    """Twice the default window is published before the subscriber acknowledges anything."""
    client = clients.subscribed(topic, 1)
    publisher = clients.connect()
    for start in range(0, 2100, 100):
        numbers = range(start, start + 100)
        publisher.send(*[p.publish(topic, b"%d" % n, 1, n + 1) for n in numbers])
        for number in numbers:
            publisher.expect(p.Puback(number + 1))
    assert [int(_next_publish(client).payload) for _ in range(2100)] == list(range(2100))
    client.expect_nothing()
