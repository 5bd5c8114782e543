"""A failed actor is replaced; no other client notices and nothing acknowledged is lost."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from harness import packets as p
from harness.packets import Puback, Publish, Suback
from harness.plainaudit import violations

from actors.broker import session_registry, supervision
from actors.broker.session_registry import SessionRegistry
from actors.connection.connection import Connection
from actors.session.delivery import Delivery
from actors.session.session import Session
from actors.session.session_messages import ChangeQos, Outgoing, Packets
from actors.session.subscription_actor import Subscription
from actors.session.subscription_handler import SubscriptionHandler
from eventstore.format.events import SessionClosed
from eventstore.format.node_events import BrokerStopped
from projections.state.session import InFlight
from protocol.mqtt.packets import Subscribe
from simulation.checking import acknowledged
from simulation.fold import compare
from simulation.rebuilding import rebuilt_later
from simulation.world import SimClient, World, in_world

pytestmark = pytest.mark.plain


class FailingMethod:
    """Makes a method raise for matching messages, this many times."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        actor_class: type,
        method: str,
        fits: Callable[[Any, Any], bool],
    ) -> None:
        self.left = 0
        self.sprung = 0
        original = getattr(actor_class, method)

        def trapped(actor: Any, message: Any) -> Any:
            if self.left and fits(actor, message):
                self.left -= 1
                self.sprung += 1
                raise RuntimeError("trapped")
            return original(actor, message)

        monkeypatch.setattr(actor_class, method, trapped)


def handle_packets_one_by_one(world: World) -> None:
    """Let the actors handle all packets: no columns."""
    kernel = world.broker.kernel
    kernel.handle_gathered = kernel._tell_gathered


def outgoing_for(name: str) -> Callable[[Any, Any], bool]:
    return lambda actor, message: actor.name == name and type(message) is Outgoing


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> FailingMethod:
    """Makes the session of ``s`` fail on deliveries."""
    return FailingMethod(monkeypatch, Session, "on_receive", outgoing_for("s"))


@pytest.fixture
def subscription_trap(monkeypatch: pytest.MonkeyPatch) -> FailingMethod:
    """Makes subscriptions fail on every message."""
    return FailingMethod(monkeypatch, Subscription, "on_receive", lambda _actor, _told: True)


def publish(client: SimClient, *numbers: int, topic: str = "a", qos: int = 1) -> None:
    client.send(*(p.publish(topic, b"%d" % number, qos, number) for number in numbers))


@in_world()
async def test_the_subscriptions_of_a_session_that_fails_are_stopped_little_by_little(
    world: World, trap: FailingMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_registry, "_STOPPED_AT_ONCE", 10)
    monkeypatch.setattr(Connection, "_may_settle", lambda one, _data: one.settled)
    await world.connect("s", filters=[(f"a/{number}", 1) for number in range(100)])
    sender = await world.connect("d")
    kernel, stopped = world.broker.kernel, []
    stop = kernel._stop

    def count(actor: Any) -> None:
        if isinstance(actor, Subscription):
            stopped.append(kernel.turns)
        stop(actor)

    monkeypatch.setattr(kernel, "_stop", count)
    trap.left = 1
    publish(sender, 1, topic="a/7")
    await world.go(5)
    assert trap.sprung == 1
    assert max(Counter(stopped).values()) <= 10
    assert len(stopped) == kernel.population[Subscription] + 100 == 100
    again = await world.connect("s", present=True)
    assert again.payloads() == [b"1"]


@pytest.mark.parametrize("online", [True, False])
@in_world()
async def test_a_session_that_fails_once_on_a_delivery_loses_nothing(
    world: World, trap: FailingMethod, *, online: bool
) -> None:
    handle_packets_one_by_one(world)
    receiver = await world.connect("s", filters=[("a", 1)])
    if not online:
        receiver.send(p.disconnect())
    sender = await world.connect("d")
    publish(sender, 1)
    await world.go(0.1)
    trap.left = 1
    publish(sender, 2)
    publish(sender, 3)
    await world.calm()
    publish(sender, 4)
    await world.go(1)
    assert trap.sprung == 1
    assert sender.open
    assert sender.take() == [Puback(number) for number in (1, 2, 3, 4)]
    assert receiver.payloads() == ([b"1"] if online else [])
    assert not receiver.open
    again = await world.connect("s", present=True)
    received = [packet for packet in again.take() if isinstance(packet, Publish)]
    assert [packet.payload for packet in received] == [b"1", b"2", b"3", b"4"]
    assert [packet.packet_id for packet in received] == [1, 2, 3, 4]
    assert [packet.dup for packet in received] == [online, False, False, False]
    await world.restart()
    after = await world.connect("s", present=True)
    assert after.payloads() == [b"1", b"2", b"3", b"4"]


@in_world()
async def test_a_session_that_fails_while_it_is_rebuilt_is_rebuilt_again(
    world: World, trap: FailingMethod
) -> None:
    await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    trap.left = 1
    publish(sender, 1)
    while not trap.sprung:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    again = SimClient(world)
    again.send(p.connect("s", clean=False))
    trap.left = 1
    publish(sender, 2)
    await world.go(5)
    assert trap.sprung == 2
    assert sender.take() == [Puback(1), Puback(2)]
    received = again.take()
    assert received[:1] == [p.Connack(0, session_present=True)]
    assert [packet.payload for packet in received if isinstance(packet, Publish)] == [b"1", b"2"]


@in_world()
async def test_a_broker_stops_although_a_session_cannot_be_rebuilt(
    world: World, trap: FailingMethod, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def broken(_node: Any, _name: str) -> Any:
        raise RuntimeError("cannot be rebuilt")

    monkeypatch.setattr(supervision, "rebuild_session", broken)
    await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    trap.left = 1
    publish(sender, 1)
    await world.go(5)
    await asyncio.wait_for(world.broker.drain(), 20)
    assert isinstance(world.disk.events()[-1], BrokerStopped)


@in_world()
async def test_messages_while_a_session_is_rebuilt_come_behind_those_before(
    world: World, trap: FailingMethod
) -> None:
    receiver = await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    world.log.hold()
    trap.left = 1
    for number in range(1, 6):
        publish(sender, number)
        await world.calm()
    world.log.release()
    await world.go(1)
    again = await world.connect("s", present=True)
    assert receiver.payloads() == []
    assert again.payloads() == [b"1", b"2", b"3", b"4", b"5"]


@in_world(delay=lambda: 0.01)
async def test_a_session_is_rebuilt_while_the_log_grows(world: World, trap: FailingMethod) -> None:
    await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    trap.left = 1
    publish(sender, 1)
    again = None
    for number in range(2, 500):
        publish(sender, number, topic="other")
        await world.go(0.004)
        if number == 250:
            again = SimClient(world)
            again.send(p.connect("s", clean=False))
    assert again is not None
    assert again.payloads() == [b"1"]


@in_world()
async def test_a_sender_does_not_fail_with_the_session_it_sends_to(
    world: World, trap: FailingMethod
) -> None:
    receiver = await world.connect("s", filters=[("a", 1), ("w", 1)])
    receiver.send(p.disconnect())
    await world.connect("t", will=p.Will("w", b"gone", 1))
    sender = await world.connect("d")
    await world.go(0.1)
    trap.left = 1
    other = SimClient(world)
    publish(sender, 1)
    other.send(p.connect("t", clean=False))
    await world.go(1)
    assert trap.sprung == 1
    assert (sender.open, other.open) == (True, True)
    again = await world.connect("s", present=True)
    assert sorted(again.payloads()) == [b"1", b"gone"]


@in_world()
async def test_a_message_that_a_session_always_fails_on_is_queued_for_it(
    world: World, trap: FailingMethod
) -> None:
    await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    trap.left = 1000
    publish(sender, 1)
    await world.go(3)
    assert trap.sprung == 1
    publish(sender, 2)
    await world.go(1)
    assert trap.sprung == 2
    trap.left = 0
    again = await world.connect("s", present=True)
    assert again.payloads() == [b"1", b"2"]
    assert sender.take() == [Puback(1), Puback(2)]


@pytest.mark.parametrize("message", ["ConnectionAttached", "ConnectionDetached"])
@in_world()
async def test_a_session_that_always_fails_is_not_restarted_endlessly(
    world: World, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def fits(actor: Any, told: Any) -> bool:
        kinds = {message, "Retry"} if message == "ConnectionDetached" else {message}
        return actor.name == "s" and type(told).__name__ in kinds

    trap = FailingMethod(monkeypatch, Session, "on_receive", fits)
    other = await world.connect("d")
    trap.left = 100
    client = SimClient(world)
    client.send(p.connect("s", clean=False))
    await world.go(0.2)
    client.drop()
    await world.go(0.3)
    assert trap.sprung < 20
    publish(other, 1)
    await world.go(1)
    assert other.take() == [Puback(1)]
    trap.left = 0
    assert (await world.connect("s")).open


@in_world()
async def test_a_session_that_fails_while_it_is_closed_is_closed_by_its_successor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = FailingMethod(
        monkeypatch, SubscriptionHandler, "stop_actors", lambda one, _told: one._session.name == "s"
    )
    watcher = await world.connect("watcher", filters=[("w", 1)])
    client = await world.connect("s", filters=[("a", 1)], will=p.Will("w", b"gone", 1))
    trap.left = 1
    client.drop()
    await world.go(2)
    assert trap.sprung == 1
    assert watcher.payloads() == [b"gone"]
    assert not world.broker.node.state.sessions["s"].connected
    closed = world.disk.events(SessionClosed)
    assert [one.session for one in closed] == ["s"]


@in_world()
async def test_a_client_whose_packets_make_its_session_fail_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = FailingMethod(
        monkeypatch,
        Session,
        "on_receive",
        lambda actor, told: actor.name == "s" and type(told) is Packets,
    )
    handle_packets_one_by_one(world)
    watcher = await world.connect("watcher", filters=[("w", 1), ("a", 1)])
    client = await world.connect("s", will=p.Will("w", b"gone", 1))
    publish(client, 1)
    await world.go(0.1)
    trap.left = 1
    publish(client, 2)
    await world.go(1)
    assert not client.open
    assert client.take() == [Puback(1)]
    assert watcher.payloads() == [b"1", b"gone"]
    again = await world.connect("s", present=True)
    again.send(p.publish("a", b"2", 1, 2, dup=True))
    await world.go(0.1)
    assert again.take() == [Puback(2)]
    assert watcher.payloads() == [b"2"]


@in_world()
async def test_a_session_that_fails_while_messages_are_loaded_for_it_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = FailingMethod(
        monkeypatch,
        Delivery,
        "deliver",
        lambda delivery, told: delivery._session.name == "s" and told.batch.payloads[0] == b"2",
    )
    receiver = await world.connect("s", filters=[("a", 1)])
    receiver.send(p.disconnect())
    sender = await world.connect("d")
    publish(sender, 1)
    await world.go(0.1)
    await world.restart()
    sender = await world.connect("d")
    again = SimClient(world)
    again.send(p.connect("s", clean=False))
    await world.calm()
    trap.left = 1
    for number in (2, 3, 4):
        publish(sender, number)
        await world.calm()
    await world.go(1)
    assert trap.sprung == 1
    last = await world.connect("s", present=True)
    assert last.payloads() == [b"1", b"2", b"3", b"4"]


@in_world(session_expiry=60.0)
async def test_a_rebuilt_offline_session_expires_and_is_frozen(
    world: World, trap: FailingMethod
) -> None:
    receiver = await world.connect("s", filters=[("a", 1)])
    receiver.send(p.disconnect())
    sender = await world.connect("d")
    trap.left = 1
    publish(sender, 1)
    await world.go(1)
    assert trap.sprung == 1
    await world.go(20)
    assert "s" not in world.broker.sessions._sessions
    assert "s" in world.broker.node.state.sessions
    await world.go(60)
    assert "s" not in world.broker.node.state.sessions


@pytest.mark.mqtt("MQTT-4.6.0-6")
@pytest.mark.parametrize("killed", [False, True])
@in_world(max_ack_pending=1)
async def test_deliveries_recorded_for_a_failed_session_overtake_nothing(
    world: World, trap: FailingMethod, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    """It matches a filter whose queue is not the last one that has messages of its topic."""
    receiver = await world.connect("s", filters=[("b/x", 2), ("a/x", 2)])
    sender = await world.connect("d")
    publish(sender, 1, 2, topic="b/x")
    publish(sender, 11, 12, topic="a/x")
    await world.go(0.1)
    receiver.send(p.subscribe(9, ("+/x", 1)))
    await world.go(0.1)
    publish(sender, 3, topic="b/x")  # links queues: it waits in the one of a/x
    await world.go(0.1)
    may_rebuild = rebuilt_later(monkeypatch)
    trap.left = 1
    for number in (4, 5):
        publish(sender, number, topic="b/x")
        await world.go(0.1)
    assert trap.sprung == 1
    if killed:
        await world.restart()
    may_rebuild.set()
    await world.go(1)
    again = await world.connect("s", present=True)
    got = await acknowledged(world, again)
    assert [int(packet) for packet in got if int(packet) < 10] == [1, 2, 3, 4, 5]
    compare(world)
    assert not violations(world.disk.decoded())


@pytest.mark.parametrize("killed", [False, True])
@in_world()
async def test_the_state_of_a_failed_session_does_not_get_into_the_projections(
    world: World, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    """They wait until it is rebuilt: what made the session fail may have spoilt its state."""

    def spoil(session: Any, message: Any) -> bool:
        if outgoing_for("s")(session, message):
            held = session.state.subscription("a")
            session.state.inflight[77] = InFlight(1, 1, held, 0)  # the log tells of no such thing
            return True
        return False

    trap = FailingMethod(monkeypatch, Session, "on_receive", spoil)
    receiver = await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    publish(sender, 1)
    await world.go(5)
    may_rebuild = rebuilt_later(monkeypatch)
    trap.left = 1
    sender.send(p.publish("a", b"2", 1, 2, dup=True))  # is no case for the columns
    await world.calm()
    assert trap.sprung == 1
    publish(sender, 3)
    await world.go(20)
    assert sender.take() == [Puback(number) for number in (1, 2, 3)]
    if not killed:
        may_rebuild.set()
        await world.go(20)
    await world.restart()
    await world.go(1)
    compare(world)
    again = await world.connect("s", present=True)
    assert again.payloads() == [b"1", b"2", b"3"]
    assert receiver.payloads() == [b"1"]


# Subscriptions.


@in_world(message_cache=1)
async def test_messages_of_a_failed_subscription_are_recorded_while_its_session_loads(
    world: World, subscription_trap: FailingMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher is acknowledged in the same turn, and the broker may be killed in the next
    one."""
    receiver = await world.connect("s", filters=[("a", 1)])
    receiver.send(p.disconnect())
    sender = await world.connect("d")
    publish(sender, 1)
    await world.go(0.1)
    publish(sender, 2, topic="other")
    await world.go(0.1)
    load = SessionRegistry.load
    monkeypatch.setattr(SessionRegistry, "load", lambda *_arguments: None)  # it reads for ever
    again = SimClient(world)
    again.send(p.connect("s", clean=False))
    await world.calm()
    session = world.broker.sessions.find_session("s")
    assert session is not None
    assert session.loading
    subscription_trap.left = 1
    publish(sender, 3)
    await world.go(1)
    assert subscription_trap.sprung == 1
    assert session.loading
    assert sender.take()[-1] == Puback(3)
    monkeypatch.setattr(SessionRegistry, "load", load)
    await world.restart()
    assert (await world.connect("s", present=True)).payloads() == [b"1", b"3"]
    assert not violations(world.disk.decoded())


@pytest.mark.parametrize("times", [1, 1000])
@in_world()
async def test_a_subscription_that_fails_is_replaced_and_loses_nothing(
    world: World, subscription_trap: FailingMethod, times: int
) -> None:
    receiver = await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    subscription_trap.left = times
    sender.send(
        p.publish("a", b"1", 1, 1),
        p.publish("x", b"-", 2, 9),
        p.publish("a", b"2", 1, 2),
        p.publish("a", b"zero"),
        p.publish("a", b"3", 1, 3),
    )
    await world.go(0.1)
    publish(sender, 4)
    await world.go(0.1)
    assert (receiver.open, sender.open) == (True, True)
    received = receiver.payloads()
    assert [packet for packet in received if packet != b"zero"] == [b"1", b"2", b"3", b"4"]
    assert received.count(b"zero") == 1


@pytest.mark.parametrize("qos", [0, 1])
@in_world()
async def test_a_subscription_that_failed_may_be_made_again_in_the_same_turn(
    world: World, subscription_trap: FailingMethod, qos: int
) -> None:
    """The SUBSCRIBE is taken before the session has heard of the failure."""
    receiver = await world.connect("s", filters=[("a", 1)])
    session = world.broker.sessions.find_session("s")
    assert session is not None
    assert session.connection is not None
    (subscriber,) = world.broker.node.router.subscribers("s")
    assert subscriber.actor is not None
    subscription_trap.left = 1
    world.broker.kernel.tell(subscriber.actor, ChangeQos(1))
    again = Packets(session.connection, [Subscribe(9, [("a", qos)])])
    world.broker.kernel.tell(session, again)
    await world.go(1)
    assert subscription_trap.sprung == 1
    publish(await world.connect("d"), 2)
    await world.go(1)
    answer, *got = receiver.take()
    assert answer == Suback(9, (qos,))
    assert [packet.qos for packet in got if isinstance(packet, p.Publish)] == [qos]
    assert receiver.open
    assert world.broker.sessions.find_session("s") is session
    (subscriber,) = world.broker.node.router.subscribers("s")
    assert subscriber.actor is not None
    assert world.broker.kernel.population[Subscription] == 1


@pytest.mark.parametrize("times", [1, 1000])
@in_world()
async def test_a_subscription_that_fails_on_retained_messages_sends_them_all_the_same(
    world: World, subscription_trap: FailingMethod, times: int
) -> None:
    sender = await world.connect("d")
    sender.send(p.publish("a", b"kept", 1, 1, retain=True))
    await world.go(0.1)
    subscription_trap.left = times
    receiver = await world.connect("s")
    receiver.send(p.subscribe(3, ("a", 1)))
    await world.go(0.1)
    publishes = [packet for packet in receiver.take() if isinstance(packet, Publish)]
    assert publishes == [Publish("a", b"kept", 1, 1, retain=True)]


# Connections.


@in_world()
async def test_a_connection_that_fails_closes_itself_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = FailingMethod(
        monkeypatch,
        Connection,
        "on_receive",
        lambda actor, _told: actor.client_id == "s",
    )
    watcher = await world.connect("watcher", filters=[("#", 1)])
    client = await world.connect("s", filters=[("a", 1)], will=p.Will("w", b"gone", 1))
    trap.left = 1
    client.send(p.pingreq())
    await world.go(0.1)
    assert (client.open, watcher.open) == (False, True)
    assert watcher.payloads() == [b"gone"]
    assert len(world.broker.admission.connections) == 1
    publish(watcher, 1)
    await world.go(0.1)
    assert (await world.connect("s", present=True)).payloads() == [b"1"]


@in_world()
async def test_a_connection_that_fails_before_its_connect(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = FailingMethod(monkeypatch, Connection, "on_receive", lambda _actor, _told: True)
    at_rest = len(world.broker.kernel)
    trap.left = 1
    client = SimClient(world)
    client.send(p.connect("s"))
    await world.go(0.1)
    assert not client.open
    assert not world.broker.admission.connections
    assert len(world.broker.kernel) == at_rest
    assert (await world.connect("s")).open


@in_world()
async def test_deliveries_of_a_failed_session_survive_a_crash_during_its_rebuild(
    world: World, trap: FailingMethod, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def unending(*_arguments: object) -> None:
        await asyncio.get_running_loop().create_future()

    await world.connect("s", filters=[("a", 1)])
    sender = await world.connect("d")
    monkeypatch.setattr("actors.broker.supervision.rebuild_session", unending)
    trap.left = 1
    publish(sender, 1)
    await world.go(0.5)
    publish(sender, 2)
    await world.go(0.5)
    assert sender.take() == [Puback(1), Puback(2)]
    monkeypatch.undo()
    await world.restart()
    again = await world.connect("s", present=True)
    assert again.payloads() == [b"1", b"2"]
