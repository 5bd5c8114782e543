"""Every promise to a client before the end of a broker holds after its restart.

Each test runs twice: the broker ended by SIGTERM, and by SIGKILL.
"""

from collections.abc import Callable, Iterator

import pytest
from harness import packets as p
from harness.broker import Broker
from harness.fixtures import Clients
from harness.packets import Connack, Pubcomp, Publish, Pubrec, Pubrel, Will
from harness.rawclient import RawClient


@pytest.fixture(params=["sigterm", "sigkill"])
def restart(request: pytest.FixtureRequest) -> Callable[[Broker], None]:
    def run(own: Broker) -> None:
        own.restart(kill=request.param == "sigkill")

    return run


@pytest.fixture
def own(make_broker: Callable[..., Broker]) -> Broker:
    made = make_broker()
    made.start()
    return made


@pytest.fixture
def here(own: Broker) -> Iterator[Clients]:
    """Clients of the test's own broker."""
    made = Clients("127.0.0.1", own.port)
    yield made
    made.close()


def resume(here: Clients, client_id: str) -> RawClient:
    return here.connect(client_id, clean=False, session_present=True)


def again(message: Publish) -> Publish:
    """The same message as it must be sent again."""
    return Publish(
        message.topic, message.payload, message.qos, message.packet_id, True, message.retain
    )


@pytest.mark.mqtt("MQTT-3.1.2-4", "MQTT-3.1.2-5", "MQTT-4.1.0-1")
def test_sessions_subscriptions_and_queues(
    own: Broker, here: Clients, restart: Callable[[Broker], None]
) -> None:
    absent = here.connect("absent", clean=False)
    absent.subscribe(("a/+", 2), ("b", 1), ("gone", 1))
    absent.unsubscribe("gone")
    absent.disconnect()
    publisher = here.connect()
    for number in range(50):
        publisher.publish("a/x", b"%d" % number, 1 + number % 2)
    publisher.publish("gone", b"never", 1)
    restart(own)
    publisher = here.connect()
    publisher.publish("b", b"after", 1)
    absent = resume(here, "absent")
    for number in range(50):
        message = absent.expect_publish("a/x", b"%d" % number, 1 + number % 2)
        absent.send((p.puback if message.qos == 1 else p.pubrec)(message.packet_id or 0))
        if message.qos == 2:
            _pubrel_somewhere(absent, message.packet_id or 0)
    absent.acknowledge(absent.expect_publish("b", b"after", 1))
    absent.expect_nothing()


def _pubrel_somewhere(client: RawClient, packet_id: int) -> None:
    """Takes the PUBREL from among the next packets and completes it, keeping the others."""
    kept = []
    while (received := client.receive()) != Pubrel(packet_id):
        kept.append(received)
    client.send(p.pubcomp(packet_id))
    client.unread(kept)


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-4.6.0-1", "MQTT-2.3.1-4", "MQTT-3.3.1-1")
def test_messages_in_flight_keep_identifier_and_order(
    own: Broker, here: Clients, restart: Callable[[Broker], None]
) -> None:
    client = here.connect("inflight", clean=False)
    client.subscribe(("t", 2))
    publisher = here.connect()
    for number in range(9):
        publisher.publish("t", b"%d" % number, 1 + number % 2)
    sent = [client.expect_a(Publish) for _ in range(9)]
    client.acknowledge(sent[4])
    client.send(p.pubrec(sent[1].packet_id or 0))
    client.expect(Pubrel(sent[1].packet_id or 0))
    client.expect_alive()
    here.connect("barrier").publish("barrier", b"", 1)
    restart(own)
    here.connect().publish("t", b"late", 1)
    client = resume(here, "inflight")
    received = [client.receive() for _ in range(9)]
    assert [m for m in received if isinstance(m, Pubrel)] == [Pubrel(sent[1].packet_id or 0)]
    resent = [again(m) for index, m in enumerate(sent) if index not in (1, 4)]
    publishes = [m for m in received if isinstance(m, Publish)]
    assert publishes[:7] == resent
    assert (publishes[7].payload, publishes[7].dup) == (b"late", False)
    assert publishes[7].packet_id not in {m.packet_id for m in [*resent, sent[1]]}
    client.send(p.pubcomp(sent[1].packet_id or 0))
    for message in publishes:
        client.acknowledge(message)
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-2", "MQTT-4.1.0-1")
def test_received_qos_2_identifiers(
    own: Broker, here: Clients, restart: Callable[[Broker], None]
) -> None:
    subscriber = here.connect("sub", clean=False)
    subscriber.subscribe(("t", 2))
    publisher = here.connect("pub", clean=False)
    for packet_id in (1, 2):
        publisher.send(p.publish("t", b"%d" % packet_id, 2, packet_id))
        publisher.expect(Pubrec(packet_id))
    restart(own)
    publisher = resume(here, "pub")
    publisher.send(p.publish("t", b"1", 2, 1, dup=True))
    publisher.expect(Pubrec(1))
    for packet_id in (1, 2):
        publisher.send(p.pubrel(packet_id))
        publisher.expect(Pubcomp(packet_id))
    subscriber = resume(here, "sub")
    first, second = subscriber.expect_a(Publish), subscriber.expect_a(Publish)
    assert (first.payload, second.payload) == (b"1", b"2")
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-3.3.1-5", "MQTT-3.3.1-7", "MQTT-3.3.1-10", "MQTT-3.1.2-7")
def test_retained_messages(own: Broker, here: Clients, restart: Callable[[Broker], None]) -> None:
    publisher = here.connect()
    for qos in (0, 1, 2):
        publisher.publish(f"kept/{qos}", b"old", qos, retain=True)
        publisher.publish(f"kept/{qos}", b"new", qos, retain=True)
        publisher.publish(f"cleared/{qos}", b"old", qos, retain=True)
        publisher.publish(f"cleared/{qos}", b"", qos, retain=True)
    publisher.publish("fence", b"", 1)
    restart(own)
    subscriber = here.subscribed("#", 2)
    received = {}
    for _ in range(3):
        message = subscriber.expect_a(Publish)
        received[message.topic] = (message.payload, message.qos, message.retain)
        if message.qos == 1:
            subscriber.acknowledge(message)
    assert received == {f"kept/{qos}": (b"new", qos, True) for qos in (0, 1, 2)}
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-6", "MQTT-3.2.2-3")
def test_clean_sessions_are_gone(
    own: Broker, here: Clients, restart: Callable[[Broker], None]
) -> None:
    client = here.connect("clean", clean=True)
    client.subscribe(("t", 1))
    discarded = here.connect("discarded", clean=False)
    discarded.subscribe(("t", 1))
    discarded.disconnect()
    here.connect("discarded", clean=True).disconnect()
    restart(own)
    here.connect().publish("t", b"x", 1)
    for name in ("clean", "discarded"):
        again_ = here.raw()
        assert again_.connect(name, clean=False) == Connack(0, session_present=False)
        again_.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-8")
@pytest.mark.parametrize("kill", [True, False], ids=["sigkill", "sigterm"])
def test_wills_of_clients_that_were_connected(own: Broker, here: Clients, *, kill: bool) -> None:
    """The connections ended without DISCONNECT, so the wills are due; each is sent once."""
    watcher = here.connect("watcher", clean=False)
    watcher.subscribe(("will/#", 1))
    watcher.disconnect()
    here.connect("mortal", will=Will("will/sent", b"gone", 1))
    here.connect("kept", clean=False, will=Will("will/kept", b"gone", 1, retain=True))
    here.connect("polite", will=Will("will/never", b"gone", 1)).disconnect()
    own.restart(kill=kill)
    own.restart(kill=kill)
    watcher = resume(here, "watcher")
    topics = []
    for _ in range(2):
        message = watcher.expect_a(Publish)
        watcher.acknowledge(message)
        topics.append(message.topic)
    assert sorted(topics) == ["will/kept", "will/sent"]
    watcher.expect_nothing()
    here.subscribed("will/#", 1).expect_publish("will/kept", b"gone", 1, retain=True)


def test_many_restarts_one_after_another(own: Broker, here: Clients) -> None:
    client = here.connect("client", clean=False)
    client.subscribe(("t", 1))
    client.disconnect()
    for number in range(4):
        publisher = here.connect("publisher", clean=False, session_present=number > 0)
        publisher.publish("t", b"%d" % number, 1)
        own.restart(kill=bool(number % 2))
    client = resume(here, "client")
    for number in range(4):
        client.acknowledge(client.expect_publish("t", b"%d" % number, 1))
    client.expect_nothing()
