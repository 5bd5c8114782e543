"""Sessions and wills end at their time by the times of records, also where a record stays open."""

from collections.abc import Callable

import pytest
from harness import packets as p
from harness.plainaudit import violations

from actors.session.node_context import NodeContext
from eventstore.format.events import SessionExpired
from projections.audit.rule_table import Rule
from simulation.loop import simulate
from simulation.world import World

pytestmark = pytest.mark.plain


def broken_rules(before: Callable[[World], object] = lambda _world: None) -> set[str]:
    """Let a session expire, and return the rules that the log violates.

    Until then a record stays open: the one before it is not on disk.
    """

    async def scenario() -> set[str]:
        world = World(session_expiry=2.0)
        async with world.running():
            before(world)
            writer = await world.connect("w")
            client = await world.connect("c", filters=[("t", 1)])
            client.drop()
            await world.go(1.4)
            world.log.hold()
            for pid in (1, 2, 3):
                writer.send(p.publish("x", b"1", 1, pid))
                await world.go(0.01)
            await world.go(0.9)
            world.log.release()
            await world.go(2)
        assert world.disk.events(SessionExpired)
        return {violation.rule for violation in violations(world.disk.decoded())}

    return simulate(scenario)


def test_a_session_expires_by_the_time_of_its_record() -> None:
    assert broken_rules() == set()


def test_a_broker_that_is_a_part_of_a_second_early_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expires_in = NodeContext.expires_in
    monkeypatch.setattr(
        NodeContext, "expires_in", lambda node, state: expires_in(node, state) - 0.9
    )
    assert broken_rules() == {Rule.SESSION}


def test_a_broker_that_goes_by_its_clock_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that joins an open record has the time of the first event of the record."""
    monkeypatch.setattr(NodeContext, "log_ms", property(lambda node: node.clock.time_ms()))
    assert broken_rules() == {Rule.SESSION}
