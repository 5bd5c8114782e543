"""The log records the limits and permissions that hold, and the denied subscriptions."""

import dataclasses
from pathlib import Path

import pytest
from harness import packets as p

from actors.access.rules_file import parse_rules
from actors.maintenance import retention
from eventstore.format.events import MessageDropped, SubscriptionDenied
from eventstore.format.node_events import BrokerStarted, CheckpointBegun, LimitsApplied
from simulation.checking import check_promises
from simulation.permission_worlds import OPEN, permit
from simulation.world import World, in_world

SECRETS = OPEN + "[[deny]]\nsubscribe = ['secret/#']\n"


def applied(world: World) -> list[LimitsApplied]:
    return world.disk.events(LimitsApplied)


@in_world(max_queued_messages=5, session_expiry=60.0)
async def test_limits_are_recorded_at_each_start(world: World) -> None:
    first = world.disk.decoded()[0]
    assert [type(one) for _, one in first.events()][:2] == [BrokerStarted, LimitsApplied]
    (told,) = applied(world)
    assert told.limits["max_queued_messages"] == 5
    assert told.limits["session_expiry"] == 60.0
    assert (told.permissions, told.users, told.elsewhere) == ("", "", False)
    await world.restart()
    await world.go(1)
    assert applied(world) == [told, told]


@in_world()
async def test_a_reload_records_only_changes(world: World) -> None:
    before = applied(world)
    broker = world.broker
    broker.reload(broker.node.options, broker.admission.authenticator)
    await world.go(1)
    assert applied(world) == before
    permit(world, SECRETS)
    await world.go(1)
    (told,) = applied(world)[len(before) :]
    rules = parse_rules(Path("other.toml"), "# the same\n" + SECRETS)
    assert told.permissions == rules.digest != ""
    changed = dataclasses.replace(broker.node.options, max_queued_messages=7)
    broker.reload(changed, broker.admission.authenticator)
    await world.go(1)
    assert applied(world)[-1].limits["max_queued_messages"] == 7


@in_world()
async def test_a_checkpoint_repeats_the_limits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MIN", 0)
    await world.broker.retention.checkpoint()
    await world.go(1)
    events = world.disk.events()
    begun = next(at for at, one in enumerate(events) if isinstance(one, CheckpointBegun))
    assert events[begun + 1] == applied(world)[0]


@in_world()
async def test_a_subscription_that_is_denied_is_recorded(world: World) -> None:
    permit(world, SECRETS)
    reader = await world.connect("r")
    reader.send(p.subscribe(1, ("secret/a", 1), ("open/#", 1), ("$JS/API", 1)))
    await world.go(1)
    (suback,) = (packet for packet in reader.take() if isinstance(packet, p.Suback))
    assert list(suback.codes) == [0x80, 1, 0x80]
    denied = world.disk.events(SubscriptionDenied)
    assert denied == [SubscriptionDenied("r", ["secret/a", "$JS/API"], [0x87, 0x8F])]
    await check_promises(world)


@in_world(max_queued_messages=2)
async def test_a_full_queue_drops_at_its_limit(world: World) -> None:
    reader = await world.connect("r", filters=[("t", 1)])
    reader.send(p.disconnect())
    await world.go(1)
    sender = await world.connect("s")
    sender.send(*(p.publish("t", b"%d" % one, 1, one) for one in range(1, 6)))
    await world.go(1)
    drops = world.disk.events(MessageDropped)
    assert [(drop.reason, drop.count) for drop in drops] == [("queue_messages", 3)]
    await check_promises(world)
