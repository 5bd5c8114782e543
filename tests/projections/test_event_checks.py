"""The checks of the consistency of an MQTT 5 event."""

from pathlib import Path

import pytest

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    MessagePublished,
    Queued,
    Refused,
    Returned,
    Subscribed,
    WillArmed,
)
from eventstore.format.node_events import MessagesCarried
from eventstore.format.records import decode_record
from projections.audit.event_checks import event_problem

GOLDEN = Path(__file__).parents[1] / "eventstore" / "golden" / "v1-level5.records"


def test_the_events_of_a_golden_log_fit_together() -> None:
    data, at = GOLDEN.read_bytes(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        record = decode_record(1, data[at + 4 : at + 4 + size])
        area = len(record.payload)
        assert [event_problem(event, area) for _, event in record.events()].count(None) > 2
        assert {event_problem(event, area) for _, event in record.events()} == {None}
        at += 4 + size


def published(**more: object) -> MessagePublished:
    event = MessagePublished("c", 1, False, ["t"], [], [1, 2], 1, 5, 2, blocks=[2, 3])
    event.block_of = [1, 2]
    for name, value in more.items():
        setattr(event, name, value)
    return event


LENGTHS = "its columns differ in length"
MISSING = "a block of properties is missing"
OUTSIDE = "its properties are not in the record"


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (published(), None),
        (published(block_of=[0, 2]), None),
        (published(block_of=[1]), LENGTHS),
        (published(blocks=[], block_of=[1, 1]), LENGTHS),
        (published(block_of=[1, 3]), MISSING),
        (published(block_of=[-1, 1]), MISSING),
        (published(at=4), OUTSIDE),
        (published(blocks_at=[0, 3]), None),
        (published(blocks_at=[0]), LENGTHS),
        (published(blocks_at=[0, 6]), OUTSIDE),
        (published(blocks=[-2, 3]), OUTSIDE),
        (MessagesCarried([1, 2], ["t"], [], 1, 0, 2, expires=[5]), LENGTHS),
        (MessagesCarried([1, 2], ["t"], [], 1, 0, 2, expires=5), None),
        (Queued("c", "t", 1, [1, 2], 2, expires=[5]), LENGTHS),
        (Queued("c", "t", 1, [1, 2], 2, expires=[5, 0]), None),
        (WillArmed("c", "w", 1, False, 2, 3, blocks=[3]), None),
        (WillArmed("c", "w", 1, False, 2, 3, blocks=[4]), OUTSIDE),
        (WillArmed("c", "w", 1, False, 2, 3, blocks=[1, 2]), LENGTHS),
        (Acked("c", [1, 2], reasons=[0]), LENGTHS),
        (Refused("c", [1, 2], [128, 128]), None),
        (Refused("c", [1, 2], [128]), LENGTHS),
        (Returned("c", "$share/g/t", [1], [5, 6]), LENGTHS),
        (Subscribed("c", [("a", 1)], options=[4, 4]), LENGTHS),
    ],
)
def test_columns_that_do_not_fit_are_found(event: Event, problem: str | None) -> None:
    assert event_problem(event, 7) == problem
