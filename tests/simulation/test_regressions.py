"""Defects that a hostile review found, each with a test against its return."""

import asyncio

import pytest
from harness import packets as p
from harness.packets import Connack, Puback, Publish, Suback

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.broker.message_loading import MessageLoader
from actors.connection.connection import Connection
from actors.session.session_messages import Packets
from eventstore.format.events import WillFired
from protocol.mqtt.packets import Subscribe
from protocol.mqtt.subscription_options import NO_LOCAL
from simulation.checking import acknowledged, check_promises
from simulation.world import SimClient, World, in_world


@pytest.mark.mqtt("MQTT-3.1.4-2", "MQTT-3.1.4-4")
@pytest.mark.parametrize("clean", [True, False])
@in_world()
async def test_a_connect_in_the_wake_of_a_disconnect_gets_a_session_that_listens(
    world: World, *, clean: bool
) -> None:
    old, new = SimClient(world), SimClient(world)
    old.send(p.connect("c", clean=clean))
    await world.go(1)
    assert old.take() == [Connack(0)]
    # Both arrive in one wake-up of the loop, the end of the old connection first.
    old.send(p.disconnect())
    new.send(p.connect("c", clean=clean))
    await world.go(1)
    new.send(p.subscribe(1, ("t", 1)), p.publish("t", b"x", 1, 2))
    await world.go(1)
    answers = new.take()
    assert answers[0] in (Connack(0), Connack(0, session_present=True))
    assert Suback(1, (1,)) in answers
    assert Puback(2) in answers
    assert [packet.payload for packet in answers if isinstance(packet, Publish)] == [b"x"]


@pytest.mark.mqtt("MQTT-3.10.4-3", "MQTT-4.6.0-6")
@pytest.mark.parametrize("leaving", ["b/#", "b/x"])
@in_world(max_ack_pending=10)
async def test_unsubscribing_one_of_two_overlapping_filters_loses_nothing(
    world: World, leaving: str
) -> None:
    receiver = await world.connect("r", filters=[("b/#", 1), ("b/x", 1)])
    sender = await world.connect("s")
    sender.send(*(p.publish("b/x", b"%d" % n, 1, n) for n in range(1, 31)))
    await world.go(1)
    receiver.send(p.unsubscribe(9, leaving))
    await world.go(1)
    got = await acknowledged(world, receiver)
    assert got == [b"%d" % n for n in range(1, 31)]


@pytest.mark.mqtt("MQTT-4.6.0-6")
@in_world()
async def test_the_subscriptions_of_a_client_pass_messages_on_in_order(world: World) -> None:
    """The wider filter has an older message when the other one, which has a newer one, ends."""
    client = await world.connect("r", filters=[("#", 0), ("t/#", 1)])
    client.take()
    client.send(
        p.publish("other", b"0"),
        p.publish("t/a", b"1"),
        p.unsubscribe(9, "t/#"),
        p.publish("t/a", b"2"),
    )
    await world.go(1)
    got = client.payloads()
    assert got == [b"0", b"1", b"2"]


@pytest.mark.mqtt("MQTT-4.6.0-6")
@in_world()
async def test_retained_messages_of_an_overlapping_subscription_keep_the_order(
    world: World,
) -> None:
    """The wider filter has an older message, and gets retained ones behind a newer message."""
    client = await world.connect("r", filters=[("#", 0), ("t/#", 1)])
    client.send(p.publish("kept", b"k", retain=True))
    await world.go(1)
    client.take()
    client.send(
        p.publish("other", b"0"),
        p.publish("t/a", b"1"),
        p.subscribe(9, ("#", 0)),
        p.publish("t/a", b"2"),
    )
    await world.go(1)
    got = client.payloads()
    assert got == [b"0", b"1", b"k", b"2"]


@pytest.mark.plain
@in_world()
async def test_an_unsubscribe_does_not_take_an_own_message_that_is_sent_in_steps(
    world: World,
) -> None:
    """The other filter has No Local, and the receivers are too many for one step."""
    world.broker.node.turn_work.at_once = 1
    for n in range(3):
        await world.connect(f"r{n}", filters=[("t/#", 1)])
    client = await world.connect("c", mqtt5=True, filters=[("#", 2 | 4), ("t/a", 1)])
    client.send(p.publish("t/a", b"1", 1, 1), p.unsubscribe(8, "t/a"))
    await world.go(1)
    assert client.payloads() == [b"1"]


@pytest.mark.plain
@in_world()
async def test_sessions_that_end_before_a_message_is_sent_in_steps_are_not_started_again(
    world: World,
) -> None:
    world.broker.node.turn_work.at_once = 1
    leaving = [await world.connect(f"r{n}", filters=[("t/#", 1)], clean=True) for n in range(3)]
    sender = await world.connect("s")
    await world.go(1)
    sender.send(p.publish("t/a", b"1", 1, 1))
    for one in leaving:
        one.send(p.disconnect())
    await world.go(1)
    assert set(world.broker.sessions._sessions) == {"s"}


@pytest.mark.mqtt("MQTT-4.6.0-6")
@in_world(max_ack_pending=5)
async def test_a_better_subscription_does_not_let_new_messages_overtake_old_ones(
    world: World,
) -> None:
    receiver = await world.connect("r", filters=[("t/#", 1)])
    sender = await world.connect("s")
    sender.send(*(p.publish("t/x", b"%d" % n, 1, n) for n in range(1, 21)))
    await world.go(1)
    receiver.send(p.subscribe(9, ("t/x", 2)))
    await world.go(1)
    sender.send(p.publish("t/x", b"21", 1, 21))
    await world.go(1)
    got = await acknowledged(world, receiver)
    assert got == [b"%d" % n for n in range(1, 22)]


@pytest.mark.mqtt("MQTT-3.8.4-5")
@in_world()
async def test_a_filter_repeated_in_one_packet_is_replayed_once(world: World) -> None:
    sender = await world.connect("s")
    sender.send(p.publish("kept", b"x", 1, 1, retain=True))
    await world.go(1)
    receiver = await world.connect("r")
    receiver.send(p.subscribe(1, *[("#", 1)] * 50))
    await world.go(1)
    answers = receiver.take()
    assert Suback(1, (1,) * 50) in answers
    assert sum(isinstance(packet, Publish) for packet in answers) == 1


@in_world(max_outbound_bytes=100_000)
async def test_output_at_the_gate_is_bounded_and_arrives_when_it_opens(world: World) -> None:
    receiver = await world.connect("r", filters=[("t", 1)])
    sender = await world.connect("s")
    world.log.hold()
    for n in range(1, 101):
        sender.send(p.publish("t", b"%d " % n + bytes(10_000), 1, n))
        await world.go(0.01)
    assert world.broker.node.journal.gated < 300_000
    world.log.release()
    got = await acknowledged(world, receiver)
    assert [int(payload.split(b" ")[0]) for payload in got] == list(range(1, 101))


@in_world(max_outbound_bytes=100_000)
async def test_output_to_a_resumed_client_that_reads_nothing_is_bounded(world: World) -> None:
    receiver = await world.connect("r", filters=[("t", 1)])
    sender = await world.connect("s")
    for n in range(1, 101):
        sender.send(p.publish("t", b"%d " % n + bytes(10_000), 1, n))
        await world.go(0.01)
    first = [packet for packet in receiver.take() if isinstance(packet, Publish)]
    assert len(first) == 100
    receiver.drop()
    await world.go(1)
    again = SimClient(world)
    again.send(p.connect("r", clean=False))
    await world.go(3)
    resent = [packet for packet in again.take() if isinstance(packet, Publish)]
    assert [one.packet_id for one in resent] == [one.packet_id for one in first]
    assert all(one.dup for one in resent)


@in_world(connect_timeout=5.0)
async def test_a_check_is_cancelled_when_its_client_leaves(world: World) -> None:
    class Slow:
        def __init__(self) -> None:
            self.begun = self.cancelled = 0

        def check_now(self, _shown: Credentials) -> Verdict | None:
            return None

        async def check(self, _shown: Credentials) -> Verdict:
            self.begun += 1
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return Verdict(AuthResult.ACCEPTED)

        def close(self) -> None:
            """Nothing to do."""

    slow = Slow()
    world.broker.admission.authenticator = slow
    gone, stays = SimClient(world), SimClient(world)
    gone.send(p.connect("a", username="u", password=b"p"))
    stays.send(p.connect("b", username="u", password=b"p"))
    await world.go(1)
    gone.drop()
    await world.go(1)
    assert (slow.begun, slow.cancelled) == (2, 1)
    await world.go(10)
    assert (slow.begun, slow.cancelled) == (2, 2)


@pytest.mark.mqtt("MQTT-3.1.2-6")
@pytest.mark.parametrize("clean", [True, False])
@in_world()
async def test_a_new_session_gets_nothing_that_was_meant_for_the_one_before(
    world: World, *, clean: bool
) -> None:
    """Not even if the one before unsubscribed in the very turn in which it ended."""
    old = await world.connect("c", clean=clean, filters=[("t", 1)])
    sender, new = await world.connect("s"), SimClient(world)
    sender.send(p.publish("t", b"x", 1, 1))
    old.send(p.publish("t", b"y", 1, 2), p.unsubscribe(3, "t"), p.disconnect())
    new.send(p.connect("c", clean=True))
    await world.go(1)
    assert new.take() == [Connack(0)]


@pytest.mark.mqtt("MQTT-3.1.2-6")
@in_world()
async def test_a_new_session_gets_nothing_of_one_that_was_frozen_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the will of a session is read, published, and matches that session itself.

    Before that message reaches it the session is frozen, and a CONNECT comes that wants a new one.
    """
    may_read, step = asyncio.Event(), MessageLoader._step

    async def later(loader: MessageLoader) -> None:
        await may_read.wait()
        await step(loader)

    will = p.Will("t", b"it is gone", 1, retain=False)
    await world.connect("c", will=will, filters=[("t", 1)])
    monkeypatch.setattr(MessageLoader, "_step", later)
    await world.restart()
    await world.go(4)  # it has nothing to do, and is stopped
    new = SimClient(world)
    new.send(p.connect("c", clean=True))
    await world.go(1)
    assert new.take() == []
    may_read.set()
    await world.go(1)
    assert new.take() == [Connack(0)]
    fired = world.disk.events(WillFired)
    assert [one.session for one in fired] == ["c"]
    await check_promises(world)


@pytest.mark.mqtt("MQTT-3.3.5-1")
@in_world()
async def test_a_message_keeps_its_qos_when_one_of_two_filters_is_lowered_in_its_turn(
    world: World,
) -> None:
    receiver = await world.connect("r", filters=[("t", 2), ("#", 1)])
    receiver.send(p.publish("t", b"x", 1, 5), p.subscribe(6, ("t", 0)))
    await world.go(1)
    got = [packet for packet in receiver.take() if isinstance(packet, Publish)]
    assert [(packet.payload, packet.qos) for packet in got] == [(b"x", 1)]


async def receivers_in_steps(world: World, turn_slice: float) -> SimClient:
    """Return a client with two filters that gets a message after many others, in steps."""
    others = [await world.connect(f"o{at}", filters=[("t/x", 1)]) for at in range(20)]
    receiver = await world.connect("r", filters=[("+/#", 2), ("t/#", 2)])
    receiver.send(p.publish("t/x", b"first", 0))
    await world.go(3)
    for one in (receiver, *others):
        one.take()
    world.broker.node.turn_work.at_once = 1
    fast_path = world.broker.fast_path
    fast_path.delivered_at_once = fast_path.fan_out.step = 1
    world.broker.kernel.turn_slice = turn_slice
    return receiver


@pytest.mark.mqtt("MQTT-3.3.5-1")
@pytest.mark.parametrize("turn_slice", [0.0, 3600.0])
@in_world()
async def test_a_message_to_many_keeps_its_qos_when_one_of_two_filters_is_lowered(
    world: World,
    turn_slice: float,
) -> None:
    receiver = await receivers_in_steps(world, turn_slice)
    receiver.send(
        # The fast path does not take messages that are sent again.
        p.publish("t/x", b"1", 1, 5, dup=True),
        p.subscribe(6, ("+/#", 0)),
        p.publish("t/x", b"2", 2, 7, dup=True),
        p.subscribe(8, ("t/#", 1)),
        p.pubrel(7),
        p.publish("t/x", b"3", 1, 9, dup=True),
    )
    await world.go(2)
    got = [packet for packet in receiver.take() if isinstance(packet, Publish)]
    assert [(packet.payload, packet.qos) for packet in got] == [(b"1", 1), (b"2", 1), (b"3", 1)]


@pytest.mark.mqtt("MQTT-3.3.5-1")
@pytest.mark.parametrize("turn_slice", [0.0, 3600.0])
@in_world()
async def test_a_message_of_the_fast_path_keeps_its_qos_when_one_of_two_filters_is_lowered(
    world: World,
    turn_slice: float,
) -> None:
    receiver = await receivers_in_steps(world, turn_slice)
    publisher = await world.connect("p")
    publisher.send(p.publish("t/y", b"", 0))
    await world.go(3)
    receiver.take()
    sessions, kernel = world.broker.sessions, world.broker.kernel
    publishing, session = sessions.find_session("p"), sessions.find_session("r")
    assert publishing is not None
    assert session is not None
    assert isinstance(publishing.connection, Connection)
    assert session.connection is not None
    handled = world.broker.fast_path.fan_out.handled
    kernel.gather(publishing.connection, p.publish("t/x", b"1", 1, 5))
    kernel.tell(session, Packets(session.connection, [Subscribe(6, [("+/#", 0)])]))
    await world.go(1)
    assert world.broker.fast_path.fan_out.handled - handled > 10
    got = [packet for packet in receiver.take() if isinstance(packet, Publish)]
    assert [(packet.payload, packet.qos) for packet in got] == [(b"1", 1)]


@in_world()
async def test_no_local_does_not_apply_to_a_message_to_many_from_before_it(world: World) -> None:
    for at in range(20):
        await world.connect(f"o{at}", filters=[("t", 1)])
    client = await world.connect("c", filters=[("t", 1)], mqtt5=True)
    client.send(p.publish("t", b"first", 0))
    await world.go(3)
    client.take()
    world.broker.node.turn_work.at_once = 1
    world.broker.kernel.turn_slice = 0.0
    client.send(
        p.publish("t", b"1", 1, 5, dup=True),
        p.subscribe(6, ("t", 1 | NO_LOCAL)),
        p.publish("t", b"2", 1, 7, dup=True),
        p.subscribe(8, ("t", 1)),
        p.publish("t", b"3", 1, 9, dup=True),
    )
    await world.go(1)
    got = [packet for packet in client.take() if isinstance(packet, Publish)]
    assert [(packet.payload, packet.qos) for packet in got] == [(b"1", 1), (b"3", 1)]


# What waits is not overtaken, whatever linked it with what comes [MQTT-4.6.0-6].


async def interrupt(world: World, receiver: SimClient, how: str) -> SimClient:
    """Let something happen to a session and its client; return the client that continues."""
    if how == "nothing":
        return receiver
    if how == "killed":
        await world.restart()
    elif how == "frozen":
        receiver.send(p.disconnect())
        await world.go(20)
        assert "r" in world.broker.node.state.sessions
        assert "r" not in world.broker.node.state.sessions.live
    else:
        session = world.broker.sessions.find_session("r")
        assert session is not None
        world.broker.kernel.restart(session)
        await world.go(1)
    return await world.connect("r", present=True)


@pytest.mark.mqtt("MQTT-4.6.0-6")
@pytest.mark.parametrize("then", ["nothing", "killed", "frozen", "restarted"])
@pytest.mark.parametrize("first", ["nothing", "killed", "frozen", "restarted"])
@in_world(max_ack_pending=1)
async def test_the_link_between_two_filters_outlives_its_subscription(
    world: World, first: str, then: str
) -> None:
    receiver = await world.connect("r", filters=[("a/x", 2), ("+/x", 1)])
    sender = await world.connect("s")
    sender.send(p.publish("a/x", b"a", 1, 1), p.publish("a/x", b"b", 1, 2))
    await world.go(0.1)
    sender.send(p.publish("b/x", b"1", 1, 3))  # waits behind what waits for a/x
    await world.go(0.1)
    receiver = await interrupt(world, receiver, first)
    receiver.send(p.unsubscribe(8, "+/x"), p.subscribe(9, ("b/x", 1)))
    await world.go(0.1)
    receiver = await interrupt(world, receiver, then)
    sender = await world.connect("s")
    sender.send(p.publish("b/x", b"2", 1, 4))
    await world.go(0.1)
    got = await acknowledged(world, receiver)
    assert list(dict.fromkeys(got)) == [b"a", b"b", b"1", b"2"]
    await check_promises(world)


@pytest.mark.mqtt("MQTT-4.6.0-6")
@pytest.mark.parametrize("then", ["nothing", "killed", "frozen", "restarted"])
@in_world(max_ack_pending=1)
async def test_a_subscription_may_link_filters_for_which_messages_wait(
    world: World, then: str
) -> None:
    receiver = await world.connect("r", filters=[("a/x", 1), ("b/x", 1)])
    sender = await world.connect("s")
    topics = ["a/x", "a/x", "b/x", "b/x", "b/x"]
    sender.send(*(p.publish(one, b"%d" % n, 1, n) for n, one in enumerate(topics, 1)))
    await world.go(0.1)
    receiver.send(p.subscribe(9, ("+/x", 2)))
    await world.go(0.1)
    sender.send(p.publish("b/x", b"6", 1, 6))
    await world.go(0.1)
    receiver.send(p.unsubscribe(9, "+/x"))
    await world.go(0.1)
    receiver = await interrupt(world, receiver, then)
    sender = await world.connect("s")
    sender.send(p.publish("b/x", b"7", 1, 7), p.publish("a/x", b"8", 1, 8))
    await world.go(0.1)
    got = list(dict.fromkeys(await acknowledged(world, receiver)))
    assert [packet for packet in got if packet in b"128"] == [b"1", b"2", b"8"]
    assert [packet for packet in got if packet in b"34567"] == [b"%d" % n for n in range(3, 8)]
    await check_promises(world)


@pytest.mark.mqtt("MQTT-3.10.4-3")
@in_world(max_ack_pending=1)
async def test_messages_in_an_abandoned_queue_may_belong_to_another_subscription(
    world: World,
) -> None:
    receiver = await world.connect("r", filters=[("a/x", 2), ("+/x", 1), ("b/x", 1)])
    sender = await world.connect("s")
    sender.send(p.publish("a/x", b"a", 1, 1), p.publish("a/x", b"b", 1, 2))
    await world.go(0.1)
    sender.send(p.publish("b/x", b"1", 1, 3))  # waits behind what waits for a/x
    await world.go(0.1)
    receiver.send(p.unsubscribe(9, "+/x", "a/x"))
    await world.go(0.1)
    assert (await acknowledged(world, receiver))[-1] == b"1"
    await check_promises(world)


@in_world(message_cache=1)
async def test_a_retained_message_that_waits_twice_is_sent_for_itself_alone(world: World) -> None:
    """Its second copy stood behind a message that was still to be read: it went out as that one."""
    sender = await world.connect("s")
    for n in (1, 2):
        sender.send(p.publish(f"k/{n}", b"%d" % n, 1, n, retain=True))
        await world.go(0.1)
    window = world.broker.node.delivery_limits
    world.broker.node.delivery_limits = window._replace(window=0)
    receiver = await world.connect("r", filters=[("k/2", 1)])
    receiver.send(p.subscribe(9, ("k/#", 1)))
    await world.go(0.1)
    # 2, 1 and 2 wait. Only 2 is at hand: it was published last.
    receiver.send(p.disconnect())
    await world.go(0.1)
    world.broker.node.delivery_limits = window
    receiver = await world.connect("r", present=True)
    assert await acknowledged(world, receiver) == [b"2", b"1", b"2"]
    await check_promises(world)
