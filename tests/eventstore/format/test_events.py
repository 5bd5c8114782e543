import functools
from dataclasses import fields
from typing import Any, get_args

import orjson
import pytest
from samples import every_event, turn_events

from eventstore.format import event_parsing
from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import (
    Event,
    UnknownEvent,
    UnreadableEvent,
    entries,
    json_schema,
    parse_event,
    upcast,
)
from eventstore.format.events import SessionClosed
from eventstore.format.turn_events import TurnEvent


def written(event: Event) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(orjson.dumps(json_object(event)))
    return read


def test_the_samples_hold_every_type() -> None:
    assert {type(event) for event in every_event()} == set(get_args(Event))
    assert {type(event) for event in turn_events()} == set(get_args(TurnEvent))


@pytest.mark.parametrize("event", every_event(), ids=lambda event: event.e)
def test_written_events_are_read_back(event: Event) -> None:
    raw = written(event)
    assert raw["e"] == type(event).__name__
    read = parse_event(raw)
    assert type(read) is type(event)
    assert written(read) == raw
    assert entries(read) == entries(event)


schema_of_events = functools.cache(json_schema)


@pytest.mark.parametrize("event", every_event(), ids=lambda event: event.e)
def test_schema_describes_every_field(event: Event) -> None:
    schema = schema_of_events()["$defs"][event.e]
    assert set(schema["properties"]) == {one.name for one in fields(event)}


def test_entries_count_one_for_each_message() -> None:
    counts: dict[str, int] = {}
    for event in every_event():
        counts[event.e] = max(counts.get(event.e, 0), entries(event))
    several = {name: count for name, count in counts.items() if count > 1}
    assert several == {
        "MessagePublished": 3,
        "MessagesCarried": 3,
        "ForwardRefused": 2,
        "Delivered": 3,
        "Queued": 5,
        "Redelivered": 2,
        "Acked": 3,
        "Received": 2,
        "Refused": 2,
        "InboundReplaced": 2,
        "Released": 3,
        "Assigned": 3,
        "Returned": 3,
        "RetainedSnapshot": 2,
    }


def test_a_field_of_a_later_version_is_ignored() -> None:
    raw = {"e": "SessionClosed", "v": 1, "session": "c", "reason": "closed", "later": 1}
    assert parse_event(raw) == SessionClosed("c", "closed")


def test_a_field_may_be_missing_when_it_has_a_default() -> None:
    assert parse_event({"e": "SessionClosed", "session": "c", "reason": "r"}).v == 1


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (
            {"e": "Teleported", "v": 1},
            "event 'Teleported' version 1",
        ),
        (
            {"e": "Acked", "v": 2, "session": "c", "pids": []},
            "event 'Acked' version 2",
        ),
        (
            {"v": 1},
            "event None version 1",
        ),
        (
            {"e": ["Acked"], "v": 1},
            "event ['Acked'] version 1",
        ),
        (
            {"e": "Acked", "v": {}, "session": "c", "pids": []},
            "event 'Acked' version {}",
        ),
    ],
)
def test_types_and_versions_that_a_later_foldmq_wrote(raw: dict[str, Any], what: str) -> None:
    with pytest.raises(UnknownEvent) as caught:
        parse_event(raw)
    assert str(caught.value) == (
        f"{what} is not known to this foldmq: use the one that wrote the log, or a later one"
    )
    assert caught.value.exit_code == 78


def test_a_very_long_type_is_cut_in_the_message() -> None:
    with pytest.raises(UnknownEvent) as caught:
        parse_event({"e": "x" * 100_000, "v": "y" * 100_000})
    assert len(str(caught.value)) < 300


def test_a_bad_field_is_named_with_its_value() -> None:
    with pytest.raises(UnreadableEvent) as caught:
        parse_event({"e": "Acked", "v": 1, "session": "c", "pids": [1, "seven"]})
    assert "event Acked, field pids.1" in str(caught.value)
    assert "'seven'" in str(caught.value)
    assert caught.value.exit_code == 65


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UnreadableEvent, match=r"event Acked: field session is missing"):
        parse_event({"e": "Acked", "v": 1, "pids": []})


@pytest.fixture
def old_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """SessionClosed as two earlier versions might have had it."""
    monkeypatch.setitem(
        event_parsing.UPCASTERS,
        ("SessionClosed", -1),
        lambda raw: {**raw, "v": 0, "session": raw["client"]},
    )
    monkeypatch.setitem(
        event_parsing.UPCASTERS,
        ("SessionClosed", 0),
        lambda raw: {**raw, "v": 1, "reason": "closed" if raw["clean_end"] else "keep_alive"},
    )


@pytest.mark.usefixtures("old_versions")
def test_old_versions_go_through_every_upcaster() -> None:
    expected = SessionClosed("c", "keep_alive")
    middle = {"e": "SessionClosed", "v": 0, "session": "c", "clean_end": False}
    oldest = {"e": "SessionClosed", "v": -1, "client": "c", "clean_end": False}
    assert parse_event(middle) == expected
    assert parse_event(oldest) == expected
    assert oldest["v"] == -1, "what was read is not changed"


@pytest.mark.usefixtures("old_versions")
@pytest.mark.parametrize("raw", [{"e": ["Acked"], "v": 1}, {"e": "Acked", "v": [0]}])
def test_invalid_types_and_versions_are_not_upcast(raw: dict[str, Any]) -> None:
    with pytest.raises(UnknownEvent):
        parse_event(raw)


@pytest.mark.usefixtures("old_versions")
def test_todays_version_is_not_upcast() -> None:
    today = {"e": "SessionClosed", "v": 1, "session": "c", "reason": "x"}
    assert upcast(today) is today
