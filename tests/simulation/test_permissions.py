"""Permissions: the withheld messages, and the record of each in the log."""

import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from harness import packets as p

from eventstore.format.events import Acked, MessageDropped, SessionClosed, WillFired
from eventstore.format.node_events import OperatorActed, RetainedCleared
from eventstore.format.positions import from_runs
from simulation.checking import check_promises
from simulation.inspection import ask, change
from simulation.loop import simulate
from simulation.permission_worlds import OPEN, permit, topics
from simulation.world import World, in_world, runs

NO_SECRETS = OPEN + "[[deny]]\nsubscribe = ['+/secret']\n"
NO_SECRETS_TO_R = OPEN + "[[deny]]\nclients = ['r']\nsubscribe = ['+/secret']\n"
NO_WILLS = OPEN + "[[deny]]\npublish = ['gone']\n"


def run(scenario: Callable[[World], Awaitable[None]], text: str = OPEN) -> None:
    async def whole() -> None:
        async with World().running() as world:
            permit(world, text)
            await scenario(world)
            await check_promises(world)

    simulate(whole)


def dropped(world: World) -> list[tuple[str, str, int]]:
    return [
        (event.session, event.reason, event.count) for event in world.disk.events(MessageDropped)
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
@runs(run, NO_SECRETS)
async def test_messages_denied_below_a_subscription_are_not_sent(world: World, *, qos: int) -> None:
    reader = await world.connect("r", filters=[("#", qos)])
    sender = await world.connect("s")
    for number, topic in enumerate(("a/open", "a/secret", "b/open"), 1):
        sender.send(p.publish(topic, b"x", qos, number))
        if qos == 2:
            sender.send(p.pubrel(number))
    await world.go(1)
    assert topics(reader) == ["a/open", "b/open"]
    assert dropped(world) == ([("r", "not_permitted", 1)] if qos else [])


@runs(run, NO_SECRETS)
async def test_an_overlapping_subscription_is_denied_as_well_and_one_drop_is_recorded(
    world: World,
) -> None:
    reader = await world.connect("r", filters=[("#", 1), ("a/#", 2)])
    sender = await world.connect("s")
    sender.send(p.publish("a/secret", b"x", 1, 1), p.publish("a/open", b"x", 1, 2))
    await world.go(1)
    assert topics(reader) == ["a/open"]
    assert dropped(world) == [("r", "not_permitted", 1)]


@runs(run, NO_SECRETS)
async def test_retained_messages_that_may_not_be_read_are_not_replayed(world: World) -> None:
    sender = await world.connect("s")
    for number, topic in enumerate(("a/open", "a/secret"), 1):
        sender.send(p.publish(topic, b"x", 1, number, retain=True))
    await world.go(1)
    reader = await world.connect("r", filters=[("#", 1)])
    await world.go(1)
    assert topics(reader) == ["a/open"]
    assert dropped(world) == [("r", "not_permitted", 1)]


@runs(run)
async def test_queued_messages_are_checked_when_they_are_sent(world: World) -> None:
    reader = await world.connect("r", filters=[("#", 1)])
    reader.transport.drop()
    await world.go(3)
    sender = await world.connect("s")
    for number, topic in enumerate(("a/secret", "a/open", "b/secret", "c/secret", "c/x"), 1):
        sender.send(p.publish(topic, b"%d" % number, 1, number))
    await world.go(1)
    permit(world, NO_SECRETS_TO_R)
    reader = await world.connect("r", present=True)
    await world.go(1)
    assert topics(reader) == ["a/open", "c/x"]
    assert sum(count for _, _, count in dropped(world)) == 3


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("crash", [False, True])
@runs(run)
async def test_unacknowledged_messages_are_checked_when_they_are_sent_again(
    world: World, *, qos: int, crash: bool
) -> None:
    """They end with a reason code that no client can send; the others are sent, in order."""
    reader = await world.connect("r", filters=[("#", qos)])
    sender = await world.connect("s")
    for number, topic in enumerate(("a/secret", "a/open", "b/secret", "c/x"), 1):
        sender.send(p.publish(topic, b"%d" % number, qos, number), p.pubrel(number))
    await world.go(0.2)
    sent = [packet for packet in reader.take() if isinstance(packet, p.Publish)]
    assert len(sent) == 4
    reader.transport.drop()
    await world.go(3)
    permit(world, NO_SECRETS_TO_R)
    if crash:
        await world.restart()
        permit(world, NO_SECRETS_TO_R)
    reader = await world.connect("r", present=True)
    await world.go(0.2)
    again = [packet for packet in reader.received if isinstance(packet, p.Publish)]
    assert [(one.topic, one.dup) for one in again] == [("a/open", True), ("c/x", True)]
    assert world.broker.node.dropped["not_permitted"] == 2
    denied = [sent[0].packet_id, sent[2].packet_id]
    if qos == 1:
        (ended,) = (event for event in world.disk.events() if isinstance(event, Acked))
        assert (from_runs(ended.pids), from_runs(ended.reasons)) == (denied, [0x98, 0x98])
    else:  # the identifiers are in use until the client has released what it may have
        assert sum(count for _, _, count in dropped(world)) == 2
        released = [packet.packet_id for packet in reader.received if isinstance(packet, p.Pubrel)]
        assert released == [*world.broker.node.state.sessions["r"].releasing] == denied


@runs(run)
async def test_a_message_is_not_repeated_after_the_permission_is_lost(world: World) -> None:
    """After ``ack_wait``, to a client that stays connected."""
    reader = await world.connect("r", filters=[("#", 1)])
    sender = await world.connect("s")
    sender.send(p.publish("a/secret", b"x", 1, 1))
    await world.go(0.2)
    assert topics(reader) == ["a/secret"]
    permit(world, NO_SECRETS_TO_R)
    reader.take()
    await world.go(100)
    assert topics(reader) == []
    assert not world.broker.node.state.sessions["r"].inflight


@runs(run)
async def test_a_received_message_is_completed_after_the_permission_is_lost(world: World) -> None:
    reader = await world.connect("r", filters=[("#", 2)])
    sender = await world.connect("s")
    sender.send(p.publish("a/secret", b"x", 2, 1), p.pubrel(1))
    await world.go(0.2)
    (sent,) = [packet for packet in reader.take() if isinstance(packet, p.Publish)]
    assert sent.packet_id is not None
    reader.send(p.pubrec(sent.packet_id))
    await world.go(0.2)
    reader.transport.drop()
    await world.go(3)
    permit(world, NO_SECRETS_TO_R)
    reader = await world.connect("r", present=True)
    await world.go(0.2)
    assert p.Pubrel(sent.packet_id) in reader.received
    reader.send(p.pubcomp(sent.packet_id))
    await world.go(0.2)
    assert not world.broker.node.state.sessions["r"].releasing


@pytest.mark.parametrize("permitted", [False, True])
def test_a_birth_certificate_needs_the_permission_for_its_own_topic(*, permitted: bool) -> None:
    async def scenario(world: World) -> None:
        reader = await world.connect("r", filters=[("$sparkplug/#", 0)])
        sender = await world.connect("s")
        sender.send(p.publish("spBv1.0/g/NBIRTH/n", b"born", 0))
        await world.go(1)
        copy = "$sparkplug/certificates/spBv1.0/g/NBIRTH/n"
        assert topics(reader) == ([copy] if permitted else [])
        assert len(world.broker.node.state.retained) == permitted
        assert dropped(world) == ([] if permitted else [("s", "not_permitted", 1)])

    own = "both" if permitted else "subscribe"
    run(scenario, OPEN + f"[[allow]]\n{own} = ['$sparkplug/#']\n")


@runs(run)
async def test_a_queue_of_denied_messages_is_emptied(world: World) -> None:
    reader = await world.connect("r", filters=[("#", 1)])
    reader.transport.drop()
    await world.go(3)
    sender = await world.connect("s")
    for number in range(1, 3001):
        sender.send(p.publish("a/secret", b"x" * 100, 1, number))
    sender.send(p.publish("last", b"x", 1, 3001))
    await world.go(2)
    permit(world, NO_SECRETS_TO_R)
    reader = await world.connect("r", present=True)
    await world.go(3)
    assert topics(reader) == ["last"]
    assert world.broker.node.state.sessions["r"].queued == 0


@runs(run)
async def test_a_change_applies_to_connected_clients_at_once(world: World) -> None:
    reader = await world.connect("r", filters=[("#", 1)])
    sender = await world.connect("s")
    sender.send(p.publish("a/secret", b"x", 1, 1))
    await world.go(1)
    permit(world, NO_SECRETS)
    sender.send(p.publish("a/secret", b"x", 1, 2))
    await world.go(1)
    assert topics(reader) == ["a/secret"]
    permit(world, OPEN)
    sender.send(p.publish("a/secret", b"x", 1, 3))
    await world.go(1)
    assert topics(reader) == ["a/secret", "a/secret"]


@pytest.mark.parametrize("restart", [False, True])
@runs(run)
async def test_a_will_that_may_not_be_published_any_more_is_not(
    world: World, *, restart: bool
) -> None:
    reader = await world.connect("r", filters=[("#", 1)])
    sender = await world.connect("s", will=p.Will("gone", b"x", 1))
    await world.go(1)
    permit(world, NO_WILLS)
    if restart:
        await world.restart()
        reader = await world.connect("r", present=True)
    else:
        sender.transport.drop()
    await world.go(2)
    assert topics(reader) == []
    assert any(isinstance(event, WillFired) for event in world.disk.events())
    assert dropped(world) == [("s", "not_permitted", 1)]


@runs(run, NO_SECRETS)
async def test_a_drop_is_recorded_although_the_routes_are_dropped_in_the_same_read(
    world: World,
) -> None:
    away = await world.connect("away", filters=[("late/#", 1)])
    away.transport.drop()
    await world.go(3)  # its session is frozen now: a message to it changes the index
    await world.connect("r", filters=[("a/#", 1)])
    sender = await world.connect("s")
    sender.send(p.publish("a/secret", b"x", 1, 1), p.publish("late/x", b"x", 1, 2))
    await world.go(1)
    assert dropped(world) == [("r", "not_permitted", 1)]


NO_LOCKS = OPEN + "[[deny]]\npublish = ['locked']\n"


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world(close_denied=True)
async def test_a_publication_that_closes_its_connection_is_recorded(world: World, qos: int) -> None:
    permit(world, NO_LOCKS)
    sender = await world.connect("s")
    sender.send(*(p.publish(t, b"x", qos, n) for n, t in ((1, "a"), (2, "locked"))))
    await world.go(1)
    ends = [event.reason for event in world.disk.events(SessionClosed)]
    assert ends == ["not_permitted"]
    drops = world.disk.events(MessageDropped)
    assert drops == ([MessageDropped("s", "not_permitted", 1, topics=["locked"])] if qos else [])
    assert world.broker.node.clients.find("s").dropped == {"not_permitted": 1}
    await check_promises(world)


@runs(run)
async def test_a_will_that_is_denied_at_connect_is_recorded(world: World) -> None:
    permit(world, NO_WILLS)
    sender = await world.connect("s", will=p.Will("gone", b"x", 1))
    await world.go(1)
    drops = world.disk.events(MessageDropped)
    assert drops == [MessageDropped("s", "not_permitted", 1, topics=["gone"])]
    sender.transport.drop()
    await world.go(2)
    assert not any(isinstance(event, WillFired) for event in world.disk.events())
    assert dropped(world) == [("s", "not_permitted", 1)]


@pytest.mark.parametrize(
    ("rules", "anonymous", "permitted"),
    [
        (OPEN, {"a": True, "b": True}, {"a": True, "b": True}),
        (OPEN + "[[deny]]\npublish = ['b']\n", {"a": True, "b": False}, {"a": True, "b": False}),
        (
            OPEN + "[[deny]]\nclients = ['gone']\npublish = ['a']\n",
            {"a": False, "b": True},
            {"a": False, "b": True},
        ),
        (
            OPEN + "[[deny]]\nusers = ['u']\npublish = ['a']\n",
            {"a": True, "b": True},
            {"a": None, "b": True},
        ),
        (
            OPEN + "[[deny]]\nanonymous = true\npublish = ['a']\n",
            {"a": False, "b": True},
            {"a": None, "b": True},
        ),
        (
            "[[allow]]\nusers = ['u']\npublish = ['a']\n",
            {"a": False, "b": False},
            {"a": None, "b": False},
        ),
        (
            "[[allow]]\nusers = ['*']\npublish = ['%u']\n",
            {"a": False, "b": False},
            {"a": None, "b": None},
        ),
        ("[[allow]]\npublish = ['%c/#']\n", {"a": False, "b": False}, {"a": False, "b": False}),
    ],
)
@runs(run)
async def test_of_a_publisher_without_session_the_user_is_known_until_a_restart(
    world: World,
    *,
    rules: str,
    anonymous: dict[str, bool | None],
    permitted: dict[str, bool | None],
) -> None:
    """Afterwards only what holds for every user is known."""
    sender = await world.connect("gone", clean=True)
    for number, topic in enumerate(permitted, 1):
        sender.send(p.publish(topic, b"x", 1, number, retain=True))
    await world.go(1)
    sender.transport.drop()
    await world.go(1)
    assert "gone" not in world.broker.node.state.sessions
    permit(world, rules)
    rows = (await ask(world, "retained"))["rows"]
    assert {row["topic"]: row["permitted"] for row in rows} == anonymous
    await world.restart()
    await world.go(1)
    permit(world, rules)
    rows = (await ask(world, "retained"))["rows"]
    assert {row["topic"]: row["permitted"] for row in rows} == permitted
    rows = (await ask(world, "retained", not_permitted=True))["rows"]
    denied = {topic for topic, allowed in permitted.items() if allowed is False}
    assert {row["topic"] for row in rows} == denied


@runs(run)
async def test_only_retained_messages_without_permission_are_removed_on_request(
    world: World,
) -> None:
    sender = await world.connect("s")
    for number, topic in enumerate(("a", "b"), 1):
        sender.send(p.publish(topic, b"x", 1, number, retain=True))
    await world.go(1)
    permit(world, OPEN + "[[deny]]\nclients = ['s']\npublish = ['b']\n")
    answer = await change(world, "clear_retained", topics=["a", "b"], not_permitted=True)
    assert answer["done"] == ["b"]
    assert answer["refused"] == [["a", "not known to be without permission any more"]]
    assert [row["topic"] for row in (await ask(world, "retained"))["rows"]] == ["a"]


@pytest.mark.parametrize("clears", [False, True])
@runs(run)
async def test_a_reload_removes_retained_messages_whose_publisher_lost_its_permission(
    world: World, *, clears: bool
) -> None:
    node = world.broker.node
    node.options = dataclasses.replace(node.options, clear_denied_retained=clears)
    sender, other = await world.connect("s"), await world.connect("t")
    for number in range(1, 301):
        sender.send(p.publish(f"s/{number}", b"x", 1, number, retain=True))
        other.send(p.publish(f"t/{number}", b"x", 1, number, retain=True))
        await world.go(0.01)
    await world.go(1)
    permit(world, OPEN + "[[deny]]\nclients = ['s']\npublish = ['#']\n")
    await world.go(3)
    left = {topic for topic in node.state.retained.topics() if topic.startswith("s/")}
    assert len(left) == (0 if clears else 300)
    assert len(node.state.retained) == 300 + len(left)
    acted = world.disk.events(OperatorActed)
    assert {event.by for event in acted} == ({"clear_denied_retained"} if clears else set())
    cleared = world.disk.events(RetainedCleared)
    assert sum(len(event.topics) for event in cleared) == 300 - len(left)
    assert all(len(event.topics) <= 64 for event in cleared)
