"""Section 4.7: topic names and topic filters."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Publish, Suback

# Filter and topic name, both below a level of the test's own.


@pytest.mark.mqtt("MQTT-4.7.1-2", "MQTT-3.3.2-3")
@pytest.mark.parametrize("name", ["{0}", "/{0}", "{0}/", "{0}//a", "{0}/a b.c"])
def test_lone_wildcard_matches_every_ordinary_topic(
    clients: Clients, topic: str, name: str
) -> None:
    subscriber = clients.subscribed("#", 0)
    clients.connect().publish(name.format(topic), topic.encode())
    while True:
        received = subscriber.expect_a(Publish)
        if received.payload == topic.encode():
            break
    assert received.topic == name.format(topic)


@pytest.mark.mqtt("MQTT-4.7.1-3", "MQTT-3.8.3-2")
@pytest.mark.parametrize(
    ("topic_filter", "name", "matches"),
    [
        ("+", "{0}", True),
        ("+/{0}", "/{0}", True),
        ("+/{0}", "a/{0}", True),
        ("+/{0}/+", "a/{0}/", True),
        ("/+", "/{0}", True),
        ("+", "/{0}", False),
        ("+/+", "{0}", False),
    ],
)
def test_single_level_wildcard_at_the_first_level(
    clients: Clients, topic: str, topic_filter: str, name: str, *, matches: bool
) -> None:
    subscriber = clients.connect()
    subscriber.subscribe((topic_filter.format(topic), 0), (f"end/a/{topic}", 0))
    publisher = clients.connect()
    publisher.publish(name.format(topic), topic.encode(), 1)
    publisher.publish(f"end/a/{topic}", b"end", 1)
    received = []
    while not received or received[-1].payload != b"end":
        received.append(subscriber.expect_a(Publish))
    assert any(m.payload == topic.encode() for m in received) is matches


@pytest.mark.mqtt("MQTT-4.7.2-1")
@pytest.mark.parametrize("topic_filter", ["#", "+/{0}", "+/#", "+/+", "+/{0}/#"])
def test_leading_wildcard_does_not_match_dollar_topics(
    clients: Clients, topic: str, topic_filter: str
) -> None:
    subscriber = clients.connect()
    subscriber.subscribe((topic_filter.format(topic), 0), (f"$app/{topic}/end", 0))
    publisher = clients.connect()
    publisher.publish(f"$app/{topic}", topic.encode(), 1)
    publisher.publish(f"$app/{topic}/end", b"end", 1)
    received = []
    while not received or received[-1].payload != b"end":
        received.append(subscriber.expect_a(Publish))
    assert not [m for m in received if m.topic == f"$app/{topic}"]


@pytest.mark.mqtt("MQTT-4.7.2-1")
@pytest.mark.parametrize("topic_filter", ["$app/{0}", "$app/+", "$app/#"])
def test_dollar_topics_match_filters_that_name_them(
    clients: Clients, topic: str, topic_filter: str
) -> None:
    subscriber = clients.subscribed(topic_filter.format(topic), 0)
    clients.connect().publish(f"$app/{topic}", topic.encode(), 1)
    while subscriber.expect_a(Publish).payload != topic.encode():
        pass


@pytest.mark.mqtt("MQTT-4.7.2-1", "MQTT-3.3.1-6")
def test_leading_wildcard_gets_no_retained_dollar_message(clients: Clients, topic: str) -> None:
    publisher = clients.connect()
    publisher.publish(f"$app/{topic}", b"kept", 1, retain=True)
    assert not [
        m
        for m in clients.subscribed(f"+/{topic}", 1).receive_all()
        if isinstance(m, Publish) and m.payload == b"kept"
    ]
    clients.subscribed(f"$app/{topic}", 1).expect_publish(f"$app/{topic}", b"kept", 1, retain=True)
    publisher.publish(f"$app/{topic}", b"", retain=True)


@pytest.mark.mqtt("MQTT-4.7.3-1")
@pytest.mark.parametrize("name", ["/", "//", " ", "{0} /", "/ /{0}"])
def test_topics_of_separators_and_spaces_are_topics(
    clients: Clients, topic: str, name: str
) -> None:
    name = name.format(topic)
    subscriber = clients.subscribed(name, 1)
    clients.connect().publish(name, topic.encode(), 1)
    while subscriber.expect_a(Publish).payload != topic.encode():
        pass


@pytest.mark.mqtt("MQTT-4.7.3-3")
@pytest.mark.usefixtures("foldmq_only")
@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f600"], ids=["1", "2", "4"])
def test_topic_of_65535_bytes(clients: Clients, topic: str, character: str) -> None:
    width = len(character.encode())
    count, rest = divmod(65_535 - len(topic), width)
    name = topic + "y" * rest + character * count
    assert len(name.encode()) == 65_535
    subscriber = clients.connect()
    subscriber.send(p.subscribe(1, (name, 1)))
    subscriber.expect(Suback(1, (1,)))
    publisher = clients.connect()
    publisher.publish(name, b"long", 1, packet_id=1)
    subscriber.expect_publish(name, b"long", 1)


@pytest.mark.mqtt("MQTT-4.7.3-3", "MQTT-4.7.1-3")
@pytest.mark.usefixtures("foldmq_only")
def test_topic_of_thousands_of_levels(clients: Clients, topic: str) -> None:
    """Depth costs no more than length: nothing recurses, nothing is quadratic."""
    name = topic + "/" * (65_535 - len(topic))
    exact, single = clients.subscribed(name, 1), clients.connect()
    assert single.subscribe((topic + "/+" * 30_000 + "/#", 1)) == (1,)
    clients.connect().publish(name, b"deep", 1, retain=True)
    exact.expect_publish(name, b"deep", 1)
    single.expect_publish(name, b"deep", 1)
    clients.subscribed(f"{topic}/#", 1).expect_publish(name, b"deep", 1, retain=True)
    clients.connect().publish(name, b"", 1, retain=True)


@pytest.mark.mqtt("MQTT-4.7.3-4")
def test_names_that_differ_in_case_or_form_are_different(clients: Clients, topic: str) -> None:
    subscriber = clients.connect()
    names = [f"{topic}/a", f"{topic}/A", f"{topic}/\u00e9", f"{topic}/e\u0301", f"{topic}/a "]
    subscriber.subscribe(*[(name, 1) for name in names])
    publisher = clients.connect()
    for name in names:
        publisher.publish(name, name.encode(), 1)
        subscriber.expect_publish(name, name.encode(), 1)
