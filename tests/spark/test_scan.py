"""Reading the log in Spark imports few modules, and believes nothing that clients send."""

import subprocess
import sys
from typing import Any

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.events import Acked, MessagePublished
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from spark.tables.columns import Columns
from spark.tables.decoder import Decoder
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
