from typing import Any

import orjson
import pytest
from harness.examples import examples
from hypothesis import given
from hypothesis import strategies as st
from samples import every_event, mqtt5_events

from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import Event, UnreadableEvent, parse_event
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    MessagePublished,
    Queued,
    Received,
    Released,
)
from eventstore.format.fast_parse import parse_frequent

ONE_ENTRY = [
    MessagePublished("c", 1, False, ["t"], [], [5], 3, 0, 1),
    Delivered("c", "t/#", 1, [5], [1 << 20]),
    Queued("c", "t/#", 1, [1 << 20], 3),
    Acked("c", [5]),
    Received("c", [5]),
    Completed("c", [5]),
    Released("c", [5], [1 << 20]),
]
MANY_ENTRIES = [
    MessagePublished("c", 2, True, ["t", "u"], [0, 1, 0], [[5, 3, 1]], [3, 0, 7], 0, 3, will=True),
    Delivered("c", "t/#", 2, [[5, 3, 1], 9], [[1 << 20, 4, 1]], retain=True, queued=12),
    Queued("c", "t/#", 2, [9, [1 << 20, 4, 1]], 3, retain=True),
    Acked("c", [5, [7, 3, 1]]),
    Received("c", [[7, 3, 1]]),
    Completed("c", [[7, 3, -1], 6]),
    Released("c", [[7, 3, 1]], [[1 << 20, 3, 1]]),
]


def written(event: Event) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(orjson.dumps(json_object(event)))
    return read


READ_HERE = {type(event) for event in ONE_ENTRY}
LATER_FIELDS = [event for event in mqtt5_events() if type(event) in READ_HERE]


@pytest.mark.parametrize(
    "event", [*ONE_ENTRY, *MANY_ENTRIES, *LATER_FIELDS], ids=lambda event: event.e
)
def test_frequent_events_are_read_without_pydantic(event: Event) -> None:
    assert parse_frequent(written(event)) == event


@pytest.mark.parametrize("event", ONE_ENTRY, ids=lambda event: event.e)
def test_every_field_is_checked(event: Event) -> None:
    """A field that is added to an event later on cannot be forgotten here."""
    looked_at: set[str] = set()

    class Watched(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            looked_at.add(key)
            return super().__getitem__(key)

    assert parse_frequent(Watched(written(event))) == event
    assert looked_at == written(event).keys()


@pytest.mark.parametrize(
    "event",
    [event for event in every_event() if type(event) not in READ_HERE],
    ids=lambda event: event.e,
)
def test_other_types_are_left_to_parse_event(event: Event) -> None:
    assert parse_frequent(written(event)) is None


@pytest.mark.parametrize("event", LATER_FIELDS, ids=lambda event: event.e)
def test_a_later_field_that_is_wrong_is_left_to_parse_event(event: Event) -> None:
    raw = written(event)
    names = list(raw)
    for name in names[names.index("v") + 1 :]:
        broken = {**raw, name: "wrong"}
        assert parse_frequent(broken) is None
        with pytest.raises(UnreadableEvent, match=f"event {event.e}, field {name}"):
            parse_event(broken)


@pytest.mark.parametrize("version", [0, 2, True, 1.0, "1", None, []], ids=repr)
@pytest.mark.parametrize("event", ONE_ENTRY, ids=lambda event: event.e)
def test_other_versions_are_left_to_parse_event(event: Event, version: object) -> None:
    assert parse_frequent({**written(event), "v": version}) is None


@pytest.mark.parametrize("raw", [{}, {"v": 1}, {"e": "Acked"}, {"e": [], "v": 1}, {"e": None}])
def test_invalid_events_are_left_to_parse_event(raw: dict[str, Any]) -> None:
    assert parse_frequent(raw) is None


integers = st.integers(-(1 << 63), (1 << 64) - 1)
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False) | st.text(max_size=3)
values = scalars | st.lists(scalars | st.lists(scalars, max_size=3), max_size=3)
samples = st.sampled_from([*ONE_ENTRY, *MANY_ENTRIES, *every_event()])


@examples(5)
@given(samples.map(written), st.data())
@pytest.mark.slow
def test_it_agrees_with_parse_event(raw: dict[str, Any], data: st.DataObject) -> None:
    names = st.sampled_from(sorted(raw))
    for name in data.draw(st.lists(names, max_size=2)):
        raw[name] = data.draw(values)
    for name in data.draw(st.lists(names | st.just("later"), max_size=1)):
        raw.pop(name, None)
    try:
        expected = parse_event(raw)
    except UnreadableEvent:
        assert parse_frequent(raw) is None
        return
    read = parse_frequent(raw)
    if read is not None:
        # In JSON, where true is not 1 and 1.0 is not 1.
        assert orjson.dumps(read) == orjson.dumps(expected)
