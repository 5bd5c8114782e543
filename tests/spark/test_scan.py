"""The scanner finds events in their JSON, and reads numbers in it, as a JSON parser does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventstore.format.event_parsing import Event
from eventstore.format.events import Acked, MessagePublished, SessionClosed
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from spark.tables.columns import Columns
from spark.tables.decoder import Decoder
from spark.tables.integer_columns import UnusualEvent
from spark.tables.integer_text import PAD, parse_integers
from spark.tables.json_scan import JsonScan
from spark.tables.row_filter import RowFilter


def record(*events: Event | dict[str, Any], payload: bytes = b"") -> Record:
    data = encode_record(
        previous=GENESIS,
        node='n,"events":[{',
        time_ms=1,
        events=events,  # type: ignore[arg-type] # any JSON object may stand for an event
        payloads=[payload],
    )
    return decode_record(1, data)


def integer(text: str) -> int | None:
    """What a text says that JSON knows as an integer of 64 bits."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else None


@given(
    st.lists(
        st.one_of(
            st.integers(-(1 << 65), 1 << 65).map(str),
            st.integers(-(10**9), 10**9).map(str),
            st.text("0123456789-+.,[]eEx \xb9\xff", max_size=22),
        ),
        max_size=9,
    )
)
@example([str(10**digits + add) for digits in range(19) for add in (-1, 0)])
@example([str(edge + add) for edge in (-(1 << 63), 1 << 63) for add in (-1, 0)])
@example(["-", "", "01", "-01", "1_0", "12345678:", "1234567/", ":1234567812345678"])
def test_integers_are_those_that_json_has(texts: list[str]) -> None:
    parts = [text.strip().encode("latin-1") for text in texts]
    ends = PAD + np.cumsum([len(part) + 1 for part in parts], dtype=np.int64) - 1
    begins = ends - np.array([len(part) for part in parts], np.int64)
    text = b"".join((b" " * PAD, b",".join(parts), b" " * PAD))
    values, right = parse_integers(text, begins, ends)
    found = [
        value if fits else None for value, fits in zip(values.tolist(), right.tolist(), strict=True)
    ]
    assert found == [integer(part.decode("latin-1")) for part in parts]


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text('{}[],:"\\ ev1')),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text('ev"\\{'), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text('ev"\\}'), anything, min_size=1, max_size=4), max_size=5))
def test_any_objects_are_found_where_they_are(objects: list[dict[str, Any]]) -> None:
    scan = JsonScan([record(*objects), record(), record(*objects[:2])])
    written = [*objects, *objects[:2]]
    assert [scan.event(number) for number in range(len(scan))] == [*map(orjson.dumps, written)]
    assert scan.lengths.tolist() == [len(objects), 0, len(objects[:2])]
    assert scan.key_count.tolist() == [len(one) for one in written]


def test_objects_within_an_event_that_look_like_events_are_none() -> None:
    """What a client sends with a message may say anything."""
    trap = {"session": "b", "e": "WillFired", "v": 1}
    event = MessagePublished("c", 1, False, ["t"], [], [1, 2], 0, 0, 2, False, [trap, trap])
    batches = list(Decoder(Columns.of("entries", ["session", "type", "properties"]), RowFilter())
                   .batches([record(event, Acked("d", [1]))]))  # fmt: skip
    rows = [row for batch in batches for row in batch.to_pylist()]
    told = orjson.dumps(trap).decode()
    assert [(row["session"], row["type"], row["properties"]) for row in rows] == [
        ("c", "MessagePublished", told),
        ("c", "MessagePublished", told),
        ("d", "Acked", None),
    ]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        (b'"name"', b'"na\xffe"'),
        (b'"name"', b'"na\x01e"'),
        (b'"name"', b'"na"e"'),
        (b'"name"', b'"nam\\"'),
        (b',{"session":"two"', b' {"session":"two"'),
        (b',{"session":"two"', b',,"session":"two"'),
        (b'{"session":"two"', b'["session":"two"'),
    ],
)
def test_an_invalid_list_of_events_is_unusual(name: bytes, instead: bytes) -> None:
    good = record(SessionClosed("name", "x"), SessionClosed("two", "x"))
    assert good.header.count(name) == 1
    good.header = good.header.replace(name, instead)
    with pytest.raises(UnusualEvent):
        list(Decoder(Columns.of("events"), RowFilter())._maker.batches([good]))


def test_planning_imports_few_modules() -> None:
    """Each step of Spark's planning is a process of its own."""
    code = (
        "import sys; import pyspark_foldmq as p\n"
        "p.DefaultSource({'nats': 'nats://a', 'columns': 'node,seq'}).schema()\n"
        "print(*sorted({'aiohttp', 'nats', 'numpy', 'pandas', 'pyarrow', 'pydantic', 'structlog'}"
        " & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_rows_are_made_without_pandas() -> None:
    """Arrow imports it, for half a second, as soon as it is given something of Python."""
    code = (
        "import sys; sys.path.append('tests/eventstore')\n"
        "from samples import ALL_PAYLOADS, every_event\n"
        "from eventstore.format.records import GENESIS, decode_record, encode_record\n"
        "from spark.tables.columns import Columns; from spark.tables.decoder import Decoder\n"
        "from spark.tables.row_filter import RowFilter\n"
        "data = encode_record(previous=GENESIS, node='n', time_ms=1, events=every_event(),"
        " payloads=ALL_PAYLOADS)\n"
        "for rows in ('entries', 'events'):\n"
        "    batches = Decoder(Columns.of(rows), RowFilter()).batches([decode_record(1, data)])\n"
        "    assert sum(batch.num_rows for batch in batches) > 20\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
