"""Replays: subscriptions to the past that go on with new messages, ``$replay/FROM/FILTER``."""

import json
import time

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_packets import Answer, Publish
from harness.mqtt5_rawclient import Clients5, OwnBroker, RawClient5
from harness.packets import Pingresp, pingreq

pytestmark = pytest.mark.usefixtures("foldmq_only")

KEEP = ((p.SESSION_EXPIRY, 100),)
_QUIET = 3.0
"""Seconds within which a replay must have sent what there is."""


def position(message: Publish) -> str:
    """The first property with this name: what follows is the publisher's."""
    return next(value for name, value in user(message) if name == "foldmq-position")


def user(message: Publish) -> list[tuple[str, str]]:
    return [value for value in message.user if isinstance(value, tuple)]


def receive(client: RawClient5, count: int) -> list[Publish]:
    """The next messages, each acknowledged to its end."""
    found: list[Publish] = []
    while len(found) < count:
        found.append(message_of(client))
    for message in found:
        client.acknowledge(message)
    return found


def message_of(client: RawClient5) -> Publish:
    """The next packet, which must be a message; it is not acknowledged."""
    message: object = client.receive()
    assert isinstance(message, Publish), message
    return message


def payloads(messages: list[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


def silent(client: RawClient5) -> None:
    """Nothing more must come."""
    time.sleep(0.2)
    client.send(pingreq())
    assert isinstance(found := client.receive(), Pingresp), found


def publish(clients: Clients5, topic: str, count: int, qos: int = 1, begin: int = 0) -> list[bytes]:
    sent = [b"%d" % number for number in range(begin, begin + count)]
    sender = clients.five()
    for payload in sent:
        sender.publish(topic, payload, qos)
    sender.leave(0)
    return sent


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("published", [1, 2])
def test_the_past_then_live(clients: Clients5, topic: str, qos: int, published: int) -> None:
    sent = publish(clients, topic, 5, published)
    client = clients.five()
    assert client.subscribe((f"$replay/all/{topic}", qos)) == (qos,)
    found = receive(client, 5)
    assert payloads(found) == sent
    assert [message.qos for message in found] == [min(qos, published)] * 5
    more = publish(clients, topic, 3, published, begin=5)
    live = receive(client, 3)
    assert payloads(live) == more
    positions = [tuple(map(int, position(message).split("."))) for message in found + live]
    assert positions == sorted(set(positions))
    assert not any(message.retain for message in found + live)
    silent(client)


def test_resuming_at_a_position(clients: Clients5, topic: str) -> None:
    publish(clients, topic, 6)
    client = clients.five()
    client.subscribe((f"$replay/all/{topic}", 1))
    found = receive(client, 6)
    other = clients.five()
    assert other.subscribe((f"$replay/{position(found[2])}/{topic}", 1)) == (1,)
    assert payloads(receive(other, 3)) == [b"3", b"4", b"5"]
    silent(other)


@pytest.mark.parametrize("start", ["0", "0.0"])
def test_before_the_first_position_is_no_gap(clients: Clients5, topic: str, start: str) -> None:
    sent = publish(clients, topic, 2)
    client = clients.five()
    assert client.subscribe((f"$replay/{start}/{topic}", 1)) == (1,)
    found = receive(client, 2)
    assert payloads(found) == sent
    assert "foldmq-gap" not in {name for message in found for name, _ in user(message)}


@pytest.mark.parametrize("start", ["1h", "@1", "2020-01-01T00:00Z"])
def test_beginnings_by_time(clients: Clients5, topic: str, start: str) -> None:
    sent = publish(clients, topic, 2)
    client = clients.five()
    assert client.subscribe((f"$replay/{start}/{topic}", 0)) == (0,)
    assert payloads(receive(client, 2)) == sent


def test_new_has_nothing_of_the_past(clients: Clients5, topic: str) -> None:
    publish(clients, topic, 2)
    client = clients.five()
    assert client.subscribe((f"$replay/new/{topic}", 1)) == (1,)
    more = publish(clients, topic, 2, begin=2)
    assert payloads(receive(client, 2)) == more
    silent(client)


def test_a_bounded_replay_ends(clients: Clients5, topic: str) -> None:
    publish(clients, topic, 4)
    client = clients.five()
    client.subscribe((f"$replay/all/{topic}", 0))
    found = receive(client, 4)
    other = clients.five()
    assert other.subscribe(("$replay/state", 0)) == (0,)
    bounded = f"$replay/{position(found[0])}..{position(found[2])}/{topic}"
    assert other.subscribe((bounded, 1)) == (1,)
    assert payloads(receive(other, 2)) == [b"1", b"2"]
    notice = message_of(other)
    assert notice.topic == "$replay/state"
    assert json.loads(notice.payload) == {
        "filter": bounded, "state": "ended", "through": position(found[2]), "messages": 2,
    }  # fmt: skip
    publish(clients, topic, 1)
    silent(other)
    assert other.unsubscribe(bounded) == (0,)


@pytest.mark.parametrize(
    "bad",
    [
        "$replay/{}", "$replay//{}", "$replay/yesterday/{}", "$replay/5..4/{}",
        "$replay/all/$share/g/{}",
        "$replay/99999999/{}", "$replay/all/$replay/all/{}", "$replay/2h..3h/{}",
        "$share/g/$replay/all/{}", "$replay/p0:3/{}", "$replay/9999999999.0/{}", "$stream/x",
        "$replay/2999-01-01T00:00Z/{}",
    ],
)  # fmt: skip
def test_malformed_filters_are_refused(clients: Clients5, topic: str, bad: str) -> None:
    client = clients.five()
    assert client.subscribe((bad.format(topic), 1)) == (0x8F,)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("$replay/yesterday/{}", "not a moment: yesterday"),
        ("$replay/5..4/{}", "the replay ends before it begins"),
        ("$replay/99999999/{}", "the position is beyond the end of the log"),
        ("$stream/x", "no such stream is declared"),
    ],
)
def test_a_refusal_says_which_part_is_wrong(
    clients: Clients5, topic: str, bad: str, reason: str
) -> None:
    client = clients.five()
    client.send(p.subscribe(7, (bad.format(topic), 1)))
    found = client.receive()
    assert isinstance(found, Answer)
    assert found.codes == (0x8F,)
    shown = str(dict(found.properties)[p.REASON_STRING])
    assert shown.startswith(reason)
    assert shown.endswith(f": {bad.format(topic)}")


def test_clients_publish_nothing_below_replay(clients: Clients5, topic: str) -> None:
    client = clients.five()
    client.subscribe(("$replay/state", 0))
    sender = clients.five()
    sender.publish("$replay/state", b"forged")
    sender.publish("$replay/state", b"forged", 0, retain=True)
    silent(client)


def test_the_second_subscribe_continues(clients: Clients5, topic: str) -> None:
    publish(clients, topic, 3)
    client = clients.five()
    whole = f"$replay/all/{topic}"
    client.subscribe((whole, 1))
    receive(client, 3)
    assert client.subscribe((whole, 1)) == (1,)
    silent(client)
    assert client.unsubscribe(whole) == (0,)
    assert client.unsubscribe(whole) == (0x11,)
    client.subscribe((whole, 1))
    assert payloads(receive(client, 3)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_offline_session_resumes(clients: Clients5, topic: str, qos: int) -> None:
    publish(clients, topic, 2, 2)
    client = clients.five(properties=KEEP)
    client.subscribe((f"$replay/all/{topic}", qos))
    assert payloads(receive(client, 2)) == [b"0", b"1"]
    name = client.client_id
    silent(client)
    client.close()
    publish(clients, topic, 3, 2, begin=2)
    again = clients.five(name, clean=False, properties=KEEP, session_present=True)
    assert payloads(receive(again, 3)) == [b"2", b"3", b"4"]
    silent(again)


def test_what_was_in_flight_comes_again_with_its_position(clients: Clients5, topic: str) -> None:
    publish(clients, topic, 1)
    client = clients.five(properties=KEEP)
    client.subscribe((f"$replay/all/{topic}", 1), properties=((p.SUBSCRIPTION_IDENTIFIER, 7),))
    first = message_of(client)
    name = client.client_id
    client.close()
    again = clients.five(name, clean=False, properties=KEEP, session_present=True)
    second = message_of(again)
    assert (second.dup, second.packet_id, second.payload) == (True, first.packet_id, b"0")
    assert position(second) == position(first)
    assert second.get(p.SUBSCRIPTION_IDENTIFIER) == first.get(p.SUBSCRIPTION_IDENTIFIER) == 7
    again.acknowledge(second)
    silent(again)


@pytest.mark.mqtt5("MQTT-3.3.4-9")
def test_receive_maximum(clients: Clients5, topic: str) -> None:
    sent = publish(clients, topic, 5)
    client = clients.five(properties=((p.RECEIVE_MAXIMUM, 1),))
    client.subscribe((f"$replay/all/{topic}", 1))
    for payload in sent:
        message = message_of(client)
        assert message.payload == payload
        silent(client)
        client.acknowledge(message)
    silent(client)


def test_another_subscription_goes_on_beside_a_full_replay(clients: Clients5, topic: str) -> None:
    publish(clients, f"{topic}/a", 20)
    client = clients.five(properties=((p.RECEIVE_MAXIMUM, 8),))
    client.subscribe((f"{topic}/b", 1))
    client.subscribe((f"$replay/all/{topic}/a", 1))
    unacknowledged = [message_of(client) for _ in range(6)]
    silent(client)
    publish(clients, f"{topic}/b", 1)
    message = message_of(client)
    assert message.topic == f"{topic}/b"
    assert len(unacknowledged) == 6


@pytest.mark.mqtt5("MQTT-3.8.3-3")
def test_no_local(clients: Clients5, topic: str) -> None:
    client = clients.five()
    client.publish(topic, b"own", 1)
    publish(clients, topic, 1)
    client.subscribe((f"$replay/all/{topic}", 1 | 4))
    assert payloads(receive(client, 1)) == [b"0"]
    silent(client)


def test_retain_as_published(clients: Clients5, topic: str) -> None:
    clients.five().publish(topic, b"x", 1, retain=True)
    plain, published = clients.five(), clients.five()
    plain.subscribe((f"$replay/all/{topic}", 1))
    published.subscribe((f"$replay/all/{topic}", 1 | 8))
    assert [message.retain for message in receive(plain, 1)] == [False]
    assert [message.retain for message in receive(published, 1)] == [True]
    silent(plain)


@pytest.mark.mqtt5("MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_expiry(clients: Clients5, topic: str) -> None:
    sender = clients.five()
    sender.publish(topic, b"short", 1, properties=((p.MESSAGE_EXPIRY, 1),))
    sender.publish(topic, b"long", 1, properties=((p.MESSAGE_EXPIRY, 1000),))
    time.sleep(2.1)
    client = clients.five()
    client.subscribe((f"$replay/all/{topic}", 1))
    (message,) = receive(client, 1)
    assert message.payload == b"long"
    left = message.get(p.MESSAGE_EXPIRY)
    assert isinstance(left, int)
    assert 900 < left <= 998


def test_properties_of_the_publisher_follow(clients: Clients5, topic: str) -> None:
    forged = ((p.USER_PROPERTY, ("foldmq-position", "1.0")), (p.CONTENT_TYPE, "text"))
    clients.five().publish(topic, b"x", 1, properties=forged)
    client = clients.five()
    client.subscribe((f"$replay/all/{topic}", 1))
    (message,) = receive(client, 1)
    names = [name for name, _ in user(message)]
    assert names == ["foldmq-position", "foldmq-time", "foldmq-position"]
    assert position(message) != "1.0"
    assert message.get(p.CONTENT_TYPE) == "text"


@pytest.mark.mqtt5("MQTT-3.1.2-24")
def test_packet_limit(clients: Clients5, topic: str) -> None:
    sender = clients.five()
    sender.publish(topic, b"x" * 1000, 1)
    sender.publish(topic, b"y" * 100, 1)
    sender.publish(topic, b"z", 1)
    client = clients.five(properties=((p.MAXIMUM_PACKET_SIZE, 150),))
    client.subscribe((f"$replay/all/{topic}", 1))
    small, smaller = receive(client, 2)
    assert (small.payload, user(small)) == (b"y" * 100, [])
    assert smaller.payload == b"z"
    assert position(smaller)
    silent(client)


def test_wildcards_and_other_topics(clients: Clients5, topic: str) -> None:
    publish(clients, f"{topic}/a/b", 2)
    publish(clients, f"{topic}/a", 1)
    publish(clients, f"{topic}other", 1)
    client = clients.five()
    client.subscribe((f"$replay/all/{topic}/+/b", 1))
    assert payloads(receive(client, 2)) == [b"0", b"1"]
    silent(client)


def test_the_last_message_of_each_topic(clients: Clients5, topic: str) -> None:
    """Also one that was not retained, and one whose retained message was cleared."""
    for name in "abc":
        publish(clients, f"{topic}/{name}", 3)
    clients.five().publish(f"{topic}/b", b"", 1, retain=True)
    publish(clients, f"{topic}/a", 1, begin=9)
    client = clients.five(properties=((p.RECEIVE_MAXIMUM, 1),))
    assert client.subscribe((f"$replay/last/{topic}/#", 1)) == (1,)
    found = [receive(client, 1)[0] for _ in range(3)]
    assert [(one.topic[-1], one.payload) for one in found] == [("c", b"2"), ("b", b""), ("a", b"9")]
    publish(clients, f"{topic}/c", 2, begin=3)
    assert payloads(receive(client, 1) + receive(client, 1)) == [b"3", b"4"]
    silent(client)


def test_streams(clients: Clients5, topic: str) -> None:
    publish(clients, topic, 2)
    client, other = clients.five(), clients.five()
    earliest = ((p.USER_PROPERTY, ("stream-offset", "earliest")),)
    assert client.subscribe((f"$stream/any/{topic}", 1), properties=earliest) == (1,)
    found = receive(client, 2)
    assert payloads(found) == [b"0", b"1"]
    assert other.subscribe((f"$stream/any/{topic}", 1)) == (1,)
    silent(other)
    again = ((p.USER_PROPERTY, ("stream-offset", dict(user(found[1]))["ts"])),)
    third = clients.five()
    third.subscribe((f"$stream/any/{topic}", 1), properties=again)
    assert receive(third, 1)[0].payload in (b"0", b"1")  # both may be of one millisecond


def test_a_declared_stream(own: OwnBroker, tmp_path: object) -> None:
    rules = f"{tmp_path}/rules.toml"
    with open(rules, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path as text
        file.write('[[allow]]\nboth = ["a/#", "b/#"]\nhistory = ["a/#"]\n')
    config = f'permissions = "{rules}"\n[streams]\nalarms = "a/+/alarm"\nothers = "b/#"\n'
    broker, clients = own(config)
    for number, name in enumerate(("a/1/alarm", "a/1/state", "b/2/alarm", "a/3/alarm")):
        clients.five().publish(name, b"%d" % number, 1)
    client = clients.five(properties=KEEP)
    earliest = ((p.USER_PROPERTY, ("stream-offset", "earliest")),)
    filters = [("$stream/alarms", 1), ("$stream/others", 1), ("$stream/none", 1)]
    assert client.subscribe(*filters, properties=earliest) == (1, 0x87, 0x8F)
    assert payloads(receive(client, 2)) == [b"0", b"3"]
    broker.restart(kill=True)
    clients.five().publish("a/4/alarm", b"4", 1)
    again = clients.five(client.client_id, clean=False, properties=KEEP, session_present=True)
    until_live = [receive(again, 1)[0].payload]
    while until_live[-1] != b"4":
        until_live.append(receive(again, 1)[0].payload)
    assert set(until_live) <= {b"0", b"3", b"4"}


def test_limits(own: OwnBroker) -> None:
    _, clients = own("max_replays = 3\nmax_replays_per_client = 2")
    client = clients.five()
    filters = [(f"$replay/all/{name}", 1) for name in "abc"]
    assert client.subscribe(*filters) == (1, 1, 0x97)
    assert clients.five().subscribe(*filters) == (1, 0x97, 0x97)
    assert client.unsubscribe("$replay/all/a") == (0,)
    assert client.subscribe(("$replay/all/c", 1)) == (1,)


def test_permissions(own: OwnBroker, tmp_path: object) -> None:
    rules = f"{tmp_path}/rules.toml"
    with open(rules, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path as text
        file.write('[[allow]]\nboth = ["a/#", "b/#"]\nhistory = ["a/#"]\n')
        file.write('[[deny]]\nhistory = ["a/secret"]\n')
    _, clients = own(f'permissions = "{rules}"')
    client = clients.five()
    assert client.subscribe(("$replay/all/b/#", 1), ("$replay/all/#", 1)) == (0x87, 0x87)
    assert client.subscribe(("$replay/all/a/secret", 1)) == (0x87,)
    sender = clients.five()
    sender.publish("a/secret", b"no", 1)
    sender.publish("a/open", b"yes", 1)
    assert client.subscribe(("$replay/all/a/#", 1)) == (1,)
    assert payloads(receive(client, 1)) == [b"yes"]
    silent(client)


def test_after_a_restart(own: OwnBroker) -> None:
    broker, clients = own()
    publish(clients, "a", 3, 2)
    client = clients.five(properties=KEEP)
    client.subscribe(("$replay/all/#", 2))
    assert payloads(receive(client, 3)) == [b"0", b"1", b"2"]
    time.sleep(1.5)  # then the acknowledgements are on disk, too
    broker.kill()
    broker.start()
    publish(clients, "a", 2, begin=3)
    again = clients.five(client.client_id, clean=False, properties=KEEP, session_present=True)
    assert payloads(receive(again, 2)) == [b"3", b"4"]
    silent(again)


def test_answers(clients: Clients5, topic: str) -> None:
    """SUBACK comes before the messages, whatever the size of the past."""
    publish(clients, topic, 1)
    client = clients.five()
    client.send(p.subscribe(1, (f"$replay/all/{topic}", 0)))
    assert isinstance(client.receive(), Answer)
    assert isinstance(client.receive(), Publish)
