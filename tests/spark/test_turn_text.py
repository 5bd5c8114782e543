"""Events of several sessions, written as the JSON of the events that they stand for."""

from typing import Any

import orjson
import pytest
from harness.turn_columns import columns
from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.event_parsing import Event
from eventstore.format.events import Acked, SessionClosed
from eventstore.format.positions import to_runs
from eventstore.format.records import GENESIS, decode_record, encode_record
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished, TurnReleased
from eventstore.format.turn_expansion import expanded
from spark.tables import decoder
from spark.tables.columns import Columns
from spark.tables.decoder import Decoder
from spark.tables.json_scan import area_of
from spark.tables.record_frames import frame_of
from spark.tables.row_filter import RowFilter
from spark.tables.turn_text import without_turns

names = st.sampled_from(["c", "d", '"', "ä", '","', "a\\", '{"e":"Turn', "x" * 100, ""])
row = st.tuples(names, names, st.integers(1, 65_535), st.integers(0, 1 << 50), st.integers(0, 9))
rows = st.lists(row, min_size=1, max_size=9)


def record(*events: Event | dict[str, Any]) -> bytes:
    return encode_record(
        previous=GENESIS,
        node="n",
        time_ms=1,
        events=events,
        payloads=[b"x" * 200],  # type: ignore[arg-type]
    )


def written(*events: Any) -> bytes:
    return bytes(without_turns(area_of(frame_of(1, record(*events)))))


def expected(*events: Any) -> bytes:
    """The JSON of the expanded events, one after the other."""
    header = bytes(area_of(frame_of(1, record(*events))))
    raws = orjson.loads(b"[" + header + b"]")
    return b",".join(orjson.dumps(one) for raw in raws for one in expanded(raw))


@given(rows, st.booleans(), st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_each_event_is_expanded(
    rows: list[tuple[str, str, int, int, int]], same_size: bool, blocks: list[int]
) -> None:
    count = len(rows)
    sessions, by = columns([one[0] for one in rows])
    topics, which = columns([one[1] for one in rows])
    pids, refs = [one[2] for one in rows], to_runs([one[3] for one in rows])
    sizes = 3 if same_size else [one[4] for one in rows]
    of = blocks[:count]
    filters = [f"{name}/f" for name in sessions]
    published = TurnPublished(sessions, by, 1, topics, which, pids, sizes, 30, count)
    with_block = TurnPublished(
        sessions, by, 1, topics, which, pids, sizes, 30, count, blocks=[9], block_of=[]
    )
    with_blocks = TurnPublished(
        sessions, by, 1, topics, which, pids, sizes, 30, count, blocks=[9, 3], block_of=of
    )
    events = [
        published,
        with_block,
        with_blocks,
        SessionClosed('{"e":"Turn', "closed"),
        TurnDelivered(sessions, filters, by, 2, pids, refs),
        TurnAcked("Received", sessions, by, pids),
        TurnAcked("Acked", sessions, by, pids, reasons=[0x80] * count),
        TurnReleased(sessions, by, pids, refs),
    ]
    assert written(*events) == expected(*events)


def test_text_without_such_events_is_not_copied() -> None:
    area = area_of(frame_of(1, record(Acked("Turn", [1]))))
    assert without_turns(area) is area


@pytest.mark.parametrize(
    "change",
    [
        {"pids": [1]}, {"by": [0, 5]}, {"by": [0]}, {"sessions": "ab"}, {"refs": [[1, 2]]},
        {"v": 2}, {"more": 1}, {"filters": ["f"]}, {"pids": ["1", "2"]}, {"sessions": []},
    ],
)  # fmt: skip
def test_malformed_events_are_left_to_the_reader(change: dict[str, Any]) -> None:
    one = {
        "sessions": ["c", "d"], "filters": ["f", "g"], "by": [], "qos": 1, "pids": [1, 2],
        "refs": [1, 2], **change, "e": "TurnDelivered", "v": change.get("v", 1),
    }  # fmt: skip
    data = record(one)
    reader = Decoder(Columns.of("entries", ("type",)), RowFilter())

    def told(opened: Any) -> str:
        try:
            return str([batch.to_pylist() for batch in reader.batches([opened])])
        except Exception as error:  # noqa: BLE001 - what it is, is compared
            return repr(error)

    assert "TurnDelivered" in told(frame_of(1, data)) or told(frame_of(1, data)) == told(
        decode_record(1, data)
    )


def test_records_with_turns_are_read_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_record: Any) -> Any:
        raise AssertionError("read event by event")

    monkeypatch.setattr(decoder, "upcast_record", slow)
    count = 40
    sessions = [f"s{number}" for number in range(count)]
    pids = list(range(1, count + 1))
    events = [
        TurnPublished(sessions, [], 1, ["t"], [], pids, 3, 0, count),
        TurnDelivered(sessions, ["t"] * count, [], 1, pids, [[1 << 20, count, 1]]),
        TurnAcked("Acked", sessions, [], pids),
    ]
    reader = Decoder(Columns.of("entries", ()), RowFilter())
    (batch,) = reader.batches([frame_of(1, record(*events))])
    found = batch.to_pylist()
    assert [one["type"] for one in found[::count]] == ["MessagePublished", "Delivered", "Acked"]
    assert [one["index"] for one in found] == list(range(3 * count))
    assert [one["session"] for one in found] == sessions * 3
