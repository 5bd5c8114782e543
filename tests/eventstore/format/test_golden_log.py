"""Logs of earlier versions (see golden/make.py) are read with their original meaning."""

from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import Event
from eventstore.format.records import ChainChecker, Record, decode_record
from eventstore.format.turn_events import TurnEvent
from tools.release import Failed, changed_golden_logs, freeze_golden_logs

GOLDEN = Path(__file__).parents[1] / "golden"


def read(file: Path) -> list[Record]:
    data = file.read_bytes()
    records, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        records.append(decode_record(len(records) + 1, data[at + 4 : at + 4 + size]))
        at += 4 + size
    return records


def described(record: Record) -> dict[str, Any]:
    return {
        "sequence": record.sequence,
        "link": record.link.hex(),
        "node": record.node,
        "time_ms": record.time_ms,
        "part": record.part,
        "last": record.last,
        "payload": bytes(record.payload).hex(),
        "events": [orjson.loads(orjson.dumps(json_object(event))) for _, event in record.events()],
    }


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.records")))
def test_a_golden_log_is_read_as_it_was_written(name: str) -> None:
    records = read(GOLDEN / f"{name}.records")
    checker = ChainChecker()
    for record in records:
        checker.check(record)
    assert [described(record) for record in records] == orjson.loads(
        (GOLDEN / f"{name}.json").read_bytes()
    )


def test_golden_logs_of_releases_are_unchanged() -> None:
    assert changed_golden_logs(GOLDEN) == []


def test_a_release_freezes_golden_logs(tmp_path: Path) -> None:
    (tmp_path / "FROZEN").write_text("# comment\n")
    (tmp_path / "v1.records").write_bytes(b"one")
    assert freeze_golden_logs(tmp_path, "0.9.0") == []
    assert freeze_golden_logs(tmp_path, "1.0.0") == ["v1.records"]
    (tmp_path / "v2.records").write_bytes(b"two")
    assert changed_golden_logs(tmp_path) == []
    assert freeze_golden_logs(tmp_path, "1.1.0") == ["v2.records"]
    assert freeze_golden_logs(tmp_path, "1.2.0") == []
    (tmp_path / "v1.records").write_bytes(b"on")
    (tmp_path / "v2.records").unlink()
    assert changed_golden_logs(tmp_path) == ["v1.records", "v2.records"]
    with pytest.raises(Failed, match=r"v1\.records, v2\.records"):
        freeze_golden_logs(tmp_path, "1.2.0")


@pytest.mark.parametrize(
    "kind", [kind.__name__ for union in (Event, TurnEvent) for kind in get_args(union)]
)
def test_every_event_type_is_in_a_golden_log(kind: str) -> None:
    files = sorted(GOLDEN.glob("*.records"))
    written = any(b'"e":"%s"' % kind.encode() in file.read_bytes() for file in files)
    assert written, "write a new golden log: see golden/make.py"
