"""What a hostile review found, each kept from coming back."""

from __future__ import annotations

import asyncio

import pytest
from harness import packets as p
from harness.packets import Connack, Puback, Publish, Suback

from actors.auth import AuthResult
from simulation.world import SimClient, World, simulate


async def acknowledged(world: World, receiver: SimClient) -> list[bytes]:
    """Acknowledge what comes until nothing more does; give the payloads in order."""
    got: list[bytes] = []
    for _ in range(60):
        arrived = [one for one in receiver.take() if isinstance(one, Publish)]
        got += [one.payload for one in arrived]
        receiver.send(*(p.puback(one.packet_id or 0) for one in arrived))
        await world.go(0.1)
    return got


@pytest.mark.mqtt("MQTT-3.1.4-2", "MQTT-3.1.4-4")
@pytest.mark.parametrize("clean", [True, False])
def test_a_connect_in_the_wake_of_a_disconnect_gets_a_session_that_listens(*, clean: bool) -> None:
    async def scenario() -> None:
        async with World().running() as world:
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
            assert [one.payload for one in answers if isinstance(one, Publish)] == [b"x"]

    simulate(scenario)


@pytest.mark.mqtt("MQTT-3.10.4-3", "MQTT-4.6.0-6")
@pytest.mark.parametrize("leaving", ["b/#", "b/x"])
def test_unsubscribing_one_of_two_overlapping_filters_loses_nothing(leaving: str) -> None:
    async def scenario() -> None:
        async with World(max_ack_pending=10).running() as world:
            receiver = await world.connect("r", filters=[("b/#", 1), ("b/x", 1)])
            sender = await world.connect("s")
            sender.send(*(p.publish("b/x", b"%d" % n, 1, n) for n in range(1, 31)))
            await world.go(1)
            receiver.send(p.unsubscribe(9, leaving))
            await world.go(1)
            got = await acknowledged(world, receiver)
            assert got == [b"%d" % n for n in range(1, 31)]

    simulate(scenario)


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_a_better_subscription_does_not_let_new_messages_overtake_old_ones() -> None:
    async def scenario() -> None:
        async with World(max_ack_pending=5).running() as world:
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

    simulate(scenario)


@pytest.mark.mqtt("MQTT-3.8.4-5")
def test_a_filter_repeated_in_one_packet_is_replayed_once() -> None:
    async def scenario() -> None:
        async with World().running() as world:
            sender = await world.connect("s")
            sender.send(p.publish("kept", b"x", 1, 1, retain=True))
            await world.go(1)
            receiver = await world.connect("r")
            receiver.send(p.subscribe(1, *[("#", 1)] * 50))
            await world.go(1)
            answers = receiver.take()
            assert Suback(1, (1,) * 50) in answers
            assert sum(isinstance(one, Publish) for one in answers) == 1

    simulate(scenario)


def test_what_waits_at_the_gate_is_bounded_and_arrives_when_it_opens() -> None:
    async def scenario() -> None:
        async with World(max_outbound_bytes=100_000).running() as world:
            receiver = await world.connect("r", filters=[("t", 1)])
            sender = await world.connect("s")
            world.log.hold()
            for n in range(1, 101):
                sender.send(p.publish("t", b"%d " % n + bytes(10_000), 1, n))
                await world.go(0.01)
            assert world.broker.journal.gated < 300_000
            world.log.release()
            got = await acknowledged(world, receiver)
            assert [int(payload.split(b" ")[0]) for payload in got] == list(range(1, 101))

    simulate(scenario)


def test_a_resumed_client_that_reads_nothing_is_sent_no_more_than_it_may_have() -> None:
    async def scenario() -> None:
        async with World(max_outbound_bytes=100_000).running() as world:
            receiver = await world.connect("r", filters=[("t", 1)])
            sender = await world.connect("s")
            for n in range(1, 101):
                sender.send(p.publish("t", b"%d " % n + bytes(10_000), 1, n))
                await world.go(0.01)
            first = [one for one in receiver.take() if isinstance(one, Publish)]
            assert len(first) == 100
            receiver.drop()
            await world.go(1)
            again = SimClient(world)
            again.send(p.connect("r", clean=False))
            await world.go(3)
            resent = [one for one in again.take() if isinstance(one, Publish)]
            assert [one.packet_id for one in resent] == [one.packet_id for one in first]
            assert all(one.dup for one in resent)

    simulate(scenario)


def test_a_login_that_nobody_waits_for_is_given_up() -> None:
    class Slow:
        def __init__(self) -> None:
            self.begun = self.cancelled = 0

        def check_now(self, _username: str | None, _password: bytes | None) -> AuthResult | None:
            return None

        async def check(self, _username: str | None, _password: bytes | None) -> AuthResult:
            self.begun += 1
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return AuthResult.ACCEPTED

        def close(self) -> None:
            """Nothing to do."""

    async def scenario() -> None:
        async with World(connect_timeout=5.0).running() as world:
            slow = Slow()
            world.broker.authenticator = slow
            gone, stays = SimClient(world), SimClient(world)
            gone.send(p.connect("a", username="u", password=b"p"))
            stays.send(p.connect("b", username="u", password=b"p"))
            await world.go(1)
            gone.drop()
            await world.go(1)
            assert (slow.begun, slow.cancelled) == (2, 1)
            await world.go(10)
            assert (slow.begun, slow.cancelled) == (2, 2)

    simulate(scenario)


@pytest.mark.mqtt("MQTT-3.1.2-6")
@pytest.mark.parametrize("clean", [True, False])
def test_a_new_session_gets_nothing_that_was_meant_for_the_one_before(*, clean: bool) -> None:
    """Not even if the one before unsubscribed in the very turn in which it ended."""

    async def scenario() -> None:
        async with World().running() as world:
            old = await world.connect("c", clean=clean, filters=[("t", 1)])
            sender, new = await world.connect("s"), SimClient(world)
            sender.send(p.publish("t", b"x", 1, 1))
            old.send(p.publish("t", b"y", 1, 2), p.unsubscribe(3, "t"), p.disconnect())
            new.send(p.connect("c", clean=True))
            await world.go(1)
            assert new.take() == [Connack(0)]

    simulate(scenario)


@pytest.mark.mqtt("MQTT-3.3.5-1")
def test_a_message_keeps_its_qos_when_one_of_two_filters_is_lowered_in_its_turn() -> None:
    async def scenario() -> None:
        async with World().running() as world:
            receiver = await world.connect("r", filters=[("t", 2), ("#", 1)])
            receiver.send(p.publish("t", b"x", 1, 5), p.subscribe(6, ("t", 0)))
            await world.go(1)
            got = [one for one in receiver.take() if isinstance(one, Publish)]
            assert [(one.payload, one.qos) for one in got] == [(b"x", 1)]

    simulate(scenario)
