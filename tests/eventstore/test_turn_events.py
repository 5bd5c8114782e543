"""Events of several sessions, and the events of single sessions that they stand for."""

from itertools import pairwise
from typing import Any

import orjson
import pytest
from harness.turn_columns import columns
from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.event_parsing import Event, UnreadableEvent, entries
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    MessagePublished,
    Received,
    Released,
)
from eventstore.format.positions import from_runs, to_runs
from eventstore.format.records import GENESIS, decode_record, encode_record, payload_bounds
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished, TurnReleased
from eventstore.format.turn_expansion import expanded

names = st.sampled_from(["c", "d", '"', "ä", "x" * 100])
pids = st.integers(1, 65_535)
refs = st.integers(1 << 20, 1 << 50)
rows = st.lists(st.tuples(names, names, pids, refs, st.binary(max_size=5)), min_size=1, max_size=9)


def read(event: Event, payloads: list[bytes] | None = None) -> list[tuple[int, Event, list[bytes]]]:
    """The events that a record with this one has when it is read, with their payloads."""
    data = encode_record(
        previous=GENESIS, node="n", time_ms=1, events=[event], payloads=payloads or []
    )
    record = decode_record(1, data)
    found = []
    for index, one in record.events():
        some = []
        if isinstance(one, MessagePublished):
            some = [bytes(record.payload[a:b]) for a, b in pairwise(payload_bounds(one))]
        found.append((index, one, some))
    return found


@given(rows)
def test_publications_keep_their_positions(rows: list[tuple[str, str, int, int, bytes]]) -> None:
    sessions, by = columns([row[0] for row in rows])
    topics, which = columns([row[1] for row in rows])
    payloads = [row[4] for row in rows]
    sizes = [len(one) for one in payloads]
    event = TurnPublished(
        sessions, by, 1, topics, which, [row[2] for row in rows], sizes, 0, len(rows)
    )
    assert entries(event) == len(rows)
    found: dict[int, Any] = {}
    for index, one, some in read(event, payloads):
        assert isinstance(one, MessagePublished)
        assert (one.qos, one.retain, one.will) == (1, False, False)
        each = [one.topics[at] for at in one.which] or one.topics * one.count
        for offset, row in enumerate(zip(each, from_runs(one.pids), some, strict=True)):
            found[index + offset] = (one.session, *row)
    assert found == {at: (row[0], row[1], row[2], row[4]) for at, row in enumerate(rows)}


@given(rows)
def test_deliveries_and_releases_keep_their_positions(
    rows: list[tuple[str, str, int, int, bytes]],
) -> None:
    pairs = list(dict.fromkeys((row[0], row[1]) for row in rows))
    by = [pairs.index((row[0], row[1])) for row in rows]
    numbers, positions = [row[2] for row in rows], [row[3] for row in rows]
    delivered = TurnDelivered(
        [pair[0] for pair in pairs], [pair[1] for pair in pairs], by, 2, numbers, to_runs(positions)
    )
    sessions, of = columns([row[0] for row in rows])
    released = TurnReleased(sessions, of, numbers, to_runs(positions))
    for event in (delivered, released):
        assert entries(event) == len(rows)
        found: dict[int, Any] = {}
        for index, one, _ in read(event):
            assert isinstance(one, (Delivered, Released))
            where = one.filter if isinstance(one, Delivered) else None
            each = zip(from_runs(one.pids), from_runs(one.refs), strict=True)
            for offset, (pid, ref) in enumerate(each):
                found[index + offset] = (one.session, where, pid, ref)
        assert found == {
            at: (row[0], row[1] if event is delivered else None, row[2], row[3])
            for at, row in enumerate(rows)
        }


@pytest.mark.parametrize("kind", [Acked, Received, Completed])
def test_acknowledgements_are_of_their_kind(kind: type[Event]) -> None:
    event = TurnAcked(kind.__name__, ["a", "b"], [0, 0, 1, 0], [7, 8, 7, 9])  # type: ignore[arg-type]
    assert [(index, one) for index, one, _ in read(event)] == [
        (0, kind("a", [7, 8])),  # type: ignore[call-arg]
        (2, kind("b", [7])),  # type: ignore[call-arg]
        (3, kind("a", [9])),  # type: ignore[call-arg]
    ]


BROKEN: list[dict[str, Any]] = [
    {"by": [0, 5]},
    {"by": [0, -1]},
    {"by": [0]},
    {"sessions": ["a", "b", "c"]},
    {"sessions": []},
    {"pids": [1, 2, 3]},
    {"refs": [1]},
]


@pytest.mark.parametrize("broken", BROKEN)
def test_columns_that_do_not_fit_together_cannot_be_read(broken: dict[str, Any]) -> None:
    raw = orjson.loads(orjson.dumps(TurnReleased(["a", "b"], [], [1, 2], [5, 6])))
    raw.update(broken)
    assert expanded(raw) == [raw]
    record = decode_record(
        1,
        encode_record(
            previous=GENESIS,
            node="n",
            time_ms=1,
            events=[raw],  # type: ignore[list-item]
            payloads=[],
        ),
    )
    with pytest.raises(UnreadableEvent, match=r"record 1, entry 0: .*do not fit together"):
        list(record.events())


@pytest.mark.parametrize(
    "raw",
    [
        {"e": "TurnAcked", "v": 2, "kind": "Acked", "sessions": ["a"], "by": [], "pids": [1]},
        {"e": "TurnAcked", "v": 1, "kind": "Lost", "sessions": ["a"], "by": [], "pids": [1]},
        {"e": "TurnAcked", "v": 1},
        {"e": "TurnMoon", "v": 1},
        {"e": ["TurnAcked"], "v": 1},
        {},
    ],
)
def test_unknown_events_are_unchanged(raw: dict[str, Any]) -> None:
    assert expanded(raw) == [raw]
