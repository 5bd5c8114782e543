"""Keys are named once, erasures are requested and completed, messages are sealed."""

from __future__ import annotations

from typing import Any

import pytest

from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot, TopicsKeyed
from eventstore.format.events import MessagePublished
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, decode_record, encode_record
from projections.audit.chain_check import KEYS, UNSEALED, LogNote
from projections.audit.erasure_check import KeyNotes, erasure_breaks

DAY_MS = 86_400_000


def keyed(*pairs: tuple[str, int]) -> TopicsKeyed:
    return TopicsKeyed([one for one, _ in pairs], [key for _, key in pairs], ["0"] * len(pairs))


def requested(number: int, *pairs: tuple[str, int], before: int = 0) -> ErasureRequested:
    event = ErasureRequested(
        number, "ann", "request", [one for one, _ in pairs], [key for _, key in pairs]
    )
    event.before_ms = before
    return event


def period(begins: int, ends: int, *pairs: tuple[str, int]) -> TopicsKeyed:
    event = keyed(*pairs)
    event.begins_ms, event.ends_ms = begins, ends
    return event


def found(*events: Any, ends_ms: int = 1000) -> list[str]:
    notes: list[LogNote] = []

    def note(at: int, about: str, values: dict[str, Any]) -> None:
        notes.append(LogNote("n", at, about, values))

    scan = KeyNotes(note, KEYS)
    for number, event in enumerate(events, 1):
        scan.take(event, position(number, 0), number)
    return [one.what for one in erasure_breaks(notes, [], ends_ms)]


A, B, C = ("a", 1), ("b", 2), ("c", 3)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [keyed(A, B), requested(1, A), Erased(1, 1), keyed(("a", 3))],
        [keyed(A, B, C), requested(1, A, C), Erased(1, 2), requested(2, B), Erased(2, 1)],
        [keyed(A), KeysSnapshot(["a"], [1], 1, 0), keyed(B), requested(1, B)],
        [KeysSnapshot(["b"], [2], 9, 4, [1]), Erased(4, 1), keyed(("x", 10))],
        [KeysSnapshot(["b"], [2], 9, 4), KeysSnapshot(["c"], [3], 9, 4), requested(5, B)],
        [KeysSnapshot([], [], 9, 4), keyed(("a", 10))],
        [period(1, 2, A), period(2, 4, ("a", 2)), requested(1, A, before=3), Erased(1, 1)],
        [period(1, 2, A, B), period(2, 4, ("a", 3)), requested(1, A, ("a", 3)), Erased(1, 2)],
        [
            period(2, 9, A),
            period(1, 2, ("a", 2)),  # for messages of another log, twice
            period(1, 2, ("a", 2)),
            requested(1, ("a", 2), before=2),
            Erased(1, 1),
            period(1, 2, ("a", 3)),
        ],
        [
            period(1, 2, A),
            period(1, 9, A),
            KeysSnapshot(["a"], [1], 1, 0, begins_ms=[1], ends_ms=[9]),
        ],
        [
            period(1, 2, A),
            period(2, 4, ("a", 2)),
            KeysSnapshot(["a", "a"], [1, 2], 2, 0, begins_ms=[1, 2], ends_ms=[2, 4]),
            requested(1, A, before=3),
        ],
        [
            KeysSnapshot(["a", "a"], [1, 2], 2, 0, begins_ms=[1, 2], ends_ms=[2, 4]),
            KeysSnapshot(["b"], [1], 2, 0),
            requested(1, A, before=3),
        ],
    ],
)
def test_what_a_broker_writes_is_sound(events: list[Any]) -> None:
    assert found(*events) == []


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([keyed(A), keyed(("b", 1))], "key 1 is named for b, but was named before"),
        ([keyed(A), keyed(("a", 2))], "a gets a second key, but its first one was not erased"),
        ([keyed(A), Erased(1, 1)], "erasure 1 is completed, but was not requested"),
        ([keyed(A), requested(1, A), Erased(2, 1)], "with other keys than requested"),
        ([keyed(A, B), requested(1, A), Erased(1, 2)], "with other keys than requested"),
        ([keyed(A), requested(2, A)], "erasure 2 follows erasure 0"),
        ([keyed(A, B), requested(1, A), requested(2, B)], "the one before is not completed"),
        ([keyed(A), requested(1, B)], "names key 2 of b, which it does not have"),
        ([keyed(A), requested(1, ("a", 7))], "names key 7 of a, which it does not have"),
        ([keyed(A), KeysSnapshot(["a"], [2], 2, 0)], "repeats other keys than there are"),
        ([keyed(A), KeysSnapshot(["a"], [7], 1, 0)], "repeats another key of a"),
        ([period(1, 9, A), period(2, 9, ("a", 2))], "gets another key in the period of key 1"),
        ([period(1, 9, A), period(1, 9, A)], "named again, but for no longer period"),
        ([period(1, 9, A), period(0, 1, A)], "named again, but for no longer period"),
        (
            [period(1, 9, A), period(0, 1, ("a", 2)), period(0, 1, ("a", 3))],
            "gets another key for the period of one that it has",
        ),
        ([period(1, 9, A), requested(1, A, before=8)], "key 1 of a, which was in use later"),
        ([keyed(A), requested(1, A, before=8)], "key 1 of a, which was in use later"),
        (
            [period(1, 2, A), KeysSnapshot(["a"], [1], 1, 0, begins_ms=[1], ends_ms=[3])],
            "repeats another key of a",
        ),
    ],
)
def test_what_is_forged_is_found(events: list[Any], what: str) -> None:
    assert any(what in one for one in found(*events)), found(*events)


def test_an_erasure_that_is_not_completed_for_a_day_is_reported() -> None:
    assert found(keyed(A), requested(1, A), ends_ms=DAY_MS) == []
    (what,) = found(keyed(A), requested(1, A), ends_ms=DAY_MS + 10)
    assert "requested more than a day before the end of the log, and is not completed" in what


def test_columns_of_different_lengths_are_refused() -> None:
    for event in (
        TopicsKeyed(["a"], [1, 2], ["0"]),
        TopicsKeyed(["a"], [1], []),
        KeysSnapshot(["a"], [1], 1, 0, ends_ms=[1]),
        KeysSnapshot(["a"], [1], 1, 0, begins_ms=[1], ends_ms=[1, 2]),
    ):
        with pytest.raises(IndexError):
            found(event)


def test_a_message_that_is_not_sealed_under_the_key_of_its_topic_is_found() -> None:
    what: list[str] = []

    def note(_at: int, about: str, values: dict[str, Any]) -> None:
        if about == UNSEALED:
            what.append(values["what"])

    event = MessagePublished("c", 1, False, ["a", "b", "n"], [0, 1, 2], [[1, 3, 1]], 2, 0, 3)
    for sealed in ([], [(0, 2, 1), (2, 2, 2)], [(0, 2, 2), (2, 2, 2)]):
        data = encode_record(
            previous=GENESIS,
            node="n",
            time_ms=1,
            events=[event],
            payloads=[b"aabbnn"],
            sealed=sealed,
            salt=bytes(16),
        )
        scan = KeyNotes(note, KEYS)
        scan.check(event, position(1, 0), decode_record(1, data))
        assert what == []  # no topic has a key yet
        scan.take(keyed(A, B), position(1, 0), 1)
        scan.check(event, position(2, 0), decode_record(2, data))
        if not sealed:
            assert what == [
                "a message on a is not sealed, but its topic has key 1",
                "a message on b is not sealed, but its topic has key 2",
            ]
        elif sealed[0][2] == 1:
            assert what == []
        else:
            assert what == ["a message on a is sealed under key 2, but its topic has key 1"]
        what.clear()


def test_a_message_behind_the_period_of_its_key_is_found() -> None:
    what: list[str] = []
    event = MessagePublished("c", 1, False, ["a"], [0], [1], 2, 0, 1)
    for time_ms, late in ((999, False), (60_900, False), (61_001, True)):
        data = encode_record(
            previous=GENESIS,
            node="n",
            time_ms=time_ms,
            events=[event],
            payloads=[b"aa"],
            sealed=[(0, 2, 1)],
            salt=bytes(16),
        )
        scan = KeyNotes(lambda _at, _about, values: what.append(values.get("what", "")), KEYS)
        scan.take(period(1, 1000, A), position(1, 0), 1)
        what.clear()
        scan.check(event, position(2, 0), decode_record(2, data))
        expected = ["a message on a is sealed under key 1, whose period ended"] if late else []
        assert what == expected
