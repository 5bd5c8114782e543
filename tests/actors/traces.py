"""Traces of a simulated broker, and clients that do what is traced."""

from typing import Any

import orjson
from harness import packets as p
from harness.packets import Publish
from simulation.world import World

from actors.inspection.tracer import Tracer
from eventstore.format.positions import position

TOKEN = "T" * 22
Line = dict[str, Any]


class Sink:
    """What a tracer publishes."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def publish(self, subject: str, data: bytes) -> None:
        self.sent.append((subject, data))

    def messages(self, token: str = TOKEN) -> list[dict[str, Any]]:
        return [orjson.loads(data) for subject, data in self.sent if subject.endswith(token)]

    def lines(self, token: str = TOKEN, **wanted: object) -> list[Line]:
        return [
            line
            for message in self.messages(token)
            for line in message["lines"]
            if all(line.get(key) == value for key, value in wanted.items())
        ]

    def skipped(self, token: str = TOKEN) -> int:
        return sum(message["skipped"] for message in self.messages(token))

    def kinds(self, token: str = TOKEN) -> list[tuple[str, str]]:
        return [(line["kind"], line["what"]) for line in self.lines(token)]


def tracing(world: World, **wanted: str) -> tuple[Tracer, Sink]:
    """Return a tracer, with one trace if something is wanted, and what it publishes."""
    sink = Sink()
    tracer = Tracer(world.broker.node, world.broker.admission, sink.publish)
    if wanted:
        tracer.start({"token": TOKEN, **wanted})
    return tracer, sink


def overrides(world: World) -> list[str]:
    """Which observers there are at present, and which actors have one."""
    broker = world.broker
    journal = broker.node.journal
    observers = {"kernel": broker.kernel.observer, "journal": journal.observer}
    found = [name for name, observer in observers.items() if observer is not None]
    found += ["on_spawn"] if broker.kernel.on_spawn is not None else []
    found += ["on_connect"] if broker.admission.on_connect is not None else []
    found += ["watch"] if broker.node.observers else []
    return found + [actor.actor_urn for actor in broker.kernel if actor.observer is not None]


def logged(world: World) -> dict[int, str]:
    """The types of the events on disk by position."""
    return {
        position(record.sequence, index): event.e
        for record in world.disk.decoded()
        for index, event in record.events()
    }


async def talk(world: World) -> None:
    """Two clients: everything that a client commonly does."""
    receiver = await world.connect("r", filters=[("hall/#", 1), ("cmd/+", 2)])
    sender = await world.connect("s")
    sender.send(
        p.publish("hall/door", b"open!", 1, 7),
        p.publish("hall/door", b"free"),
        p.publish("cmd/x", b"twice", 2, 8),
    )
    await world.go(0.5)
    sender.send(p.pubrel(8))
    await world.go(0.5)
    for one in receiver.take():
        if isinstance(one, Publish) and one.qos == 1:
            receiver.send(p.puback(one.packet_id or 0))
        elif isinstance(one, Publish) and one.qos == 2:
            receiver.send(p.pubrec(one.packet_id or 0))
            await world.go(0.2)
            receiver.send(p.pubcomp(one.packet_id or 0))
    await world.go(0.5)
    receiver.send(p.pingreq())
    await world.go(0.2)
    receiver.send(p.unsubscribe(5, "cmd/+"), p.disconnect())
    await world.go(0.5)
