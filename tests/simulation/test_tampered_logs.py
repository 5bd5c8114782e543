"""The log of a broker, changed by hand so that it breaks a promise: the audit says which."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from harness import packets as p
from harness.logs import LogBuilder
from harness.plainaudit import audit_plainly, checked_records

from eventstore.format.records import Record, decode_record
from eventstore.reasons import DROP_REASONS
from projections.audit.rule_table import Rule
from simulation.loop import simulate
from simulation.world import World

Raw = dict[str, Any]
QUARTER_MS = 900_000


async def _scenario(world: World) -> None:
    """Wills that are published and discarded, a queue that fills and is sent, drops."""
    watcher = await world.connect("watcher", filters=[("will/#", 1)])
    lost = await world.connect("lost", will=p.Will("will/lost", b"gone", 1))
    kind = await world.connect("kind", will=p.Will("will/kind", b"gone", 1))
    await world.go(2)
    lost.drop()
    await world.go(2)
    watcher.send(p.puback(1))
    kind.send(p.disconnect())
    await world.go(2)
    reader = await world.connect("reader", filters=[("t", 1)])
    sender = await world.connect("sender")
    await world.go(2)
    sender.send(p.publish("t", b"first", 1, 1))
    await world.go(2)
    reader.send(p.puback(1))
    await world.go(2)
    reader.send(p.disconnect())
    await world.go(2)
    for number in range(2, 6):
        sender.send(p.publish("t", b"%d" % number, 1, number))
        await world.go(2)
    reader = await world.connect("reader", present=True)
    await world.go(2)
    reader.send(*(p.puback(pid) for pid in (2, 3, 4)))
    await world.go(2)
    sender.send(p.disconnect())
    await world.go(2)


@cache
def _log() -> tuple[bytes, ...]:
    found: list[bytes] = []

    async def whole() -> None:
        async with World(max_queued_messages=3).running() as world:
            await _scenario(world)
            found.extend(world.disk.records)

    simulate(whole)
    return tuple(found)


class Tampered:
    """The records of the log, to be changed."""

    def __init__(self) -> None:
        self.records = [decode_record(at, data) for at, data in enumerate(_log(), 1)]
        for record in self.records:
            record.raw_events[:] = deepcopy(record.raw_events)

    def find(self, kind: str, **fields: Any) -> tuple[Record, Raw]:
        """Return the first event of a type with these fields, and its record."""
        for record in self.records:
            for raw in record.raw_events:
                if raw["e"] == kind and all(raw.get(key) == one for key, one in fields.items()):
                    return record, raw
        raise AssertionError(f"no {kind} with {fields}")

    def remove(self, kind: str, **fields: Any) -> tuple[Record, Raw]:
        """Remove the first event of a type with these fields; return its record and the event."""
        record, raw = self.find(kind, **fields)
        record.raw_events[:] = [one for one in record.raw_events if one is not raw]
        return record, raw

    def change(self, kind: str, changes: Raw, **fields: Any) -> None:
        """Change the first event of a type with these fields."""
        self.find(kind, **fields)[1].update(changes)

    def said(self) -> list[tuple[str, str]]:
        """Return what an audit says: rules and sentences."""
        log = LogBuilder("sim")
        for one in self.records:
            log.record(
                *one.raw_events, payloads=[bytes(one.payload)], time_ms=one.time_ms, part=one.part,
                last=one.last,
            )  # fmt: skip
        history = dict(enumerate(log.records, 1))
        return [(str(one.rule), one.what) for one in audit_plainly("sim", checked_records(history))]


def will_vanishes(log: Tampered) -> None:
    record, _ = log.remove("WillFired", session="lost")
    record.raw_events[:] = [one for one in record.raw_events if one["e"] == "SessionClosed"]
    log.remove("Acked", session="watcher")


def will_is_not_delivered(log: Tampered) -> None:
    log.remove("Delivered", session="watcher")
    log.remove("Acked", session="watcher")


def will_is_published_twice(log: Tampered) -> None:
    record, fired = log.find("WillFired", session="lost")
    published = next(one for one in record.raw_events if one["e"] == "MessagePublished")
    record.raw_events += [deepcopy(fired), deepcopy(published)]


def will_is_published_after_disconnect(log: Tampered) -> None:
    """Its topic has no subscriber: the log keeps all other guarantees."""
    record, cancelled = log.find("WillCancelled", session="kind")
    log.find("WillArmed", session="kind")[1]["topic"] = "nobody"
    published = deepcopy(log.find("MessagePublished", session="lost")[1])
    published |= {"session": "kind", "topics": ["nobody"]}
    cancelled["e"] = "WillFired"
    record.raw_events.insert(record.raw_events.index(cancelled) + 1, published)
    log.records[log.records.index(record)] = replace(record, payload=memoryview(b"gone"))


def will_has_another_payload(log: Tampered) -> None:
    log.change("MessagePublished", {"at": 0, "sizes": 3}, session="lost")


def will_has_another_qos(log: Tampered) -> None:
    log.change("MessagePublished", {"qos": 2}, session="lost")


def will_is_retained(log: Tampered) -> None:
    log.change("MessagePublished", {"retain": True}, session="lost")


def queue_had_room(log: Tampered) -> None:
    limits = log.find("LimitsApplied")[1]["limits"]
    log.change("LimitsApplied", {"limits": {**limits, "max_queued_messages": 9}})


def queue_stands_still(log: Tampered) -> None:
    """The client is back, and nothing is sent to it for a quarter of an hour."""
    log.remove("Delivered", session="reader", queued=3)
    log.remove("Acked", session="reader", pids=[[2, 3, 1]])
    last = log.records[-1]
    log.records[-1] = replace(last, time_ms=last.time_ms + QUARTER_MS)


def delivered_before_it_was_published(log: Tampered) -> None:
    record, sent = log.remove("Delivered", session="reader", queued=-1)
    earlier = log.records[log.records.index(record) - 1]
    earlier.raw_events.append(sent)


def two_messages_change_places(log: Tampered) -> None:
    _, sent = log.find("Delivered", session="reader", queued=3)
    first, count, step = sent["refs"][0]
    refs = [first + number * step for number in range(count)]
    sent["refs"] = [refs[1], refs[0], *refs[2:]]


def acknowledged_before_it_was_sent(log: Tampered) -> None:
    log.change("Acked", {"pids": [9]}, session="reader")


TAMPERED: list[tuple[Callable[[Tampered], None], str, str]] = [
    (will_vanishes, Rule.WILL, "the will stays although it had to be published"),
    (will_is_not_delivered, Rule.UNDELIVERED, "was neither delivered nor queued nor dropped"),
    (will_is_published_twice, Rule.WILL, "the will was published a second time"),
    (
        will_is_published_after_disconnect,
        Rule.WILL,
        "the will was published although it had to be discarded: the client sent DISCONNECT",
    ),
    (will_has_another_payload, Rule.WILL, "published with another content"),
    (will_has_another_qos, Rule.WILL, "published with another QoS"),
    (will_is_retained, Rule.WILL, "published with another RETAIN"),
    (queue_had_room, Rule.DROP, "but 3 of 9 allowed messages waited"),
    (queue_stands_still, Rule.PROGRESS, "with the client connected and its window open"),
    (delivered_before_it_was_published, Rule.ORDER, ""),
    (two_messages_change_places, Rule.QUEUE, "messages left the queue that were not at its head"),
    (acknowledged_before_it_was_sent, Rule.ACKNOWLEDGEMENT, "PUBACK 9: not in flight at QoS 1"),
]


def test_the_log_violates_no_guarantee() -> None:
    assert Tampered().said() == []


@pytest.mark.parametrize(
    ("change", "rule", "what"), TAMPERED, ids=[one.__name__ for one, _, _ in TAMPERED]
)
def test_violations_are_reported(change: Callable[[Tampered], None], rule: str, what: str) -> None:
    log = Tampered()
    change(log)
    said = log.said()
    assert [one for one in said if one[0] == rule and what in one[1]], said


UNCHECKED = {"queue_messages", "lost"}
"""The reason that is given, and that of a salvage, whose record may have been cut off."""


@pytest.mark.parametrize("reason", [*sorted(set(DROP_REASONS) - UNCHECKED), "banana", ""])
def test_a_message_is_dropped_for_its_reason_only(reason: str) -> None:
    """The queue was full of messages, and nothing else was wrong."""
    log = Tampered()
    log.change("MessageDropped", {"reason": reason})
    assert [rule for rule, _ in log.said()] == [Rule.DROP]
