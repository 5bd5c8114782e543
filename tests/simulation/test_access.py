"""Who a client is: owners of sessions, claimed names, logins that are given up, debts."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from harness import packets as p

from actors.access.identity import AuthResult, Verdict
from actors.limits.options import LimitOptions, Quota
from simulation.loop import simulate
from simulation.network import SimClient
from simulation.test_permissions import OPEN, permit, topics
from simulation.world import World

if TYPE_CHECKING:
    from actors.access.identity import Credentials

RULES = "[[allow]]\nusers = ['admin']\nboth = ['#']\n"


class Believing:
    """Whoever names a user is that user, as if a password had been looked at."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def check_now(self, shown: Credentials) -> Verdict | None:
        return Verdict(AuthResult.ACCEPTED, shown.username)

    async def check(self, shown: Credentials) -> Verdict:
        raise AssertionError(shown)

    def close(self) -> None:
        """Nothing to do."""


class Slow(Believing):
    """Needs a while."""

    def check_now(self, _shown: Credentials) -> Verdict | None:
        return None

    async def check(self, shown: Credentials) -> Verdict:
        await asyncio.sleep(1)
        return Verdict(AuthResult.ACCEPTED, shown.username)


async def answer(world: World, *rest: bytes, wait: float = 0.2, **about: Any) -> tuple[Any, Any]:
    """A client, and the code of its CONNACK; None if there is none."""
    client = SimClient(world)
    client.send(p.connect(about.pop("client_id", "c"), **about), *rest)
    await world.go(wait)
    codes = [one.code for one in client.received if isinstance(one, p.Connack)]
    return client, codes[0] if codes else None


def test_a_session_belongs_to_the_user_who_made_it() -> None:
    async def scenario() -> None:
        async with World().running() as world:
            world.broker.authenticator = Believing()
            first, code = await answer(world, username="ann", clean=False)
            assert code == 0
            for clean in (False, True):
                for user in ("bob", None):
                    assert (await answer(world, username=user, clean=clean))[1] == 2
            first.send(p.pingreq())
            await world.go(0.2)
            assert first.open, "nobody took it over"
            first.send(p.disconnect())
            await world.go(1)
            assert (await answer(world, username="bob", clean=False))[1] == 2
            assert (await answer(world, username="ann", clean=False))[1] == 0

    simulate(scenario)


def test_a_session_of_nobody_and_one_that_ended_are_free() -> None:
    async def scenario() -> None:
        async with World().running() as world:
            world.broker.authenticator = Believing()
            nobody, code = await answer(world, clean=False)
            nobody.send(p.disconnect())
            await world.go(1)
            assert code == 0
            client, code = await answer(world, username="ann", clean=True)
            client.send(p.disconnect())
            await world.go(1)
            assert code == 0
            assert (await answer(world, username="bob", clean=False))[1] == 0

    simulate(scenario)


def test_names_that_nobody_looked_at_give_no_rights_and_own_nothing() -> None:
    async def scenario() -> None:
        async with World().running() as world:
            reader = await world.connect("r", filters=[("#", 1)])
            client, code = await answer(world, username="admin", clean=False)
            assert code == 0
            permit(world, RULES)
            client.send(p.publish("x", b"1", 1, 1))
            await world.go(0.5)
            assert topics(reader) == []
            assert (await answer(world, username="somebody else", clean=False))[1] == 0

    simulate(scenario)


def test_logins_that_are_given_up_before_they_begin_leave_room_for_others() -> None:
    async def scenario() -> None:
        async with World().running() as world:
            world.broker.authenticator = Slow()
            for number in range(1200):
                client = SimClient(world)
                client.send(p.connect(f"c{number}", username="ann"))
                client.transport.drop()
                if number % 100 == 0:
                    await world.go(0.01)
            await world.go(3)
            assert (await answer(world, username="ann", wait=2))[1] == 0

    simulate(scenario)


def test_what_a_user_published_is_held_against_the_next_connection() -> None:
    async def scenario() -> None:
        bounds = LimitOptions(user=Quota(publish_rate=10))
        async with World(bounds=bounds).running() as world:
            world.broker.authenticator = Believing()
            reader, _ = await answer(world, p.subscribe(1, ("#", 0)), client_id="r")
            burst = [p.publish("t", b"x") for _ in range(200)]
            client, code = await answer(world, *burst, username="ann", client_id="a")
            client.transport.drop()
            assert (code, len(topics(reader))) == (0, 200)
            assert (await answer(world, *burst, username="ann", client_id="b"))[1] == 3
            assert (await answer(world, username="bob", client_id="d"))[1] == 0
            await world.go(20)
            assert (await answer(world, username="ann", client_id="e"))[1] == 0
            assert len(topics(reader)) == 200
            assert world.broker.guard.refused.counts["publish_debt"] == 1

    simulate(scenario)


def test_a_change_of_permissions_holds_for_a_connect_that_waits() -> None:
    async def scenario() -> None:
        async with World(jail_time=5.0).running() as world:
            permit(world, OPEN)
            reader = await world.connect("r", filters=[("#", 1)])
            await world.connect("x")
            await world.connect("x")
            waiting, code = await answer(world, client_id="x", clean=False)
            assert code is None
            permit(world, OPEN + "[[deny]]\nclients = ['x']\npublish = ['secret']\n")
            await world.go(10)
            waiting.send(p.publish("secret", b"1", 1, 1))
            await world.go(1)
            assert topics(reader) == []

    simulate(scenario)
