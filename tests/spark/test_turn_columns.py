"""Events of several sessions, read by column, have the rows of the events that they stand for."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from asrows import entry_rows
from foldedlogs import golden_records, simulated_records
from harness.turn_columns import columns
from hypothesis import given
from hypothesis import strategies as st
from randomlogs import random_log

from eventstore.format.events import Acked, Delivered, MessagePublished, SessionClosed
from eventstore.format.positions import from_runs, position, to_runs
from eventstore.format.records import GENESIS, decode_record, encode_record, mentions
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished, TurnReleased
from protocol.mqtt.property_codec import encode_properties
from spark.tables.columns import Columns
from spark.tables.decoder import Decoder
from spark.tables.row_filter import RowFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from harness.logs import LogBuilder

    from eventstore.format.records import Record

    NewLog = Callable[..., LogBuilder]

GOLDEN = sorted((Path(__file__).parents[1] / "eventstore" / "golden").glob("*.records"))
EVERYTHING = RowFilter()
BLOCKS = [encode_properties({0x02: 60, 0x03: "text/plain"}), encode_properties({0x01: 1}), b"\x99"]


def read(records: Iterable[Record], *names: str, wanted: RowFilter = EVERYTHING) -> Any:
    """The rows of records that are read together."""
    found: list[dict[str, Any]] = []
    for batch in Decoder(Columns.of("entries", names), wanted).batches(list(records)):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def single(raw: dict[str, Any], number: int) -> dict[str, Any]:
    """An entry of an event, as an event of its own."""
    one = dict(raw)
    for name in ("pids", "refs", "reasons"):
        if raw.get(name) and raw["e"] != "MessageDropped":
            one[name] = from_runs(raw[name])[number : number + 1]
    if raw["e"] == "Delivered" and number and raw["queued"] > 0:
        one["queued"] = 0
    if raw["e"] == "MessagePublished":
        sizes, count = raw["sizes"], raw["count"]
        each = [sizes] * count if isinstance(sizes, int) else sizes
        one |= {
            "topics": [raw["topics"][raw["which"][number] if raw["which"] else 0]],
            "which": [],
            "sizes": each[number],
            "at": [*accumulate(each, initial=raw["at"])][number],
            "count": 1,
        }
        if "blocks" in raw:
            of = raw.get("block_of", [1] * count)[number]
            blocks = raw["blocks"]
            begins = raw.get("blocks_at") or [*accumulate(blocks, initial=raw["at"] - sum(blocks))]
            kept = {"blocks": [blocks[of - 1]], "blocks_at": [begins[of - 1]]} if of else {}
            kind = {"e": one.pop("e"), "v": one.pop("v")}
            for name in ("blocks", "block_of", "blocks_at"):
                one.pop(name, None)
            one |= kept | kind
    return one


def written(logs: list[bytes]) -> list[str]:
    """The JSON of the entries of records."""
    found: list[str] = []
    for sequence, data in enumerate(logs, 1):
        for raw in decode_record(sequence, data).raw_events:
            count = raw.get("count", len(from_runs(raw["pids"])) if "pids" in raw else 1)
            found += [orjson.dumps(single(raw, number)).decode() for number in range(count)]
    return found


names = st.sampled_from(["c", "d", '"', "ä", '","', "a\\", '{"e":"Turn', "x" * 100, ""])
row = st.tuples(names, names, st.integers(1, 65_535), st.integers(0, 1 << 50), st.integers(0, 9))


@st.composite
def turns(draw: st.DrawFn) -> Any:
    """Events of several sessions in one record, with their payload area."""
    rows = draw(st.lists(row, min_size=1, max_size=9))
    count = len(rows)
    sessions, by = columns([one[0] for one in rows])
    topics, which = columns([one[1] for one in rows])
    filters = [f"{name}/+" for name in sessions]
    pids, refs = [one[2] for one in rows], to_runs([one[3] for one in rows])
    sizes: Any = 3 if draw(st.booleans()) else [one[4] for one in rows]
    blocks = draw(st.sampled_from([[], BLOCKS[:1], BLOCKS]))
    of = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)) if blocks[1:] else []
    at = sum(map(len, blocks))
    qos = draw(st.integers(1, 2))
    reasons = draw(st.lists(st.sampled_from([0, 0, 0x80]), min_size=count, max_size=count))
    chosen: list[Any] = [
        TurnPublished(
            sessions, by, qos, topics, which, pids, sizes, at, count, blocks=list(map(len, blocks)),
            block_of=of,
        ),
        TurnDelivered(sessions, filters, by, qos, pids, refs),
        TurnAcked("Acked", sessions, by, pids, reasons=reasons),
        TurnAcked("Received", sessions, by, pids),
        TurnAcked("Completed", sessions, by, pids),
        TurnReleased(sessions, by, pids, refs),
        SessionClosed('{"e":"Turn', "closed"),
        Acked("c", [[1, 3, 1]]),
        Delivered("c", "a", 1, to_runs(pids), refs, queued=7),
    ]  # fmt: skip
    events = draw(st.lists(st.sampled_from(chosen), max_size=6))
    payload = bytes(range(count * 10))
    return encode_record(
        previous=GENESIS,
        node="n",
        time_ms=1_700_000_000_000 + draw(st.integers(0, 9)),
        events=events,
        payloads=[*blocks, payload],
    )


logs = st.lists(turns(), min_size=1, max_size=3)


@given(logs)
def test_all_columns_are_those_of_the_events_of_single_sessions(log: list[bytes]) -> None:
    whole = [decode_record(*one, whole_turns=True) for one in enumerate(log, 1)]
    found = read(whole)
    assert found == read(decode_record(*one) for one in enumerate(log, 1))
    assert [one["json"] for one in found] == written(log)
    kept = [
        {name: value for name, value in one.items() if value is not None and name not in AFTER}
        for one in found
    ]
    assert kept == entry_rows(decode_record(*one) for one in enumerate(log, 1))


AFTER = {"json", "time"}
"""Columns that the reader by event does not have."""


@given(logs, st.sampled_from(["c", "d", '","', "none"]), st.integers(0, 40))
def test_filters_leave_out_whole_rows(log: list[bytes], session: str, index: int) -> None:
    records = [decode_record(*one, whole_turns=True) for one in enumerate(log, 1)]
    whole = read(records)
    types = frozenset({"Delivered", "Received"})
    first = position(1, index)
    for wanted in (
        RowFilter(sessions=frozenset({session})),
        RowFilter(types=types),
        RowFilter(types=types, sessions=frozenset({session})),
        RowFilter(first=first, last=position(2, index)),
    ):
        kept = [
            one
            for one in whole
            if (wanted.types is None or one["type"] in wanted.types)
            and (wanted.sessions is None or one["session"] in wanted.sessions)
            and one["position"] >= wanted.first
            and (wanted.last is None or one["position"] <= wanted.last)
        ]
        assert read(records, wanted=wanted) == kept


@given(turns())
def test_each_column_alone_is_as_with_all_others(data: bytes) -> None:
    whole = read([decode_record(1, data, whole_turns=True)])
    for name in Columns.of("entries").names:
        assert read([decode_record(1, data, whole_turns=True)], name) == [
            {name: one[name]} for one in whole
        ]


@pytest.mark.parametrize("column", ["session", "json", "topic"])
def test_rows_that_repeat_a_long_name_are_cut_into_batches_of_few(column: str) -> None:
    long = ["n" * 60_000, "m" * 60_000]
    by, pids = [0, 1] * 750, list(range(1, 1501))
    event = TurnPublished(long, by, 1, long, by, pids, 0, 0, 1500)
    data = encode_record(previous=GENESIS, node="n", time_ms=1, events=[event], payloads=[])
    batches = list(
        Decoder(Columns.of("entries", [column]), EVERYTHING).batches(
            [decode_record(1, data, whole_turns=True)]
        )
    )
    assert sum(batch.num_rows for batch in batches) == 1500
    assert max(batch.nbytes for batch in batches) < 100 << 20
    assert len(batches) > 3


def test_messages_of_one_session_with_properties_are_written_one_by_one() -> None:
    event = MessagePublished(
        "ä", 1, False, ['t"', "u"], [0, 1, 1, 0], [[7, 4, 2]], [1, 0, 2, 1], 5, 4, blocks=[2, 3],
        block_of=[2, 0, 1, 2],
    )  # fmt: skip
    payloads = [b"\x01\x01", b"\x02\0\0", b"abcd"]
    data = encode_record(previous=GENESIS, node="n", time_ms=1, events=[event], payloads=payloads)
    assert [one["json"] for one in read([decode_record(1, data)])] == written([data])


def test_messages_without_packet_identifier_beside_others_with_the_same_one() -> None:
    events = [
        MessagePublished("c", 0, True, ["t"], [], [], 1, 0, 2),
        MessagePublished("c", 1, False, ["t"], [], [5, 5], 1, 2, 2),
        MessagePublished("d", 1, True, ["u"], [], [5], 1, 4, 1),
    ]
    data = encode_record(previous=GENESIS, node="n", time_ms=1, events=events, payloads=[b"abcde"])
    assert [one["json"] for one in read([decode_record(1, data)])] == written([data])


# ------------------------------------------------------------------------------ whole logs


def compare(log: list[bytes], *names: str) -> None:
    """Columns of a log are those that the reader by event returns."""
    for start in range(0, len(log), 50):
        some = [*enumerate(log[start : start + 50], start + 1)]
        rows = read((decode_record(*one, whole_turns=True) for one in some), *names)
        kept = [
            {name: value for name, value in one.items() if value is not None and name not in AFTER}
            for one in rows
        ]
        expected = entry_rows(decode_record(*one) for one in some)
        for row in expected if names else ():
            row.pop("payload", None)
        assert kept == expected


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_golden_logs_are_read_as_by_event(file: Path) -> None:
    # their checkpoints have no payloads of their own
    compare(golden_records(file), *(one for one in Columns.of("entries").names if one != "payload"))


WITH_TURNS = (1, 11)
"""Simulated runs whose logs have events of turns."""


@pytest.mark.parametrize("seed", WITH_TURNS)
def test_logs_of_simulated_runs_are_read_as_by_event(seed: int) -> None:
    records, _ = simulated_records(seed)
    compare(records)
    assert any(mentions(data, [b'"TurnPublished"']) for data in records)


@pytest.mark.parametrize("seed", range(2))
def test_random_logs_are_read_as_by_event(seed: int, new_log: NewLog) -> None:
    compare(random_log(new_log(), seed, 60).records)
