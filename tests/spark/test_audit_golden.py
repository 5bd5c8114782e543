"""Logs of earlier versions are audited."""

from pathlib import Path

import pytest
from harness.logs import HeldLog, LogBuilder
from harness.plainaudit import audit_plainly

from eventstore.format.records import decode_record
from projections.audit.rule_table import Rule
from spark.tables.record_checks import RecordChecker
from spark.tables.stored_log import RecordRange

GOLDEN = Path(__file__).parents[1] / "eventstore" / "golden"


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.records")), ids=lambda file: file.stem)
def test_logs_of_earlier_versions_are_audited(file: Path) -> None:
    """They hold one event of each type, whether it fits or not; impossible ones are reported."""
    data, log, at = file.read_bytes(), LogBuilder("golden"), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        log.records.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    held = HeldLog(log, 1, set())
    whole = RecordRange(held, held.first, held.last, held.last)  # type: ignore[arg-type]
    checker = RecordChecker(whole, decode_record, strict=False)
    found = audit_plainly(log.node, checker.records())
    assert Rule.PROGRESS not in {one.rule for one in found}
    assert not [one for one in found if one.rule == Rule.DROP and "limit" in one.what]
