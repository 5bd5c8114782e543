"""The publisher: the receivers of a batch's messages, and their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.kernel.actor import LoopActor
from actors.kernel.kernel import Kernel
from actors.kernel.turn_work import TurnWork
from actors.limits.broker_options import BrokerOptions
from actors.node.activation import Activation
from actors.routing import routes
from actors.routing.router import Router
from actors.routing.subscriber import Subscriber
from actors.session.decisions.publish_admission import PublishRules, admit, refused_topic
from actors.session.outside_publisher import BirthCertificates, OutsidePublisher
from actors.session.session_messages import Batch, DeniedMessages, Outgoing, Publication
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import MessageDropped, MessagePublished
from eventstore.format.positions import Position, from_runs, position
from eventstore.log.message_store import Message, MessageStore
from projections.state.session import SessionState, evolve
from protocol.mqtt.packets import Publishes

pytestmark = pytest.mark.plain


class Box(LoopActor):
    """Stands in for sessions and subscriptions."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def on_receive(self, message: Any) -> None:
        self.told.append(message)


class FakeNode:
    """What a publisher needs of its node and of its own session."""

    def __init__(self, max_record: int = 1 << 20) -> None:
        self.kernel = Kernel(lambda _turn: None)
        self.failed: list[Exception] = []
        self.kernel.turn_slice = 3600.0  # no turn is cut, however slow the machine is
        self.turn_work = TurnWork(self.failed.append)
        self.kernel.spawn(self.turn_work)
        self.options = BrokerOptions(node="n", max_record=max_record)
        self.router = Router()
        self.messages = MessageStore(1 << 20)
        self.dropped: Counter[str] = Counter()
        self.observers: list[Any] = []
        self.topic_observers = [BirthCertificates(cast("Any", self))]
        self.router.observes = self.topic_observers[0].observes
        self.exchange = None
        self.publish_rules = PublishRules()
        self.router.refuses = lambda raw: bool(refused_topic(raw, self.publish_rules))
        self.directory = self
        self.activation = Activation(self.session, self.router.clock)
        self.boxes: dict[str, Box] = {}
        self.frozen: dict[str, tuple[str, int]] = {}
        self.state = SessionState("p")
        self.events: list[tuple[Event, Position, Sequence[bytes]]] = []
        self._next = position(1, 0)
        self.connection = None
        self.most = 1 << 30
        self.journal = SimpleNamespace(has_room=lambda size, *_texts: size <= self.most)
        self.retained_pace = SimpleNamespace(recorded_now=lambda _publisher, parts: parts)

    def session(self, name: str) -> Box:
        if name in self.frozen:
            self.router.subscribe(name, *self.frozen.pop(name))
        if name not in self.boxes:
            self.boxes[name] = Box()
            self.kernel.spawn(self.boxes[name])
        return self.boxes[name]

    def emit(self, event: Event, payloads: Sequence[bytes] = (), size: int = 0) -> Position:
        assert size == sum(map(len, payloads))
        at, self._next = self._next, self._next + entries(event)
        evolve(self.state, event, at, 0)
        self.events.append((event, at, payloads))
        return at

    def is_ready(self, topic: bytes) -> bool:
        return all(observer.is_ready(topic) for observer in self.topic_observers)

    def notify_observers(self, publication: Publication) -> None:
        for observer in self.observers:
            observer.published(publication)

    def count_dropped(self, reason: str, count: int, **_whose: str | None) -> None:
        self.dropped[reason] += count

    def freeze(self, session: str, topic_filter: str, qos: int) -> None:
        self.frozen[session] = topic_filter, qos
        self.router.freeze(session, [topic_filter])

    def subscribe(self, session: str, topic_filter: str, qos: int, *, online: bool = True) -> Box:
        subscriber = self.router.subscribe(session, topic_filter, qos)
        if not online:
            return self.session(session)
        box = Box()
        self.kernel.spawn(box)
        subscriber.actor = cast("Any", box)
        return box


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


def publisher(node: FakeNode) -> OutsidePublisher:
    return OutsidePublisher(cast("Any", node), "p")


def packet(
    qos: int, *messages: tuple[str, bytes], pids: Sequence[int] = (), retain: bool = False
) -> Publishes:
    made = Publishes(qos, retain=retain)
    made.topics += [topic.encode() for topic, _ in messages]
    made.payloads.extend(payload for _, payload in messages)
    made.packet_ids += pids or (range(1, len(messages) + 1) if qos else ())
    return made


def publish(node: FakeNode, sent: Publishes, *, will: bool = False) -> None:
    by = publisher(node)
    if will:
        by.publish_will(sent)
    else:
        by.publish(sent)
    node.kernel.run_turn()


def got(box: Box) -> list[tuple[str, bytes]]:
    """Topics and payloads in order, out of Batches and Outgoings."""
    batches = [told.batch if isinstance(told, Outgoing) else told for told in box.told]
    return [
        (topic.decode(), payload)
        for batch in batches
        for topic, payload in zip(batch.topics, batch.payloads, strict=True)
    ]


MIXED = [("a/1", b"1"), ("b", b"2"), ("a/2", b"3"), ("a/1", b"4"), ("c", b"5"), ("a/2", b"6")]


class NoAccess:
    """A client that may read nothing."""

    def guards(self, _topic_filter: str) -> bool:
        return True

    def may_read(self, _topic: str) -> bool:
        return False


def test_work_for_subscribers_without_permission_is_bounded_and_counted(node: FakeNode) -> None:
    boxes = [node.subscribe(f"s{number}", "t", 1) for number in range(200)]
    for number in range(200):
        node.router.set_acl(f"s{number}", cast("Any", NoAccess()))
    by = publisher(node)
    by.connection = cast("Any", SimpleNamespace(caused=0, pace=1.0))
    sent = packet(1, *[("t", b"x")] * 1000)
    assert by.at_once(sent.topics, 0) == 1000
    assert 0 < by.at_once(sent.topics, 1) < 100
    by.publish(packet(1, ("t", b"x"), ("t", b"y")))
    assert by.connection is not None
    assert by.connection.caused == node.router.deliveries == 400
    node.kernel.run_turn()  # each in a run of its own, so that the turn can be cut
    ((_, first, _),) = node.events
    assert [box.told for box in boxes] == [[DeniedMessages([first, first + 1])]] * 200


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_a_subscriber_gets_its_messages_in_order_across_topics(node: FakeNode) -> None:
    everything = node.subscribe("all", "#", 1)
    below = node.subscribe("below", "a/#", 1)
    one = node.subscribe("one", "a/1", 1)
    two = node.subscribe("two", "a/2", 1, online=False)
    publish(node, packet(1, *MIXED))
    assert got(everything) == MIXED
    assert got(below) == [one for one in MIXED if one[0].startswith("a/")]
    assert got(one) == [("a/1", b"1"), ("a/1", b"4")]
    assert got(two) == [("a/2", b"3"), ("a/2", b"6")]


@pytest.mark.mqtt("MQTT-3.3.5-1", "MQTT-4.6.0-6")
def test_several_matching_filters_of_a_session_give_one_copy_in_order_per_topic(
    node: FakeNode,
) -> None:
    wide = node.subscribe("s", "#", 1)
    narrow = node.subscribe("s", "a/1", 2)
    publish(node, packet(2, *MIXED), will=True)
    assert sorted(got(wide) + got(narrow)) == sorted(MIXED)
    assert got(narrow) == [("a/1", b"1"), ("a/1", b"4")]
    assert got(wide) == [one for one in MIXED if one[0] != "a/1"]


def test_an_overflow_of_the_cache_in_the_middle_of_a_batch_changes_no_order(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_CACHED_TOPICS", 2)
    everything = node.subscribe("all", "#", 1)
    one = node.subscribe("one", "a/1", 1)
    publish(node, packet(1, *MIXED))
    assert got(everything) == MIXED
    assert got(one) == [("a/1", b"1"), ("a/1", b"4")]


def test_references_go_with_their_messages(node: FakeNode) -> None:
    node.subscribe("all", "#", 1)
    one = node.subscribe("one", "a/1", 1)
    publish(node, packet(1, *MIXED))
    (batch,) = one.told
    assert isinstance(batch, Batch)
    assert [node.messages.get(ref) for ref in batch.positions] == [
        Message(b"a/1", b"1", publisher="p"),
        Message(b"a/1", b"4", publisher="p"),
    ]
    assert (batch.size, batch.qos, len(batch)) == (2, 1, 2)


def test_one_event_for_a_batch(node: FakeNode) -> None:
    publish(node, packet(1, *MIXED, pids=[7, 8, 9, 1, 2, 3], retain=True))
    ((event, _, payloads),) = node.events
    assert isinstance(event, MessagePublished)
    assert [event.topics[at] for at in event.which] == [topic for topic, _ in MIXED]
    assert (from_runs(event.pids), event.sizes, event.count) == ([7, 8, 9, 1, 2, 3], 1, 6)
    assert (event.retain, event.will, list(payloads)) == (True, False, [p for _, p in MIXED])


def test_qos_0_is_neither_recorded_nor_sent_to_offline_clients(node: FakeNode) -> None:
    there = node.subscribe("there", "a", 1)
    away = node.subscribe("away", "a", 1, online=False)
    raw = b"\x30\x04\x00\x01ax"
    sent = Publishes(0)
    sent.topics.append(b"a")
    sent.packets.append(raw)
    publish(node, sent)
    assert node.events == []
    assert [batch.at_qos0() for batch in there.told] == [raw]
    assert away.told == []


@pytest.mark.parametrize(("published", "granted", "expected"), [(1, 2, 1), (2, 1, 1), (1, 1, 1)])
def test_offline_clients_get_the_lower_qos(
    node: FakeNode, published: int, granted: int, expected: int
) -> None:
    away = node.subscribe("away", "a", granted, online=False)
    publish(node, packet(published, ("a", b"x")), will=True)
    (told,) = away.told
    assert told.qos == expected


def test_offline_clients_subscribed_at_qos_0_get_nothing(node: FakeNode) -> None:
    away = node.subscribe("away", "a", 0, online=False)
    publish(node, packet(1, ("a", b"x")))
    assert away.told == []


def test_messages_for_a_failed_subscription_go_to_its_session(node: FakeNode) -> None:
    box = node.subscribe("s", "a", 1)
    box.stop()
    node.kernel.run_turn()
    publish(node, packet(1, ("a", b"x")))
    publish(node, packet(0, ("a", b"y"), retain=True))
    told = node.session("s").told
    assert [(one.qos, one.batch.payloads) for one in told] == [(1, [b"x"]), (0, [b"y"])]


def test_reserved_topics_are_dropped_and_counted(node: FakeNode) -> None:
    box = node.subscribe("s", "#", 1)
    sent = packet(1, ("$SYS/x", b"1"), ("a", b"2"), ("$JS/y", b"3"), pids=[5, 6, 7])
    publisher(node).publish_from_nats(sent)
    node.kernel.run_turn()
    dropped, published = (event for event, _, _ in node.events)
    assert dropped == MessageDropped("p", "reserved_topic", 2, topics=["$SYS/x", "$JS/y"])
    assert isinstance(published, MessagePublished)
    assert (published.topics, from_runs(published.pids)) == (["a"], [6])
    assert got(box) == [("a", b"2")]
    assert node.dropped == {"reserved_topic": 2}
    publish(node, packet(1, ("$SYS/x", b"1")), will=True)
    assert len(node.events) == 3


def test_a_batch_that_is_larger_than_a_record_is_split() -> None:
    # 120 bytes a part: payloads, each topic as 6, and 48 for what else a message takes.
    node = FakeNode(max_record=240)
    box = node.subscribe("s", "#", 1)
    messages = [("a", b"x" * size) for size in (4, 4, 4, 30, 1)]
    publish(node, packet(1, *messages))
    events = [event for event, _, _ in node.events]
    assert [one.count for one in events if isinstance(one, MessagePublished)] == [2, 1, 1, 1]
    assert got(box) == messages


# QoS 2.


def store(node: FakeNode, sent: Publishes) -> None:
    admitted = admit(sent, node.publish_rules, None, node.state.inbound)
    assert not admitted.drops
    if admitted.accepted:
        publisher(node).store(admitted.accepted)
    node.kernel.run_turn()


@pytest.mark.mqtt("MQTT-4.3.3-2")
def test_qos_2_is_recorded_once_and_routed_when_released(node: FakeNode) -> None:
    box = node.subscribe("s", "#", 2)
    store(node, packet(2, ("a", b"1"), ("a", b"2"), pids=[1, 2]))
    store(node, packet(2, ("a", b"2 again"), ("b", b"3"), ("b", b"3 again"), pids=[2, 3, 3]))
    store(node, packet(2, ("a", b"1 again"), pids=[1]))
    assert box.told == []
    inbound = node.state.inbound
    assert list(inbound) == [1, 2, 3]
    found = [node.messages.get(ref) for ref in inbound.values()]
    assert found == [
        Message(topic, payload, publisher="p")
        for topic, payload in ((b"a", b"1"), (b"a", b"2"), (b"b", b"3"))
    ]
    messages = cast("list[Message]", found)
    publisher(node).release(list(inbound.values()), messages, (0, 0), retain=False)
    node.kernel.run_turn()
    assert got(box) == [("a", b"1"), ("a", b"2"), ("b", b"3")]


def test_nothing_is_sent_without_subscribers(node: FakeNode) -> None:
    publish(node, packet(1, ("a", b"x")))
    assert node.boxes == {}
    assert Subscriber("s", "a", 1).actor is None


def test_messages_from_nats_are_recorded_where_required(node: FakeNode) -> None:
    box = node.subscribe("s", "#", 2)
    assert publisher(node).publish_from_nats(packet(0, ("a", b"0"))) == []
    assert node.events == []
    recorded = publisher(node).publish_from_nats(packet(2, ("a", b"1"), ("b", b"2")))
    node.kernel.run_turn()
    assert recorded == [(position(1, 0), 2)]
    kinds = [type(event).__name__ for event, *_ in node.events]
    assert kinds == ["MessagePublished", "Released"]
    assert node.state.inbound == {}
    assert got(box) == [("a", b"0"), ("a", b"1"), ("b", b"2")]


def test_messages_for_other_users_are_recorded_as_dropped(node: FakeNode) -> None:
    ours, theirs = node.subscribe("ours", "a", 1), node.subscribe("theirs", "a", 1)
    publisher(node).publish_from_nats(
        packet(1, ("a", b"1")), lambda target: target.session == "ours"
    )
    node.kernel.run_turn()
    assert (got(ours), got(theirs)) == ([("a", b"1")], [])
    (dropped,) = [event for event, *_ in node.events if isinstance(event, MessageDropped)]
    assert (dropped.session, dropped.reason, dropped.count) == ("theirs", "other_prefix", 1)
    assert node.dropped == {"other_prefix": 1}


def test_births_of_sparkplug_are_kept(node: FakeNode) -> None:
    kept = node.subscribe("later", "$sparkplug/#", 0)
    for qos in (0, 1):
        publish(node, packet(qos, ("spBv1.0/g/NBIRTH/n", b"birth"), ("spBv1.0/g/NDATA/n", b"x")))
    certificate = "$sparkplug/certificates/spBv1.0/g/NBIRTH/n"
    assert got(kept) == [(certificate, b"birth")] * 2
    retained = [
        event for event, *_ in node.events if isinstance(event, MessagePublished) and event.retain
    ]
    assert [(event.topics, event.qos) for event in retained] == [([certificate], 0)] * 2


def test_messages_before_one_for_which_an_observer_is_not_ready_are_routed(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [b"a", b"spBv1.0/g/NBIRTH/n", b"b"]
    certificate = b"$sparkplug/certificates/spBv1.0/g/NBIRTH/n"
    by = publisher(node)
    assert by.at_once(topics, 0) == 3
    assert certificate in node.router.routes
    monkeypatch.setattr(node.topic_observers[0], "is_ready", lambda _topic: False)
    assert by.at_once(topics, 0) == 1
    assert by.at_once(topics[1:], 0) == 0
    assert by.at_once(topics[2:], 0) == 1


def test_a_birth_for_which_the_log_has_no_room_is_counted(node: FakeNode) -> None:
    node.most = 4
    publish(node, packet(0, ("spBv1.0/g/NBIRTH/n", b"birth")))
    assert not node.events
    assert node.dropped == {"message_too_large": 1}


def test_a_message_at_qos_0_leaves_sessions_frozen(node: FakeNode) -> None:
    node.freeze("s", "a/+", 1)
    online = node.subscribe("online", "a/#", 0)
    by = publisher(node)
    assert by.at_once([b"a/b", b"a/c"], 0) == 2
    publish(node, packet(0, ("a/b", b"1"), ("a/c", b"2")))
    assert got(online) == [("a/b", b"1"), ("a/c", b"2")]
    assert (node.boxes, [*node.frozen]) == ({}, ["s"])


def test_a_message_at_qos_1_activates_the_frozen_sessions_that_get_it(node: FakeNode) -> None:
    node.freeze("s", "a/+", 1)
    node.freeze("other", "b/+", 1)
    publish(node, packet(1, ("a/b", b"1"), ("a/c", b"2")))
    assert [*node.boxes] == ["s"]
    assert [*node.frozen] == ["other"]
    told = [one for one in node.boxes["s"].told if isinstance(one, Outgoing)]
    assert [(one.subscriber.filter, [*one.batch.payloads]) for one in told] == [
        ("a/+", [b"1", b"2"])
    ]


def test_many_frozen_receivers_are_activated_in_several_turns(node: FakeNode) -> None:
    ticks = count()
    node.activation = Activation(node.session, lambda: next(ticks) / 10_000)
    for number in range(100):
        node.freeze(f"s{number}", "#", 1)
    by = publisher(node)
    turns = 1
    while not by.at_once([b"a", b"a"], 1):
        turns += 1
        assert node.activation.is_pending()
    assert 5 < turns <= 20
    assert not node.frozen
    assert not node.activation.is_pending()
    assert len(node.router.routes[b"a"].targets) == 100


def test_topics_whose_receivers_are_active_are_routed_before_the_others(node: FakeNode) -> None:
    ticks = count()
    node.activation = Activation(node.session, lambda: float(next(ticks)))
    for number in range(6):
        node.freeze(f"s{number}", f"t/{number}", 1)
    topics = [b"t/%d" % number for number in range(6)]
    by = publisher(node)
    routed = []
    while topics:
        routed.append(by.at_once(topics, 1))
        assert routed[-1]
        assert not any(node.router.routes[topic].frozen for topic in topics[: routed[-1]])
        topics = topics[routed[-1] :]
    assert sum(routed) == 6
    assert len(routed) > 1


def test_messages_for_many_receivers_are_sent_in_steps_and_in_order(node: FakeNode) -> None:
    """The turn can be cut between the steps; nothing sent later overtakes what waits."""
    node.turn_work.at_once = 3
    many = [node.subscribe(f"s{number}", "a", 0) for number in range(10)]
    single = node.subscribe("one", "b", 0)
    by = publisher(node)
    for topic, payload in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        by.publish(packet(0, (topic, payload)))
    assert node.turn_work.pending
    assert node.turn_work.mailbox_depth == 1
    assert not any(box.mailbox_depth for box in (*many, single))
    node.turn_work.on_receive(None)
    assert sum(bool(box.mailbox_depth) for box in many) == 3
    node.kernel.run_turn()
    assert not node.turn_work.pending
    for box in many:
        assert [batch.payloads for batch in box.told] == [[b"1"], [b"3"]]
    assert [batch.payloads for batch in single.told] == [[b"2"]]
    assert not node.failed


def test_an_error_while_messages_are_sent_ends_the_node_and_no_other_work(node: FakeNode) -> None:
    def broken() -> Iterator[None]:
        yield None
        raise ValueError("half done")

    done: list[int] = []
    node.turn_work.begin(broken())
    node.turn_work.begin(iter([done.append(1)]))
    node.kernel.run_turn()
    assert [str(error) for error in node.failed] == ["half done"]
    assert done == [1]
    assert not node.turn_work.pending
