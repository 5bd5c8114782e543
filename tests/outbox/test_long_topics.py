"""What the outbox remembers about topics is small, however long they are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from outbox.mqtt.topic_lines import TopicMap, parse_topic_line
from outbox.selection import Selection
from outbox.sink import OutboxMessage
from outbox.sinks.cloud_events import EventEncoder
from outbox.sinks.span_json import attribute_json, span_json

_COUNT = 400
_BYTES = 50_000


def _select() -> Callable[[str], object]:
    return Selection(["other/#", "#"]).is_due


def _rename() -> Callable[[str], object]:
    return TopicMap([parse_topic_line("# both 1")]).outgoing


def _take_in() -> Callable[[str], object]:
    return TopicMap([parse_topic_line("# both 1")]).incoming


def _encode() -> Callable[[str], object]:
    encoder = EventEncoder("mylog")
    return lambda topic: encoder.encode(OutboxMessage(1, 1, 1, 0, topic, b"x", 1, False, "dev1"))


def _attribute() -> Callable[[str], object]:
    return lambda topic: attribute_json("messaging.destination.name", topic)


def _span() -> Callable[[str], object]:
    return lambda topic: span_json(f"publish {topic}", 2, ("a", "b", ""), (1, 2), b"")


@pytest.mark.parametrize("make", [_select, _rename, _take_in, _encode, _attribute, _span])
def test_long_topics_are_not_remembered(make: Callable[[], Callable[[str], object]]) -> None:
    use = make()
    use("warm")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(_COUNT):
            use(f"{number}/" + "x" * _BYTES)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 10 * _BYTES
