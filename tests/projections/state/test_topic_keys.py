"""The fold of the keys of topics: periods, repetitions and erasures."""

from __future__ import annotations

from typing import Any

import pytest

from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot, TopicsKeyed
from projections.state import topic_keys
from projections.state.topic_keys import KeysOfTopic, TopicKey, TopicKeys


def named(topic: str, number: int, begins_ms: int = 0, ends_ms: int = 0) -> TopicsKeyed:
    return TopicsKeyed([topic], [number], ["0"], begins_ms=begins_ms, ends_ms=ends_ms)


def requested(number: int, *pairs: tuple[str, int]) -> ErasureRequested:
    topics, keys = zip(*pairs, strict=True)
    return ErasureRequested(number, "ann", "request", [*topics], [*keys])


EVENTS: list[Any] = [
    named("a", 1, 10, 20),
    named("b", 2, 12, 20),
    named("a", 3, 20, 30),
    named("c", 4),
    requested(1, ("a", 1), ("c", 4)),
    Erased(1, 2),
    named("c", 5, 31, 40),
    named("b", 2, 12, 50),
]


def folded(events: list[Any], keys: TopicKeys | None = None) -> TopicKeys:
    keys = keys or TopicKeys()
    for at, event in enumerate(events, 1):
        keys.fold(event, at)
    return keys


def held(keys: TopicKeys) -> dict[str, list[tuple[int, int, int]]]:
    return {
        topic: [(key.number, key.begins_ms, key.ends_ms) for key in of_topic.keys]
        for topic, of_topic in keys.by_topic.items()
    }


def test_each_topic_has_the_keys_of_its_periods() -> None:
    keys = folded(EVENTS)
    assert held(keys) == {"a": [(3, 20, 30)], "b": [(2, 12, 50)], "c": [(5, 31, 40)]}
    assert (keys.count, keys.last, keys.erasure, keys.pending) == (3, 5, 1, [])
    assert [keys.number_of(topic) for topic in "abcd"] == [3, 2, 5, 0]
    assert keys.of("b")[0].since == 2
    assert keys.by_topic["b"].changed == 8


def test_events_that_the_state_includes_change_nothing_at_the_end() -> None:
    keys = folded(EVENTS, folded(EVENTS))
    assert held(keys) == held(folded(EVENTS))
    assert keys.count == 3


@pytest.mark.parametrize("at_once", [1, 60, 10_000])
def test_a_snapshot_repeats_the_keys(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(topic_keys, "_AT_ONCE", at_once)
    keys = folded([*EVENTS, named("a", 6, 30, 40), named("a", 7, 40, 50), requested(2, ("b", 2))])
    parts = [*keys.snapshot()]
    assert (len(parts) > 1) == (at_once < 10_000)
    again = folded([*parts])
    assert held(again) == held(keys)
    assert (again.count, again.last, again.erasure, again.pending) == (4, 7, 2, [2])
    assert held(folded([*parts], folded([*EVENTS, named("a", 6, 30, 40)]))).keys() == {*"abc"}
    plain = [*folded([named("a", 1)]).snapshot()]
    assert plain == [KeysSnapshot(["a"], [1], 1, 0)]
    assert [*TopicKeys().snapshot()] == []


def test_what_changes_between_the_parts_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_keys, "_AT_ONCE", 1)
    keys = folded([named("a", 1, 1, 2), named("a", 2, 2, 3), named("b", 3), named("c", 4)])
    parts = keys.snapshot()
    got = [next(parts)]
    keys.fold(requested(1, ("a", 2), ("b", 3)), 9)
    keys.fold(named("a", 5, 3, 4), 10)
    got += parts
    pairs = [pair for part in got for pair in zip(part.topics, part.keys, strict=True)]
    assert pairs == [("a", 1), ("a", 5), ("c", 4)]


@pytest.mark.parametrize(
    ("keys", "body"),
    [
        ((TopicKey(17, 5),), b"17"),
        ((TopicKey(17, 4),), b"[[17,4,0,0]]"),
        ((TopicKey(17, 5, 10, 20),), b"[[17,5,10,20]]"),
        ((TopicKey(17, 3, 10, 20), TopicKey(18, 5, 20, 30)), b"[[17,3,10,20],[18,5,20,30]]"),
    ],
)
def test_the_form_in_the_projections(keys: tuple[TopicKey, ...], body: bytes) -> None:
    of_topic = KeysOfTopic(5, keys)
    assert of_topic.encode() == body
    assert KeysOfTopic.decode(body, 5) == of_topic
    loaded = TopicKeys()
    loaded.load("a", body, 5)
    assert (loaded.by_topic, loaded.count) == ({"a": of_topic}, len(keys))
